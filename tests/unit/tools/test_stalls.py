"""Only a test during which the process stood still gets a second run."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator

import pytest
from tests.support.stalls import STALL_MS, Stalls


@pytest.fixture
def stalls() -> Iterator[Stalls]:
    """A watch of its own, that looks already."""
    watch = Stalls()
    watch.start()
    time.sleep(0.1)
    yield watch
    watch.stop()


def stand_still(for_ms: float) -> None:
    """No other thread of Python runs meanwhile: the call keeps the interpreter's lock."""
    ctypes.PyDLL(None).usleep(int(for_ms * 1000))


def wait_until_seen(watch: Stalls) -> None:
    end_s = time.monotonic() + 10
    while not watch.longest_ms > STALL_MS / 2:
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_process_that_stands_still_is_noticed(stalls: Stalls) -> None:
    stalls.begin()
    stand_still(STALL_MS + 200)
    wait_until_seen(stalls)
    assert stalls.stood_still()


def test_what_was_before_a_test_says_nothing_of_it(stalls: Stalls) -> None:
    stand_still(STALL_MS + 200)
    wait_until_seen(stalls)
    stalls.begin()
    assert not stalls.stood_still()
