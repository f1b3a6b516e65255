"""`understudy bench` against a real HTTP server: what it sends, what it reports, how it exits. Percentiles are true,
ages are never guessed, and nothing grows.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster.in_process import departing
from tests.support.services.lifespan import lifespan
from tests.support.services.reading_commands import ABSENT, FOUND, REFUSED, UNKNOWN_LAG

from understudy.commands.benchmarking import LoadCounts, Measured
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


@given(values=st.lists(st.just(0.0) | st.floats(1e-4, 1e6), min_size=1, max_size=200), percent=st.floats(0.1, 100))
def test_a_percentile_is_not_exceeded_by_so_many_and_is_one_per_cent_too_high_at_most(
    values: list[float], percent: float
) -> None:
    histogram = Measured()
    for value in values:
        histogram.observe(value)
    found = histogram.percentile(percent)
    assert found is not None
    assert sum(value <= found * (1 + 1e-9) for value in values) >= len(values) * percent / 100 - 1e-6
    below = [value for value in values if value < found / 1.0101]
    assert len(below) <= len(values) * percent / 100 or found == 0
    assert histogram.largest == max(values)


def test_a_histogram_of_many_values_is_as_small_as_one_of_few() -> None:
    histogram = Measured()
    for number in range(200_000):
        histogram.observe(0.01 + number / 100)
    assert len(histogram.counts) == len(Measured().counts) < 2_600


@pytest.mark.parametrize(
    ("status", "body", "outcome", "lags", "unknown"),
    [
        (200, FOUND, "found", 1, 0),
        (404, ABSENT, "absent", 1, 0),
        (200, UNKNOWN_LAG, "found", 0, 1),
        (503, REFUSED, "no-acceptable-replica", 0, 0),
        (404, b"<html>", "status 404", 0, 0),
    ],
    ids=["found", "absent", "unknown lag", "refused", "another server"],
)
def test_each_reply_counts_for_what_it_says(status: int, body: bytes, outcome: str, lags: int, unknown: int) -> None:
    counts = LoadCounts()
    counts.answered(status, body, 1.5)
    assert counts.outcomes == {outcome: 1}
    assert (counts.time_lag_ms.total, counts.unknown_lags) == (lags, unknown)
    assert counts.roles == ({"active": 1} if lags or unknown else {})
    assert counts.are_all_answered is (outcome in {"found", "absent"})
