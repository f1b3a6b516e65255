"""What goes wrong at `understudy.testing` goes wrong as it does at a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from understudy import (
    DeadlineError,
    LineageChangedError,
    UnavailableError,
    UnderstudyError,
    UnreachableError,
)
from understudy.testing import Server, Store

SECONDS = timedelta(seconds=1)


@pytest.fixture
def server() -> Iterator[Server]:
    store = Store(key={"tail": "string"}, value={"flights": "long"}, rows=[{"tail": "N1", "flights": 1}])
    with Server({"aircraft": store, "other": store}) as running:
        yield running


def get(server: Server, store: str = "aircraft", **bounds: Any) -> Any:
    with server.client(retries=0) as client:
        return client.store(store).get("N1", **bounds)


def test_answers_are_behind_while_the_server_lags_and_say_so(server: Server) -> None:
    with server.lag(30 * SECONDS, versions=2):
        found = get(server)
        assert (found.version, found.lag.offset_lag) == (1, 2)
        assert found.lag.time_lag_ms >= 30_000
        assert server.commit({"aircraft": {"N1": {"flights": 2}}}) == 4
        found = get(server)
        assert (found.value["flights"], found.lag.offset_lag) == (1, 3)
        assert found.lag.time_lag_ms >= 30_000
        with pytest.raises(UnavailableError, match="lag-exceeded") as refused:
            get(server, max_staleness=5 * SECONDS)
        assert [each["reason"] for each in refused.value.candidates] == ["lag-exceeded"]
    found = get(server, max_staleness=5 * SECONDS)
    assert (found.version, found.value["flights"], found.lag.offset_lag) == (4, 2, 0)


def test_lag_is_unknown_while_the_storage_is_away(server: Server) -> None:
    with server.lag(None):
        with pytest.raises(UnavailableError, match="lag-unknown"):
            get(server, max_staleness=5 * SECONDS)
        assert get(server, unknown_lag="serve", max_lag=5).lag.offset_lag is None
        assert server.commit({"aircraft": {"N1": {"flights": 2}}}) == 2
        assert get(server).value["flights"] == 1
    assert get(server, max_lag=0).value["flights"] == 2


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        ("no-acceptable-replica", UnavailableError),
        ("lineage-changed", LineageChangedError),
        ("deadline", UnavailableError),
    ],
)
def test_a_problem_is_answered_until_it_ends(problem: str, error: type[Exception], server: Server) -> None:
    trouble = server.fail(problem, detail="a drill")
    for call in (get, lambda each: each.client(retries=0).stores(), _counted):
        with pytest.raises(error, match="a drill"):
            call(server)
    trouble.end()
    assert get(server).found


def _counted(server: Server) -> Any:
    return server.client(retries=0).store("aircraft").count()


def test_a_client_that_retries_gets_past_a_failure(server: Server) -> None:
    for begin in (server.fail, server.cut):
        begin(times=1)
        assert server.client().store("aircraft").get("N1").found


def test_a_slow_server_misses_the_deadline(server: Server) -> None:
    with server.slow(3600 * SECONDS):
        with pytest.raises(DeadlineError):
            get(server, timeout=0.02)

        async def read() -> Any:
            async with server.async_client() as client:
                return await client.store("aircraft").get("N1", timeout=0.02)

        with pytest.raises(DeadlineError):
            asyncio.run(read())
    with server.slow(SECONDS / 1000):
        assert get(server).found


def test_a_connection_that_is_cut_is_no_answer(server: Server) -> None:
    with server.cut(), pytest.raises(UnreachableError, match="closed the connection"):
        get(server)


def test_a_server_with_troubles_ends_at_once() -> None:
    store = Store(key={"tail": "string"}, value={"flights": "long"})
    with Server({"aircraft": store}) as server:
        server.slow(3600 * SECONDS)
        with pytest.raises(DeadlineError):
            get(server, timeout=0.02)


def test_a_trouble_may_end_after_its_server() -> None:
    store = Store(key={"tail": "string"}, value={"flights": "long"})
    with Server({"aircraft": store}) as server:
        lag = server.lag(SECONDS)
    lag.end()
    server.heal()
    for call in (server.commit, lambda: server.lag(SECONDS)):
        with pytest.raises(UnderstudyError, match="closed"):
            call()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda server: server.fail("unavailable"), "no problem 'unavailable'.*no-acceptable-replica"),
        (lambda server: server.fail(store="nope"), "no store 'nope'.*aircraft, other"),
        (lambda server: server.fail(times=0), "times=0"),
        (lambda server: server.lag(5), "age=5"),
        (lambda server: server.lag(timedelta.max), "up to a year"),
        (lambda server: server.lag(SECONDS, versions=0), "versions=0"),
        (lambda server: server.slow(0.5), "delay=0.5"),
        (lambda server: server.slow(-SECONDS), "delay="),
    ],
)
def test_a_trouble_that_cannot_be_is_refused(wrong: Callable[[Server], object], says: str, server: Server) -> None:
    with pytest.raises(UnderstudyError, match=says):
        wrong(server)
    assert get(server, max_lag=0).found
