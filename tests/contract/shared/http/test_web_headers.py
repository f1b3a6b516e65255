"""What browsers and proxies meet, on both ways into a service: pages of other origins, and packed answers.

Every service here asks for credentials, too: browsers send preflights without.
"""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.cluster.guarded_world import ABSENT, WORD, World, guarded_world
from tests.support.services.raw_http import RawClient

from understudy_shared.server import compression as packing

APP, OTHER = "https://app.example.com", "https://app.example.com.evil.example"
ALLOWED = "access-control-allow-origin"
SERVICES = ("node", "router")
LOOKUP = f"/v1/stores/op0/keys/{WORD}"
BY_ASGI = "content-length: 0\r\n"
each_service = pytest.mark.parametrize("service", SERVICES)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, server: RedisServer) -> Iterator[World]:
    origins = f"http://localhost:3000,{APP}"
    with guarded_world(tmp_path_factory.mktemp("cors"), server, cors_origins=origins) as found:
        yield found


def of(origin: str) -> str:
    return f"origin: {origin}\r\n"


@each_service
@pytest.mark.parametrize("more", ["", BY_ASGI], ids=["directly", "by-asgi"])
def test_a_page_of_a_named_origin_may_read_a_lookup_whatever_it_is_answered(
    world: World, service: str, more: str
) -> None:
    asked = ((LOOKUP, "reader", 200), (f"/v1/stores/op0/keys/{ABSENT}", "reader", 404), (LOOKUP, "monitor", 403))
    for target, who, wanted in (*asked, (LOOKUP, None, 401)):
        key = None if who is None else world.keys[who]
        for origin, allowed in ((APP, APP), (OTHER, None), ("null", None), ("", None)):
            sent = of(origin) if origin else ""
            status, headers, _ = world.ask(service, "GET", target, key, more=more + sent)
            assert (status, headers.get(ALLOWED)) == (wanted, allowed), (target, who, origin)
            assert headers["vary"] == "origin"
            assert "access-control-allow-credentials" not in headers


@each_service
def test_no_origin_is_remembered_from_one_request_of_a_connection_to_the_next(world: World, service: str) -> None:
    with RawClient(world.ports[service]) as client:
        for origin in (APP, None, OTHER, APP, APP, None, None):
            sent = of(origin) if origin else ""
            shown = f"authorization: Bearer {world.keys['reader']}\r\n"
            client.send(f"GET {LOOKUP} HTTP/1.1\r\nhost: x\r\n{shown}{sent}\r\n".encode())
            status, headers, _ = client.reply()
            assert (status, headers.get(ALLOWED)) == (200, APP if origin == APP else None)
            assert headers["vary"] == "origin"


@each_service
@pytest.mark.parametrize(
    ("path", "methods"),
    [(LOOKUP, "GET, HEAD"), ("/v1/stores/op0/lookup", "GET, HEAD, POST"), ("/admin/v1/drain", "GET, HEAD")],
)
def test_a_browser_that_asks_first_is_told_without_a_credential_what_a_page_may_send(
    world: World, service: str, path: str, methods: str
) -> None:
    asks = "access-control-request-method: POST\r\naccess-control-request-headers: authorization,content-type\r\n"
    status, headers, body = world.ask(service, "OPTIONS", path, None, more=of(APP) + asks)
    assert (status, headers[ALLOWED], headers["access-control-allow-methods"], body) == (204, APP, methods, b"")
    assert {"authorization", "content-type"} <= set(headers["access-control-allow-headers"].split(", "))
    assert headers["vary"] == "origin"
    for refused in (of(OTHER) + asks, of(APP), asks):
        status, headers, _ = world.ask(service, "OPTIONS", path, None, more=refused)
        assert status == 401
        assert "access-control-allow-methods" not in headers


@each_service
@pytest.mark.parametrize(
    ("path", "who", "methods"),
    [
        (LOOKUP, "reader", "GET, HEAD, OPTIONS"),
        ("/v1/stores/op0/lookup", "reader", "GET, HEAD, POST, OPTIONS"),
    ],
)
def test_options_of_another_path_say_what_it_takes(
    world: World, service: str, path: str, who: str, methods: str
) -> None:
    status, headers, body = world.ask(service, "OPTIONS", path, world.keys[who])
    assert (status, body) == (204, b"")
    assert sorted(headers["allow"].split(", ")) == sorted(methods.split(", "))
    assert world.ask(service, "OPTIONS", "/v1/nothing", world.keys["chief"])[0] == 404


@each_service
def test_a_page_may_send_batches_and_read_what_operators_read_but_change_nothing(world: World, service: str) -> None:
    batch = json.dumps({"keys": [[WORD]]})
    status, headers, _ = world.ask(
        service, "POST", "/v1/stores/op0/lookup", world.keys["reader"], more=of(APP), body=batch
    )
    assert (status, headers[ALLOWED]) == (200, APP)
    for target in ("/v1/stores", "/admin/v1/lag", "/metrics", "/openapi.json", "/readyz"):
        status, headers, _ = world.ask(service, "GET", target, world.keys["monitor"], more=of(APP))
        assert (status, headers[ALLOWED]) == (200, APP), target
        assert "retry-after" in headers["access-control-expose-headers"]
    drain = {"node": "/admin/v1/drain", "router": "/admin/v1/nodes/n1/drain"}.get(service)
    if drain is not None:
        asked = world.ask(service, "POST", drain, world.keys["admin"], more=of(APP), body='{"drain": true}')
        assert (asked[0], json.loads(asked[2])["type"]) == (403, "cross-site")


@each_service
@pytest.mark.parametrize("target", ["/admin/", "/admin/login", "/docs", "/internal/v1/lags"])
def test_a_page_of_this_service_and_what_services_tell_each_other_is_for_no_other_origin(
    world: World, service: str, target: str
) -> None:
    _, headers, _ = world.ask(service, "GET", target, world.keys["monitor"], more=of(APP))
    assert not [name for name in headers if name.startswith("access-control-")]
    asks = "access-control-request-method: GET\r\n"
    _, headers, _ = world.ask(service, "OPTIONS", target, None, more=of(APP) + asks)
    assert not [name for name in headers if name.startswith("access-control-")]


# ---- packed answers


def asked(
    world: World, service: str, target: str, who: str | None, *, body: str | None = None, **headers: str
) -> tuple[HTTPResponse, bytes]:
    shown = {} if who is None else {"authorization": f"Bearer {world.keys[who]}"}
    kind = {} if body is None else {"content-type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", world.ports[service], timeout=20)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"accept-encoding": "gzip", **shown, **kind, **given}
        connection.request("GET" if body is None else "POST", target, body, sent)
        answer = connection.getresponse()
        is_endless = answer.headers.get_content_type() == "text/event-stream"
        return answer, b"" if is_endless else answer.read()
    finally:
        connection.close()


def varies_by(answer: HTTPResponse) -> set[str]:
    return {name.strip().lower() for line in answer.headers.get_all("vary", []) for name in line.split(",")}


@each_service
def test_a_long_answer_is_packed_for_a_client_that_accepts_gzip_and_says_the_same(world: World, service: str) -> None:
    batch = json.dumps({"keys": [[WORD]] * 1000})
    document, kept = asked(world, service, "/openapi.json", "reader")
    assert (document.getheader("content-encoding"), varies_by(document)) == ("gzip", {"accept-encoding", "origin"})
    assert json.loads(gzip.decompress(kept)) == world.documents[service]
    plain, whole = asked(world, service, "/openapi.json", "reader", accept_encoding="identity")
    assert (plain.getheader("content-encoding"), varies_by(plain)) == (None, {"accept-encoding", "origin"})
    assert (whole, len(kept) < len(whole) / 4) == (gzip.decompress(kept), True)
    many, packed = asked(world, service, "/v1/stores/op0/lookup", "reader", body=batch)
    assert many.getheader("content-encoding") == "gzip"
    assert [each["status"] for each in json.loads(gzip.decompress(packed))["results"]] == [200] * 1000


@each_service
def test_no_lookup_no_problem_no_event_no_sign_in_and_nothing_for_another_site_is_packed(
    world: World, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MIN_BYTES", 1)
    monkeypatch.setattr(packing, "MIN_BATCH_BYTES", 1)
    stores, _ = asked(world, service, "/v1/stores", "reader")
    assert stores.getheader("content-encoding") == "gzip", "the least size is so small that it packs everything"
    lookups: list[tuple[str, str | None]] = [(LOOKUP, "reader"), (f"/v1/stores/op0/keys/{ABSENT}", "reader")]
    refused: list[tuple[str, str | None]] = [(LOOKUP, None), ("/v1/stores/op9", "reader"), ("/v1/stores", None)]
    of_routers = [
        ("/admin/v1/events", "monitor"),
        ("/admin/changes", "monitor"),
        ("/admin/login", None),
        ("/admin/", None),
    ]
    for target, who in (*lookups, *refused, *(of_routers if service == "router" else [])):
        for more in ({}, {"content_length": "0"}):  # which takes the way by ASGI
            answer, _ = asked(world, service, target, who, accept="text/html", **more)
            assert answer.getheader("content-encoding") is None, target
    for header in ({"origin": APP}, {"origin": OTHER}, {"sec_fetch_site": "cross-site"}):
        answer, _ = asked(world, service, "/v1/stores", "reader", **header)
        assert (answer.status, answer.getheader("content-encoding")) == (200, None)
