"""What a node reports about its bus: one cause at a time, and one line in the log for each that comes."""

from __future__ import annotations

import logging

import pytest

from understudy_node.cluster.bus_state import BusState
from understudy_shared.bus.base import BusError, BusRefusedError


def test_a_bus_that_refuses_writes_is_kept_apart_from_one_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    state = BusState()
    assert state.causes == {"bus-away": "the bus is away: not connected yet"}
    state.subscribed(None)
    assert state.causes == {}
    for _ in range(3):
        state.published(BusRefusedError("READONLY", where="redis"))
        state.subscribed(None)
    assert list(state.causes) == ["bus-writes-refused"]
    assert state.causes["bus-writes-refused"].startswith("the bus refuses writes: READONLY")
    state.published(BusError("no answer", where="redis"))
    assert list(state.causes) == ["bus-away"]
    state.published(None)
    assert state.causes == {}
    assert [getattr(record, "action", "") for record in caplog.records] == [
        "bus-back",
        "bus-lost",
        "bus-lost",
        "bus-back",
    ]
