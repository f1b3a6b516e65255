"""A node or a router answers any request with its own JSON: a value, an absent key, or a problem."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote

import orjson
from tests.fuzz.hunting import hunt, sizes
from tests.fuzz.mutation import EXTREMES, bad_bytes, bad_document
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.fake_cluster import cluster
from tests.support.cluster.fake_node import found
from tests.support.cluster.served_node import served_node

from understudy_node.http.app import create_app as node_app
from understudy_router.http.app import create_app as router_app

TARGETS = (
    b"/v1/stores/%b/keys/word-0",
    b"/v1/stores/%b/keys/word-0?max_lag=1&max_staleness_ms=9&unknown_lag=serve&wait_ms=0&require_active=true",
    b"/v1/stores/%b/lookup?key=%%5B%%22word-0%%22%%5D&min_position=us1.AAAA",
    b"/v1/stores/%b/lookup?key={%%22word%%22:%%22x%%22}",
    b"/v1/stores/%b/metadata/word-0",
    b"/v1/stores/%b/scan?limit=2&where=[[%%22count%%22,%%22>%%22,0]]&fields=count&explain=true&longs=string",
    b"/v1/stores/%b/scan?cursor=sc1.AAAA&partition=1&include_expired=false&version=1",
    b"/v1/stores/%b/count?prefix=[%%22word-0%%22]&estimate=false",
    b"/internal/v1/scan",
    b"/v1/stores/%b",
    b"/v1/stores",
    b"/admin/v1/lag?store=%b",
    b"/admin/v1/nodes/n1/drain",
    b"/internal/v1/lags",
    b"/readyz",
    b"/livez",
    b"/openapi.json",
)
SCAN = (
    b'{"application":"x","lineage":"l","store":"op0","layout":"y","partitions":2,"question":{"operation":"scan",'
    b'"where":[["count",">",0]],"prefix":["a"]},"partition":0,"version":1,"committed_at_us":null,"after":"AAA=",'
    b'"rows":5,"room_bytes":100,"is_empty":true,"is_confined":false,"budget_ms":5,"longs_as_text":false,"elements":9}'
)
BATCHES = (SCAN, b'{"keys":[["word-0"],{"word":"x"}],"bounds":{"max_lag":5,"unknown_lag":"serve"}}', b'{"drain":true}')
METHODS = ("GET",) * 8 + ("POST",) * 5 + ("HEAD", "PUT", "DELETE", "OPTIONS", "get", "X")
PIECES = b"%2F %zz % %00 // /../ ? & = %ED%A0%80 %C3 %22 + ; #".split()


def requests(store: bytes) -> Any:
    """Requests as lines: method, target, and a body after them."""

    def make(rng: Random, count: int) -> list[bytes]:
        made = []
        for _ in range(count):
            target = rng.choice(TARGETS)
            target = target % store if b"%b" in target else target.replace(b"%%", b"%")
            for _ in range(rng.choice((0, 1, 1, 2, 4))):
                at = rng.randrange(len(target) + 1)
                extreme = str(rng.choice(EXTREMES)).encode("utf-8", "surrogatepass")[:300]
                target = target[:at] + rng.choice([*PIECES, extreme]) + target[at:]
            if rng.random() < 0.2:
                target = bad_bytes(target, rng)
            body = bad_document(rng.choice(BATCHES), rng) if rng.random() < 0.7 else bad_bytes(BATCHES[0], rng)
            made.append(rng.choice(METHODS).encode() + b" " + printable(target) + b"\n" + body)
        return made

    return make


def printable(target: bytes) -> bytes:
    """A target as a client must write it: the HTTP parser lets nothing else through."""
    return b"/" + bytes(byte for byte in target if 0x21 <= byte <= 0x7E).lstrip(b"/")


async def ask(app: Any, request: bytes) -> None:
    line, _, body = request.partition(b"\n")
    method, _, target = line.partition(b" ")
    raw_path, _, query = printable(target).partition(b"#")[0].partition(b"?")
    sent: list[MutableMapping[str, Any]] = []

    unread = [body]

    async def receive() -> MutableMapping[str, Any]:
        if not unread:  # it was read, and the reader does not leave
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": unread.pop(), "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
        "method": method.decode("latin-1") or "GET",
        "raw_path": raw_path,
        "path": unquote(raw_path.decode("ascii")),
        "query_string": query,
        "headers": [(b"host", b"x"), (b"content-type", b"application/json")],
        "extensions": {},
        "state": {},
    }
    await app(scope, receive, send)
    start, *rest = sent
    assert start["type"] == "http.response.start"
    kind = dict(start["headers"]).get(b"content-type", b"")
    answer = b"".join(message.get("body", b"") for message in rest)
    if scope["method"] == "HEAD" or kind.startswith(b"text/plain; version="):
        return
    if kind.startswith((b"text/html", b"text/csv", b"text/css", b"text/javascript")) or start["status"] in {304, 307}:
        assert start["status"] in {200, 304, 307}, start  # the page, its files, and a report as CSV
        return
    assert kind in {b"application/json", b"application/problem+json"}, (start, answer[:300])
    document = orjson.loads(answer)
    if kind == b"application/problem+json":
        assert document["status"] == start["status"] != 500, document
    else:
        assert start["status"] in {200, 202, 503} or document["found"] is False, (start, document)


@sizes(20_000)
def test_whatever_is_asked_of_a_node_is_answered_in_json_of_ours(inputs: int, tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with served_node(checkpoint.path, tmp_path / "data") as served, asyncio.Runner() as runner:
        served.wait_for_version(1)
        app = node_app(served.node)

        async def attempt(batch: Sequence[bytes]) -> None:
            for request in batch:
                await ask(app, request)

        hunt("http", inputs, requests(b"op0"), lambda batch: runner.run(attempt(batch)))


@sizes(20_000)
def test_whatever_is_asked_of_a_router_is_answered_in_json_of_ours(inputs: int) -> None:
    def answer(*_: object) -> Any:
        return found("a")

    with asyncio.Runner() as runner:
        entered = cluster(answer)
        known = runner.run(entered.__aenter__())
        app = router_app(known.router)

        async def attempt(batch: Sequence[bytes]) -> None:
            await known.beat(known.nodes[0])
            for request in batch:
                await ask(app, request)
            assert known.router.dead is None

        try:
            hunt("http", inputs, requests(b"words"), lambda batch: runner.run(attempt(batch)))
        finally:
            runner.run(entered.__aexit__(None, None, None))
