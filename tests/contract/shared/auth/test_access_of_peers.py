"""Services know each other by the cluster's secret, and browsers by a session: nobody else passes for either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.cluster.guarded_world import LIMIT_S, WORD, Answer, World, guarded_world
from tests.support.cluster.in_process import cluster_router
from tests.support.services.guarded import WRONG, peer_key
from tests.support.services.raw_http import RawClient
from tests.support.spark.queries import wait_until

from understudy_shared.questions.lookup.hop import CONTENT_TYPE, PATH, HopRequest, encode_request


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, server: RedisServer) -> Iterator[World]:
    with guarded_world(tmp_path_factory.mktemp("guarded"), server) as found:
        yield found


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
    peer = peer_key(world.router.access.identity)
    keys = world.keys
    asked: dict[str | None, int] = {peer: 200, None: 401, WRONG: 401, keys["expired"]: 401}
    asked |= {keys["reader"]: 403, keys["admin"]: 403}
    assert {key: hop(world, key, by_asgi=by_asgi) for key in asked} == asked


def test_a_router_with_another_secret_reads_nothing_and_says_why(
    world: World, tmp_path: Path, server: RedisServer
) -> None:
    other = tmp_path / "secret"
    other.write_text("t" * 32)
    with cluster_router(server.url, cluster_secret_file=other) as router:
        wait_until(lambda: not router.not_ready() and bool(router.living()), what="it knows the node", limit_s=LIMIT_S)
        reply = router.get(f"/v1/stores/op0/keys/{WORD}")
        assert reply.status == 503
        assert "401" in str(router.lag()["nodes"]) + str(reply.body)


def test_a_drain_goes_from_the_operator_through_the_router_to_the_node_and_both_say_who_asked(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/admin/v1/nodes/n1/drain"
    for who, wanted in (("reader", 403), ("monitor", 403), ("admin", 202)):
        status, _, body = world.ask("router", "POST", path, world.keys[who], body='{"drain": false}')
        assert status == wanted, body
    told = [
        vars(record) for record in caplog.records if vars(record).get("action") in {"audit-change", "audit-refused"}
    ]
    assert [(line["principal"], line["route"], line["outcome"], line.get("drain")) for line in told] == [
        ("reader", path, "refused", None),
        ("monitor", path, "refused", None),
        ("peer", "/admin/v1/drain", "202", False),
        ("admin", path, "202", False),
    ]


# ---- a browser

BROWSER = "accept: text/html,application/xhtml+xml\r\n"


def sign_in(world: World, key: str, *, more: str = "") -> Answer:
    body = f"key={quote(key)}"
    with RawClient(world.ports["router"]) as client:
        head = f"POST /admin/login HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{more}"
        client.send(f"{head}content-type: application/x-www-form-urlencoded\r\n\r\n{body}".encode())
        return client.reply()


def signed_in(world: World, who: str) -> str:
    status, headers, _ = sign_in(world, world.keys[who])
    assert (status, headers["location"]) == (303, "../admin/")
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert world.keys[who] not in cookie
    return f"cookie: {cookie}\r\n"


def test_a_browser_without_a_session_is_shown_how_to_come_in(world: World) -> None:
    status, headers, page = world.ask("router", "GET", "/admin/", None, more=BROWSER)
    assert (status, headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert b'<form method="post" action="../admin/login">' in page
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


def test_another_site_cannot_sign_anybody_in(world: World) -> None:
    status, headers, _ = sign_in(world, world.keys["admin"], more="origin: http://evil\r\n")
    assert (status, "set-cookie" in headers) == (403, False)


@pytest.mark.parametrize("stream", ["/admin/v1/events", "/admin/changes"])
def test_a_session_ends_with_its_key_on_streams_that_are_open_too(world: World, stream: str) -> None:
    world.keys.add("leaver", "monitor")
    world.router.access.look()
    session = signed_in(world, "leaver")
    assert world.ask("router", "GET", "/admin/v1/lag", None, more=session)[0] == 200
    with RawClient(world.ports["router"]) as viewer:
        viewer.send(f"GET {stream} HTTP/1.1\r\nhost: x\r\n{session}\r\n".encode())
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
