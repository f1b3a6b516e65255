"""Pages of other origins: whom a service names may read in a browser, on both ways into it; everybody else may not.

Every service here asks for credentials, too: browsers send preflights without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.cluster.guarded_world import ABSENT, WORD, World, guarded_world
from tests.support.services.raw_http import RawClient

APP, OTHER = "https://app.example.com", "https://app.example.com.evil.example"
ALLOWED = "access-control-allow-origin"
SERVICES = ("serve", "node", "router")
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
    [
        (LOOKUP, "GET, HEAD"),
        ("/v1/stores/op0/lookup", "GET, HEAD, POST"),
        ("/v1/stores", "GET, HEAD"),
        ("/admin/v1/lag", "GET, HEAD"),
        ("/admin/v1/drain", "GET, HEAD"),
    ],
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
    status, headers, _ = world.ask(service, "OPTIONS", target, None, more=of(APP) + asks)
    assert status >= 400
    assert not [name for name in headers if name.startswith("access-control-")]
