"""Who gets what: every call of the documents, by every kind of credential, at every kind of service.

`pytest -s` prints the table. Beside it: nobody can tell a hidden store from one that is not there, on either way into a
service, and hops are for peers only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import ClusterNode, ClusterRouter, cluster_node, cluster_router
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.services.guarded import WRONG, Keys
from tests.support.services.raw_http import RawClient
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.cluster.routes import cluster_routes
from understudy_node.http.app import create_app as node_app
from understudy_router.http.app import create_app as router_app
from understudy_shared.auth.needs import Kind, need_of
from understudy_shared.hop import CONTENT_TYPE, PATH, HopRequest, encode_request

WORD, ABSENT, VERSION = WORDS[0], "nobody", 2
LIMIT_S = 20.0

Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True, slots=True)
class World:
    """Every kind of service, with the same credentials."""

    keys: Keys
    ports: Mapping[str, int]
    apps: Mapping[str, Any]
    documents: Mapping[str, Any]
    node: ClusterNode
    router: ClusterRouter
    secrets: Mapping[str, Path]
    """Of the node and of the router: two files that say the same."""

    def ask(self, service: str, method: str, target: str, key: str | None, *, more: str = "", body: str = "") -> Answer:
        """Send a request as it is, on a connection of its own."""
        shown = "" if key is None else f"authorization: Bearer {key}\r\n"
        sized = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if method == "POST" else ""
        with RawClient(self.ports[service]) as client:
            client.send(f"{method} {target} HTTP/1.1\r\nhost: x\r\n{shown}{sized}{more}\r\n{body}".encode())
            if method == "HEAD":
                return _head(client), {}, b""
            return client.reply()


def _head(client: RawClient) -> int:
    return int(client.socket.recv(65_536).split()[1])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, server: RedisServer) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("guarded")
    checkpoint = HandmadeCheckpoint(folder / "counts").create().add(*range(1, VERSION + 1))
    keys = Keys(folder / "credentials.toml")
    secrets = {name: folder / f"secret-{name}" for name in ("node", "router")}
    for path in secrets.values():
        path.write_text("s" * 32)
    keys.role("of-elsewhere", '{stores = ["elsewhere"], actions = ["point", "scan", "watch"]}')
    keys.role("watcher", '{stores = ["op0"], actions = ["watch"]}')
    keys.role("of-one-word", f'{{stores = ["op0"], actions = ["point"], key_prefix = ["{WORD}"]}}')
    for role in ("reader", "monitor", "admin", "of-elsewhere", "watcher", "of-one-word"):
        keys.add(role, role)
    keys.add("expired", "reader", "admin", expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    guarded: dict[str, dict[str, Any]] = {
        name: {"credentials_file": keys.path, "cluster_secret_file": path} for name, path in secrets.items()
    }
    server.flush()
    with (
        served_node(checkpoint.path, folder / "serve", credentials_file=keys.path) as serve,
        cluster_router(server.url, **guarded["router"]) as router,
        cluster_node(checkpoint.path, folder / "n1", server.url, node_id="n1", **guarded["node"]) as node,
    ):
        for client in (serve, router, node):
            client.key = keys["monitor"]
            wait_until(lambda client=client: not client.not_ready(), what=f"{client} is ready", limit_s=LIMIT_S)
        wait_until(lambda: shows(serve, keys) and shows(router, keys), what="answers", limit_s=LIMIT_S)
        yield World(
            keys,
            {"serve": serve.node.host.port, "node": node.port, "router": router.port},
            {
                "serve": node_app(serve.node),
                "node": node_app(node.node, node.member, cluster_routes(node.member)),
                "router": router_app(router.router),
            },
            {name: client.get("/openapi.json").body for name, client in named(serve, node, router).items()},
            node,
            router,
            secrets,
        )


def named(serve: ServedNode, node: ClusterNode, router: ClusterRouter) -> dict[str, Any]:
    return {"serve": serve, "node": node, "router": router}


def shows(client: Any, keys: Keys) -> bool:
    """Whether a reader is answered at the newest version."""
    client.key = keys["reader"]
    reply = client.get(f"/v1/stores/op0/keys/{WORD}")
    client.key = keys["monitor"]
    return bool(reply.status == 200 and reply.body["version"] == VERSION)


# ---- the matrix

UNKNOWN = {"none": None, "wrong": WRONG, "expired": "expired"}
OF_READERS = {"of-elsewhere": 404, "watcher": 403, "monitor": 403, "reader": 200}
OF_EVERYBODY = {"of-elsewhere": 200, "watcher": 200, "monitor": 200, "reader": 200}
OF_A_STORE = {"of-elsewhere": 404, "watcher": 200, "monitor": 200, "reader": 200}
OF_MONITORS = {"of-elsewhere": 403, "watcher": 403, "reader": 403, "monitor": 200, "admin": 200}
OF_ADMINS = {"of-elsewhere": 403, "watcher": 403, "reader": 403, "monitor": 403, "admin": 202}
EXPECTED = {
    "look_up": OF_READERS,
    "look_up_exactly": OF_READERS,
    "look_up_many": OF_READERS,
    "describe_hosts": OF_READERS,
    "explain_key": OF_READERS,
    "list_stores": OF_EVERYBODY,
    "openapi": OF_EVERYBODY,
    "docs": OF_EVERYBODY,
    "describe_store": OF_A_STORE,
    "is_alive": None,
    "is_ready": None,
}
"""By the name of a call: what each right gets. None: nobody needs a credential. Not here: monitors GET, admins POST."""


def calls(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Method, path, target and name of each call."""
    for path, methods in document["paths"].items():
        target = path.replace("{store}", "op0").replace("{key}", WORD).replace("{node_id}", "n1")
        for method, operation in methods.items():
            name = operation["operationId"]
            query = f"?key={quote(json.dumps([WORD]))}" if name == "look_up_exactly" else ""
            # It has no end, so its head is asked for.
            yield "HEAD" if path.endswith("/events") else method.upper(), path, target + query, name


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_every_call_answers_each_credential_as_its_grants_say(world: World, service: str) -> None:
    rows = []
    for method, path, target, name in calls(world.documents[service]):
        expected = EXPECTED.get(name, OF_ADMINS if method == "POST" else OF_MONITORS)
        row = {}
        body = json.dumps({"keys": [[WORD]]} if name == "look_up_many" else {"drain": False})
        for who, refused in (*((who, 401) for who in UNKNOWN), *(expected or OF_EVERYBODY).items()):
            key = UNKNOWN.get(who, who)
            status, headers, answer = world.ask(service, method, target, world.keys.get(key or "", key), body=body)
            wanted = 200 if expected is None else refused
            row[who] = status
            assert status == wanted, (service, method, target, who, answer)
            if method != "HEAD" and status >= 400:
                assert headers["content-type"] == "application/problem+json"
                assert ("www-authenticate" in headers) == (status == 401)
        rows.append((f"{method} {path}", row))
    sys.stdout.write(table(service, rows))
    assert len(rows) >= 11


def table(service: str, rows: Iterable[tuple[str, Mapping[str, int]]]) -> str:
    """The matrix for people."""
    columns = [*UNKNOWN, "of-elsewhere", "watcher", "reader", "monitor", "admin"]
    lines = [f"\n{service:44}" + "".join(f"{column:>13}" for column in columns)]
    lines += [f"{call:44}" + "".join(f"{row.get(column, ''):>13}" for column in columns) for call, row in rows]
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_the_document_of_a_guarded_service_asks_for_a_key_where_one_is_needed(world: World, service: str) -> None:
    document = world.documents[service]
    assert document["security"] == [{"key": []}]
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    open_calls = {
        path for path, methods in document["paths"].items() for call in methods.values() if call.get("security") == []
    }
    assert open_calls == {"/livez", "/readyz"}


# ---- nothing is left out


def routes_of(app: Any) -> Iterator[tuple[str, str]]:
    """Method and path of each route of the framework."""
    while not isinstance(app, FastAPI):
        app = getattr(app, "_http", None) or app._app
    pending = list(app.routes)
    while pending:
        route = pending.pop()
        inner = getattr(route, "original_router", None)
        if inner is not None:
            pending += inner.routes
        elif hasattr(route, "methods"):
            yield from ((method, route.path) for method in route.methods)


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_every_route_of_every_service_has_a_line_in_the_table_of_needs(world: World, service: str) -> None:
    found = set(routes_of(world.apps[service]))
    assert len(found) > 8
    for method, path in found:
        filled = path.replace("{key:path}", "a").replace("{path:path}", "a")
        for name in ("store", "node_id"):
            filled = filled.replace(f"{{{name}}}", "a")
        assert "{" not in filled, path
        assert need_of(method, filled.encode()).kind is not Kind.UNLISTED, (method, path)


# ---- hidden stores

HIDDEN, NOWHERE = "op0", "op9"
ASKED = [
    ("GET", "/v1/stores/{}", ""),
    ("GET", "/v1/stores/{}/keys/" + WORD, ""),
    ("GET", "/v1/stores/{}/keys/" + ABSENT, ""),
    ("GET", "/v1/stores/{}/keys/a/b/c", ""),
    ("GET", "/v1/stores/{}/keys", ""),
    ("GET", "/v1/stores/{}/keys/a?max_lag=none", ""),
    ("GET", "/v1/stores/{}/lookup?key=%5B%22a%22%5D", ""),
    ("GET", "/v1/stores/{}/lookup?key=%5B", ""),
    ("POST", "/v1/stores/{}/lookup", '{"keys": [["a"]]}'),
    ("POST", "/v1/stores/{}/lookup", "no JSON"),
    ("DELETE", "/v1/stores/{}/lookup", ""),
    ("GET", "/v1/stores/{}/metadata", ""),
    ("GET", "/v1/stores/{}/metadata/a", ""),
    ("GET", "/v1/stores/{}/scan", ""),
    ("GET", "/v1/stores/{}/watch/a", ""),
    ("GET", "/v1/stores/{}/anything", ""),
    ("GET", "/admin/v1/lag?store={}", ""),
    ("GET", "/admin/v1/history?store={}", ""),
    ("GET", "/internal/v1/stores/{}/key", ""),
]


@pytest.mark.parametrize("service", ["serve", "node", "router"])
@pytest.mark.parametrize("by_asgi", [False, True], ids=["directly", "by-asgi"])
def test_nobody_can_tell_a_hidden_store_from_one_that_is_not_there(world: World, service: str, by_asgi: bool) -> None:
    more = "content-length: 0\r\n" if by_asgi else ""
    for who in ("of-elsewhere", None):
        key = None if who is None else world.keys[who]
        for method, path, body in ASKED:
            answers = []
            for store in (HIDDEN, NOWHERE):
                sent = more if method == "GET" else ""
                status, headers, content = world.ask(service, method, path.format(store), key, more=sent, body=body)
                answers.append((status, headers, content.replace(store.encode(), b"STORE")))
            assert answers[0] == answers[1], (method, path, who)
            assert answers[0][0] in {401, 403, 404}
            assert WORD.encode() not in answers[0][2]


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_a_hidden_store_is_in_no_list_and_no_suggestion(world: World, service: str) -> None:
    for target in ("/v1/stores", "/v1/stores/elsewhere", "/v1/stores/elsewhere/keys/a", "/v1/stores/op/keys/a"):
        _, _, body = world.ask(service, "GET", target, world.keys["of-elsewhere"])
        assert b"op0" not in body, (target, body)
    _, _, body = world.ask(service, "GET", "/v1/stores", world.keys["reader"])
    assert b"op0" in body


def exact(key: object) -> str:
    """A key in its exact form."""
    return quote(json.dumps(key), safe="")


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_a_key_prefix_holds_for_every_way_to_ask_for_a_key(world: World, service: str) -> None:
    other, key = WORDS[1], world.keys["of-one-word"]
    asked = {
        f"/v1/stores/op0/keys/{WORD}": 200,
        f"/v1/stores/op0/keys/%{ord(WORD[0]):02x}{WORD[1:]}": 200,
        f"/v1/stores/op0/lookup?key={exact([WORD])}": 200,
        f"/v1/stores/op0/keys/{other}": 403,
        f"/v1/stores/op0/keys/{ABSENT}": 403,
        f"/v1/stores/op0/lookup?key={exact([other])}": 403,
        f"/v1/stores/op0/lookup?key={exact({'word': other})}": 403,
        f"/v1/stores/op0/lookup?key={exact([None])}": 403,
    }
    if service == "router":
        asked |= {f"/v1/stores/op0/metadata/{WORD}": 200, f"/v1/stores/op0/metadata/{other}": 403}
        asked |= {f"/v1/stores/op0/metadata?key={exact([other])}": 403}
    for target, wanted in asked.items():
        for more in ("", "content-length: 0\r\n"):
            status, _, body = world.ask(service, "GET", target, key, more=more)
            assert status == wanted, (target, body)
    batch = json.dumps({"keys": [[other], [WORD], {"word": ABSENT}, 7]})
    status, _, body = world.ask(service, "POST", "/v1/stores/op0/lookup", key, body=batch)
    results = json.loads(body)["results"]
    assert (status, [each["status"] for each in results]) == (200, [403, 200, 403, 400])
    assert results[0]["type"] == "forbidden"


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_probes_say_whether_to_everybody_and_why_to_monitors_only(world: World, service: str) -> None:
    for path in ("/livez", "/readyz"):
        for key in (None, WRONG, world.keys["reader"], world.keys["monitor"]):
            status, _, body = world.ask(service, "GET", path, key)
            assert status == 200
            assert str(world.keys.path.parent).encode() not in body


# ---- hops

HOP = encode_request(HopRequest("counting", 0, 0, 0, 1000, ()))


def hop(world: World, key: str | None, *, by_asgi: bool) -> int:
    """The status of an empty hop to the node; with `Expect` it is answered by ASGI."""
    shown = b"" if key is None else b"authorization: Bearer %b\r\n" % key.encode()
    expect = b"expect: 100-continue\r\n" if by_asgi else b""
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: %b\r\n%b%bcontent-length: %d\r\n\r\n"
    with RawClient(world.node.port) as client:
        for _ in range(2):  # the second one meets a head that was parsed before
            client.send(head % (PATH.encode(), CONTENT_TYPE, shown, expect, len(HOP)) + HOP)
            status, _, _ = client.reply()
            if status == 100:
                status, _, _ = client.reply()
    return status


@pytest.mark.parametrize("by_asgi", [False, True], ids=["directly", "by-asgi"])
def test_hops_are_for_peers_only(world: World, by_asgi: bool) -> None:
    peer = world.router.access.identity.headers["authorization"].removeprefix("Bearer ")
    keys = world.keys
    asked: dict[str | None, int] = {peer: 200, None: 401, WRONG: 401, keys["expired"]: 401}
    asked |= {keys["reader"]: 403, keys["admin"]: 403}
    assert {key: hop(world, key, by_asgi=by_asgi) for key in asked} == asked


@pytest.mark.parametrize("path", ["/internal/v1/lags", "/internal/v1/catalogue", "/internal/v1/assignment"])
def test_what_nodes_tell_each_other_is_for_peers_only(world: World, path: str) -> None:
    peer = world.router.access.identity.headers["authorization"].removeprefix("Bearer ")
    asked = {None: 401, WRONG: 401, world.keys["admin"]: 403, peer: 200}
    assert {key: world.ask("node", "GET", path, key)[0] for key in asked} == asked


def test_a_router_with_another_secret_reads_nothing_and_says_why(
    world: World, tmp_path: Path, server: RedisServer
) -> None:
    other = tmp_path / "secret"
    other.write_text("t" * 32)
    with cluster_router(server.url, cluster_secret_file=other) as router:
        wait_until(lambda: not router.not_ready() and router.living(), what="it knows the node", limit_s=LIMIT_S)
        reply = router.get(f"/v1/stores/op0/keys/{WORD}")
        assert reply.status == 503
        assert "401" in str(router.lag()["nodes"]) + str(reply.body)


def test_a_drain_goes_from_the_operator_through_the_router_to_the_node(world: World) -> None:
    path = "/admin/v1/nodes/n1/drain"
    for who, wanted in (("reader", 403), ("monitor", 403), ("admin", 202)):
        status, _, body = world.ask("router", "POST", path, world.keys[who], body='{"drain": false}')
        assert status == wanted, body


# ---- a browser

BROWSER = "accept: text/html,application/xhtml+xml\r\n"


def sign_in(world: World, key: str, *, more: str = "") -> Answer:
    """Send the form as a browser does."""
    body = f"key={quote(key)}"
    with RawClient(world.ports["router"]) as client:
        head = f"POST /admin/login HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{more}"
        client.send(f"{head}content-type: application/x-www-form-urlencoded\r\n\r\n{body}".encode())
        return client.reply()


def signed_in(world: World, who: str) -> str:
    """The header that shows the session of somebody."""
    status, headers, _ = sign_in(world, world.keys[who])
    assert (status, headers["location"]) == (303, "/admin/")
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert world.keys[who] not in cookie
    return f"cookie: {cookie}\r\n"


def test_a_browser_without_a_session_is_shown_how_to_come_in(world: World) -> None:
    status, headers, page = world.ask("router", "GET", "/admin/", None, more=BROWSER)
    assert (status, headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert b'<form method="post" action="/admin/login">' in page
    assert "default-src 'none'" in headers["content-security-policy"]
    status, headers, _ = world.ask("router", "GET", "/admin/", None)
    assert (status, headers["content-type"]) == (401, "application/problem+json")
    assert world.ask("router", "GET", "/admin/login", None)[0] == 200
    assert world.ask("node", "GET", "/admin/login", None)[0] == 404


def test_a_key_is_exchanged_for_a_session_that_may_what_the_key_may(world: World) -> None:
    session = signed_in(world, "monitor")
    status, headers, page = world.ask("router", "GET", "/admin/", None, more=session + BROWSER)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8"), page
    assert world.ask("router", "GET", "/admin/v1/lag", None, more=session)[0] == 200
    assert world.ask("router", "GET", f"/v1/stores/op0/keys/{WORD}", None, more=session)[0] == 403
    path, body = "/admin/v1/nodes/n1/drain", '{"drain": false}'
    assert world.ask("router", "POST", path, None, more=session, body=body)[0] == 403
    reader = signed_in(world, "reader")
    assert world.ask("router", "GET", f"/v1/stores/op0/keys/{WORD}", None, more=reader)[0] == 200
    status, headers, page = world.ask("router", "GET", "/admin/", None, more=reader + BROWSER)
    assert (status, headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert b"monitor" in page


def test_a_session_drains_from_pages_of_this_service_only(world: World) -> None:
    session, path, body = signed_in(world, "admin"), "/admin/v1/nodes/n1/drain", '{"drain": false}'
    for more, wanted in (
        ("", 202),
        ("origin: http://x\r\nsec-fetch-site: same-origin\r\n", 202),
        ("origin: http://evil\r\n", 403),
        ("origin: null\r\n", 403),
        ("sec-fetch-site: cross-site\r\n", 403),
    ):
        assert world.ask("router", "POST", path, None, more=session + more, body=body)[0] == wanted, more


@pytest.mark.parametrize("key", ["", "nothing", WRONG])
def test_a_wrong_key_begins_no_session(world: World, key: str) -> None:
    status, headers, page = sign_in(world, key)
    assert (status, headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert "set-cookie" not in headers
    assert b"<form" in page


def test_another_site_cannot_sign_anybody_in(world: World) -> None:
    status, headers, _ = sign_in(world, world.keys["admin"], more="origin: http://evil\r\n")
    assert (status, "set-cookie" in headers) == (403, False)


def test_a_session_ends_with_its_key_on_streams_that_are_open_too(world: World) -> None:
    world.keys.add("leaver", "monitor")
    world.router.access.look()
    session = signed_in(world, "leaver")
    assert world.ask("router", "GET", "/admin/v1/lag", None, more=session)[0] == 200
    with RawClient(world.ports["router"]) as viewer:
        viewer.send(f"GET /admin/v1/events HTTP/1.1\r\nhost: x\r\n{session}\r\n".encode())
        viewer.socket.recv(1)
        world.keys.revoke("leaver")
        world.router.access.look()
        assert world.ask("router", "GET", "/admin/v1/lag", None, more=session)[0] == 401
        read = b""
        while not read.endswith(b"0\r\n\r\n"):  # the end of a chunked answer
            part = viewer.socket.recv(65_536)
            assert part
            read += part


def test_the_secret_is_replaced_while_reads_go_on(world: World) -> None:
    """Old; old and new; new and old; new; and back: after each step of each service a read is answered."""
    old, new = "s" * 32, "n" * 32
    services = {"node": world.node.access, "router": world.router.access}
    for lines in (f"{old}\n{new}", f"{new}\n{old}", new, f"{new}\n{old}", f"{old}\n{new}", old):
        for name, access in services.items():
            written = world.secrets[name].with_suffix(".new")
            written.write_text(lines)
            written.replace(world.secrets[name])
            access.look()
            status, _, body = world.ask("router", "GET", f"/v1/stores/op0/keys/{WORD}", world.keys["reader"])
            assert status == 200, (name, lines, body)
            assert access.causes() == {}
