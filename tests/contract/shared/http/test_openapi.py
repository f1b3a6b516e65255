"""The OpenAPI document is true: it has every route, and every answer fits it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import cluster
from tests.support.cluster.served_node import Served
from tests.support.services.openapi import cursor_at, judge
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.http.app import create_app as node_app
from understudy_router.http.app import create_app as router_app
from understudy_shared.base.words import ApplicationId
from understudy_shared.reads.tokens import decode_position

WORD, STORE, VERSION = WORDS[0], "/v1/stores/op0", 3
KEY = quote(json.dumps([WORD]))


@dataclass(frozen=True, slots=True)
class Service:
    """One that runs: a client of its port, and an application like its own."""

    client: Served
    port: int
    app: Any
    position: str

    @property
    def document(self) -> dict[str, Any]:
        return self.client.get("/openapi.json").body

    @property
    def routes(self) -> set[tuple[str, str]]:
        """Method and path of each route that FastAPI has, those of its document or not."""
        app = self.app
        while not isinstance(app, FastAPI):
            app = getattr(app, "_http", None) or app._app
        return {
            (method.lower(), nameless(route.path))
            for route in _leaves(app.routes)
            for method in route.methods - {"HEAD"}
        }


def nameless(path: str) -> str:
    """`/v1/stores/{store}` as `/v1/stores/{}`: two names of a parameter are one call."""
    return re.sub("{[^}]*}", "{}", path)


def _leaves(routes: Iterable[Any]) -> Iterator[Any]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from _leaves(inner.routes)
        elif hasattr(route, "methods"):
            yield route


@pytest.fixture(scope="module", params=["node", "router"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: RedisServer
) -> Iterator[Service]:
    """A node of a cluster, and its router; each serves counts by word."""
    folder = tmp_path_factory.mktemp("documented")
    checkpoint = HandmadeCheckpoint(folder / "counts").create().add(*range(1, VERSION + 1))
    server.flush()
    with cluster(checkpoint.path, folder, server.url, nodes=1) as known:
        known.wait_to_rest(copies=1, version=VERSION)
        router, node = known.router, known.nodes["n1"]
        if request.param == "router":
            yield Service(router, router.port, router_app(router.router), position_of(router))
        else:
            app = node_app(node.node, node.member)
            yield Service(node, node.port, app, position_of(node))


def position_of(client: Served) -> str:
    wait_until(lambda: client.get(f"{STORE}/keys/{WORD}").status == 200, what="an answer")
    return str(client.get(f"{STORE}/keys/{WORD}").body["position"])


def of_the_future(position: str) -> str:
    """A position that no replica has reached."""
    seen = decode_position(position)
    return replace(seen, version=seen.version + 1, committed_at_us=None).encode()


def of_the_past(position: str) -> str:
    """A position before the first version that is retained."""
    return replace(decode_position(position), version=0, committed_at_us=None).encode()


def of_another(position: str) -> str:
    return replace(decode_position(position), application_id=ApplicationId("other")).encode()


# ---- routes


UNLISTED = {"/", "/admin", "/healthz"}
"""They lead to the page, or are `/livez` by another name."""


def test_every_route_is_in_the_document_and_the_reverse(service: Service) -> None:
    """Internal calls may change in any release, and pages are none of the API."""
    documented = {(method, nameless(path)) for path, methods in service.document["paths"].items() for method in methods}
    of_the_api = {
        (method, path)
        for method, path in service.routes
        if path.startswith(("/v1/", "/admin/v1/")) or (path.count("/") == 1 and path not in UNLISTED)
    }
    in_front = {("get", "/v1/stores/{}/keys/{}"), ("get", "/v1/stores/{}/lookup"), ("post", "/v1/stores/{}/lookup")}
    assert documented == of_the_api | in_front
    assert {path.split("/")[1] for _, path in service.routes - of_the_api} <= {"", "internal", "admin", "healthz"}


# ---- answers

ABSENT = quote(json.dumps(["nobody"]))
KEY_CALL, LOOKUP_CALL = "GET /v1/stores/{store}/keys/{key}", "GET /v1/stores/{store}/lookup"
EVERYWHERE = [
    ("GET /v1/stores", "/v1/stores", 200),
    ("GET /v1/stores/{store}", STORE, 200),
    ("GET /v1/stores/{store}", "/v1/stores/nowhere", 404),
    ("GET /v1/stores/{store}", "/v1/stores/%zz", 400),
    (KEY_CALL, f"{STORE}/keys/{WORD}", 200),
    (KEY_CALL, f"{STORE}/keys/{WORD}?longs=string&max_lag=0&unknown_lag=serve&max_staleness_ms=none", 200),
    (KEY_CALL, f"{STORE}/keys/nobody?min_position=POSITION&wait_ms=1", 404),
    (KEY_CALL, "/v1/stores/nowhere/keys/a", 404),
    (KEY_CALL, f"{STORE}/keys/a/b", 400),
    (KEY_CALL, f"{STORE}/keys/a?max_lag=few", 400),
    (KEY_CALL, f"{STORE}/keys/a?min_position=OTHER", 409),
    (KEY_CALL, f"{STORE}/keys/nobody?limit=5&include_expired=false&cursor=CURSOR", 404),
    (KEY_CALL, f"{STORE}/keys/a?cursor=GONE", 410),
    (KEY_CALL, f"{STORE}/keys/{WORD}?version=1", 200),
    (KEY_CALL, f"{STORE}/keys/{WORD}?at=2999-01-01T00:00:00Z", 200),
    (KEY_CALL, f"{STORE}/keys/{WORD}?at=0", 410),
    (KEY_CALL, f"{STORE}/keys/{WORD}?snapshot=POSITION", 200),
    (KEY_CALL, f"{STORE}/keys/{WORD}?snapshot=OTHER", 409),
    (KEY_CALL, f"{STORE}/keys/{WORD}?snapshot=FUTURE&wait_ms=0", 503),
    (KEY_CALL, f"{STORE}/keys/{WORD}?version=0", 410),
    (KEY_CALL, f"{STORE}/keys/{WORD}?version=1&max_lag=3", 400),
    (KEY_CALL, f"{STORE}/keys/a?limit=0", 400),
    (KEY_CALL, f"{STORE}/keys/{'x' * 20_000}", 413),
    (KEY_CALL, f"{STORE}/keys/a?min_position=FUTURE&wait_ms=0", 503),
    (LOOKUP_CALL, f"{STORE}/lookup?key={KEY}", 200),
    (LOOKUP_CALL, f"{STORE}/lookup?key={ABSENT}", 404),
    (LOOKUP_CALL, f"{STORE}/lookup?key=7", 400),
    ("GET /v1/stores/{store}/history/{key}", f"{STORE}/history/{WORD}?from=1&longs=string", 200),
    ("GET /v1/stores/{store}/history/{key}", f"{STORE}/history/a?from=0", 410),
    ("GET /v1/stores/{store}/history/{key}", f"{STORE}/history/a?to=999", 503),
    ("GET /v1/stores/{store}/history/{key}", f"{STORE}/history/a?from=2&to=1", 400),
    ("GET /v1/stores/{store}/history", f"{STORE}/history?key={KEY}", 200),
    ("GET /v1/stores/{store}/changes", f"{STORE}/changes?from=1&fields=count&longs=string", 200),
    ("GET /v1/stores/{store}/changes", f"{STORE}/changes?from=999", 503),
    ("GET /v1/stores/{store}/changes", f"{STORE}/changes?to=1", 400),
    ("GET /v1/stores/{store}/changes", "/v1/stores/nowhere/changes?from=1", 404),
    ("GET /v1/stores/{store}/watch/{key}", f"{STORE}/watch/a/b", 400),
    ("GET /v1/stores/{store}/watch/{key}", f"{STORE}/watch/a?from=us1.x", 400),
    ("GET /v1/stores/{store}/watch/{key}", f"{STORE}/watch/a?from=OTHER", 409),
    ("GET /v1/stores/{store}/watch", "/v1/stores/nowhere/watch?key=1", 404),
    ("GET /v1/stores/{store}/history", "/v1/stores/nowhere/history?key=1", 404),
    ("GET /admin/v1/lag", "/admin/v1/lag", 200),
    ("GET /admin/v1/lag", "/admin/v1/lag?store=op0", 200),
    ("GET /admin/v1/lag", "/admin/v1/lag?store=nowhere", 404),
    ("GET /admin/v1/health", "/admin/v1/health", 200),
    ("GET /livez", "/livez", 200),
    ("GET /readyz", "/readyz", 200),
    ("GET /metrics", "/metrics", 200),
    ("GET /openapi.json", "/openapi.json", 200),
    ("GET /docs", "/docs", 200),
]
AT_A_NODE = [("GET /admin/v1/checkpoint", "/admin/v1/checkpoint", 200)]
AT_A_ROUTER = [
    ("GET /v1/stores/{store}/metadata", f"{STORE}/metadata", 200),
    ("GET /v1/stores/{store}/metadata", f"{STORE}/metadata?key={KEY}&max_lag=1&min_position=POSITION", 200),
    ("GET /v1/stores/{store}/metadata", f"{STORE}/metadata?key={KEY}&min_position=FUTURE", 200),
    ("GET /v1/stores/{store}/metadata", f"{STORE}/metadata?max_lga=1", 400),
    ("GET /v1/stores/{store}/metadata", f"{STORE}/metadata?longs=text", 400),
    ("GET /v1/stores/{store}/metadata/{key}", f"{STORE}/metadata/{WORD}?longs=string&require_active=true", 200),
    ("GET /v1/stores/{store}/metadata/{key}", f"{STORE}/metadata/a/b", 400),
    ("GET /v1/stores/{store}/metadata/{key}", "/v1/stores/nowhere/metadata/a", 404),
    ("GET /v1/stores/{store}/metadata/{key}", f"{STORE}/metadata/a?min_position=OTHER", 409),
    ("GET /admin/v1/nodes", "/admin/v1/nodes", 200),
    ("GET /admin/v1/nodes/{node_id}/safe-to-stop", "/admin/v1/nodes/n1/safe-to-stop", 200),
    ("GET /admin/v1/nodes/{node_id}/safe-to-stop", "/admin/v1/nodes/n9/safe-to-stop", 404),
    ("GET /admin/v1/lag", "/admin/v1/lag?limit=1&sort=-time_lag", 200),
    ("GET /admin/v1/lag", "/admin/v1/lag?format=csv", 200),
    ("GET /admin/v1/lag", "/admin/v1/lag?limit=0", 400),
    ("GET /admin/v1/history", "/admin/v1/history", 200),
    ("GET /admin/v1/history", "/admin/v1/history?store=op0&partition=0&minutes=1", 200),
    ("GET /admin/v1/overview", "/admin/v1/overview", 200),
]


def test_every_answer_is_what_the_document_says(service: Service) -> None:
    positions = {
        "POSITION": service.position,
        "FUTURE": of_the_future(service.position),
        "OTHER": of_another(service.position),
        "CURSOR": cursor_at(service.position),
        "GONE": cursor_at(of_the_past(service.position)),
    }
    document = service.document
    is_router = "/v1/stores/{store}/metadata" in document["paths"]
    asked = EVERYWHERE + (AT_A_ROUTER if is_router else AT_A_NODE)
    for call, template, status in asked:
        target = template
        for name, position in positions.items():
            target = target.replace(name, position)
        answered, headers, body = service.client.head("GET", target)
        assert answered == status, (target, body)
        judge(document, call, status, headers["content-type"], body)
        assert (headers.get("retry-after") == "1") == (status == 503)


def judged_post(service: Service, call: str, target: str, body: object, status: int) -> Any:
    """The reply to a body, raw or as JSON; fails unless the document describes it."""
    reply = service.client.post(target, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert reply.status == status, (target, body, reply)
    judge(service.document, call, status, reply.content_type, json.dumps(reply.body).encode())
    return reply


def test_every_answer_to_a_batch_is_what_the_document_says(service: Service) -> None:
    call = "POST /v1/stores/{store}/lookup"
    keys = [[WORD], {"word": "nobody"}, 7, ["x" * 70_000]]
    future = {"min_position": of_the_future(service.position), "wait_ms": 0}
    for query in ("", "?compact=true", "?compact=TRUE&longs=string"):
        for bounds, statuses in (({}, [200, 404, 400, 413]), (future, [503, 503, 400, 413])):
            reply = judged_post(service, call, f"{STORE}/lookup{query}", {"keys": keys, "bounds": bounds}, 200)
            assert [each["status"] for each in reply.body["results"]] == statuses
    for path, body, status in (
        (f"{STORE}/lookup", {"keys": [], "bounds": {"max_lag": -1}}, 400),
        (f"{STORE}/lookup", {"keys": [[WORD]] * 1001}, 413),
        (f"{STORE}/lookup", {"keys": [[WORD]], "bounds": {"min_position": of_another(service.position)}}, 409),
        ("/v1/stores/nowhere/lookup", {"keys": []}, 404),
    ):
        judged_post(service, call, path, body, status)


def test_every_answer_to_a_read_of_several_stores_is_what_the_document_says(service: Service) -> None:
    read = {"store": "op0", "keys": [[WORD], ["nobody"], 7]}
    asked: list[tuple[dict[str, object], int]] = [
        ({"reads": [read, {"store": "op0", "keys": [], "bounds": {"limit": 5}}]}, 200),
        ({"reads": [read], "version": 1}, 200),
        ({"reads": [read], "snapshot": service.position}, 200),
        ({"reads": [read], "at": "2999-01-01T00:00:00Z"}, 200),
        ({"reads": [{"store": "nowhere", "keys": []}]}, 404),
        ({"reads": [read], "version": 0}, 410),
        ({"reads": [read], "version": 9, "wait_ms": 0}, 503),
        ({"reads": [read], "snapshot": of_another(service.position)}, 409),
        ({"reads": [{"store": "op0", "keys": [[WORD]] * 1001}]}, 413),
        ({"reads": []}, 400),
        ({"reads": [{"store": "op0"}]}, 400),
        ({"reads": [{"store": "op0", "keys": [], "bounds": {"max_lag": 1}}]}, 400),
        ({"reads": [read], "version": 1, "at": 1}, 400),
    ]
    for body, status in asked:
        judged_post(service, "POST /v1/read", "/v1/read", body, status)


def test_every_answer_about_snapshot_leases_is_what_the_document_says(service: Service) -> None:
    asked: list[tuple[dict[str, object], int]] = [
        ({}, 201),
        ({"version": 1, "stores": ["op0"], "ttl_s": 5}, 201),
        ({"snapshot": service.position}, 201),
        ({"at": "2999-01-01T00:00:00Z"}, 201),
        ({"min_position": service.position}, 201),
        ({"stores": ["nowhere"]}, 404),
        ({"version": 0}, 410),
        ({"version": 9, "wait_ms": 0}, 503),
        ({"min_position": of_the_future(service.position), "wait_ms": 0}, 503),
        ({"snapshot": of_another(service.position)}, 409),
        ({"min_position": of_another(service.position)}, 409),
        ({"ttl_s": 0}, 400),
        ({"version": 1, "at": 1}, 400),
    ]
    for body, status in asked:
        reply = judged_post(service, "POST /v1/snapshots", "/v1/snapshots", body, status)
        if status == 201:
            held = service.client.get("/admin/v1/snapshots")
            judge(service.document, "GET /admin/v1/snapshots", 200, held.content_type, json.dumps(held.body).encode())
            assert service.client.delete(f"/v1/snapshots/{reply.body['snapshot']}").status == 204
    call, refused = "DELETE /v1/snapshots/{snapshot}", service.client.delete("/v1/snapshots/ul1.x")
    judge(service.document, call, 400, refused.content_type, json.dumps(refused.body).encode())


def test_every_answer_to_a_drain_is_what_the_document_says(service: Service) -> None:
    paths = {"/admin/v1/drain", "/admin/v1/nodes/{node_id}/drain"} & service.document["paths"].keys()
    for path in paths:
        own, nobodys = path.replace("{node_id}", "n1"), path.replace("{node_id}", "n9")
        asked = [
            (own, b'{"drain": true}', 202),
            (own, b'{"drain": false}', 202),
            (own, b'{"drain": false, "force": true}', 400),
            (own, b'{"drain": 0}', 400),
            (own, b" " * 2000, 413),
        ]
        asked += [(nobodys, b"{}", 404)] if nobodys != path else []
        for target, body, status in asked:
            judged_post(service, f"POST {path}", target, body, status)
