"""Applications share threads for blocking calls, and one that hangs leaves some to the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import pytest
from tests.support.spark.queries import wait_until

from understudy_shared.fleet.dispatching import APPLICATION, SharedThreads

COUNT = 8


@pytest.fixture
def threads() -> Iterator[SharedThreads]:
    pool = SharedThreads(COUNT, "test")
    yield pool
    pool.shutdown()


def submit(threads: SharedThreads, application: str, *call: Any) -> Any:
    """Submit a call in the context of an application."""

    def of_an_application() -> Any:
        APPLICATION.set(application)
        return threads.submit(*call)

    return copy_context().run(of_an_application)


def test_an_application_that_hangs_keeps_half_and_two_keep_two_thirds(threads: SharedThreads) -> None:
    answers = threading.Event()
    try:
        first = [submit(threads, "a", answers.wait) for _ in range(20)]
        wait_until(lambda: sum(each.running() for each in first) == 4, what="half of the threads")
        second = [submit(threads, "b", answers.wait) for _ in range(20)]
        wait_until(lambda: sum(each.running() for each in second) == 2, what="half of the rest")
        assert submit(threads, "c", lambda: 7).result() == 7
        assert threads.submit(lambda: 8).result() == 8, "a call of the process itself"
        assert (threads.waiting("a"), threads.waiting("b"), threads.waiting("c")) == (16, 18, 0)
        assert first[-1].cancel()
    finally:
        answers.set()
    for each in [*first[:-1], *second]:
        assert each.result() is True
    assert first[-1].cancelled()
