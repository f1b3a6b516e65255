"""`understudy bench` against a real HTTP server: what it sends, what it reports, how it exits."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs

from click.testing import CliRunner, Result
from tests.support.cluster.in_process import departing
from tests.support.services.lifespan import lifespan
from tests.support.services.reading_commands import ABSENT, FOUND, REFUSED

from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode
from understudy_shared.http.edge import Receive, Scope, Send, send_reply
from understudy_shared.server.service import Departure

KEYS = b'["here"]\n["gone"]\n'


class Lookups:
    """Answers by key. `asked` counts the keys; `hangs` are never answered, and `cuts` end the connection."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.targets: set[tuple[str, str]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        query = parse_qs(scope["query_string"].decode())
        (word,) = json.loads(query["key"][0])
        self.asked[word] += 1
        self.targets.add((scope["path"], query.get("max_lag", [""])[0]))
        if word == "hangs" and self.asked[word] > 1:
            await asyncio.sleep(3600)
        refused = word == "refused" and self.asked[word] > 1
        status, body = (503, REFUSED) if refused else (404, ABSENT) if word == "gone" else (200, FOUND)
        await send_reply(send, status, body, b"application/problem+json" if refused else b"application/json")


@contextmanager
def lookups() -> Iterator[tuple[Lookups, str]]:
    async def announce() -> None: ...

    app, listener = Lookups(), socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with departing(app, listener, Departure(announce, 0)):
        yield app, f"http://127.0.0.1:{port}"


def bench(url: str, *options: str, keys: bytes = KEYS, seconds: str = "0.5") -> Result:
    arguments = ["bench", "aircraft", "--keys", "-", "--seconds", seconds, "--connections", "4", "--url", url, *options]
    result = CliRunner().invoke(cli, arguments, input=keys)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def test_every_key_is_asked_in_turns_under_the_bounds_that_were_given() -> None:
    with lookups() as (app, url):
        result = bench(f"{url}/understudy/", "--max-lag", "3", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == ExitCode.OK
    assert app.targets == {("/understudy/v1/stores/aircraft/lookup", "3")}
    assert abs(app.asked["here"] - app.asked["gone"]) <= 6
    assert report["outcomes"].keys() == {"found", "absent"}
    # One was asked before the load, and each connection may have one in flight at the end.
    assert 0 <= app.asked.total() - 1 - sum(report["outcomes"].values()) <= 4
    assert report["roles"] == {"active": sum(report["outcomes"].values())}
    assert report["time_lag_ms"]["p50"] == 1200
    assert report["latency_ms"]["p50"] <= report["latency_ms"]["max"]
