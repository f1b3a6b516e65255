"""Which faults were active when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.system.proof.fault_windows import FaultWindows
from tests.system.proof.history import FaultEvent

EVENTS = [
    FaultEvent(100, "redis-down", "redis", "injected"),
    FaultEvent(150, "kill-active", "node-1", "injected"),
    FaultEvent(180, "kill-active", "node-1", "healed"),
    FaultEvent(200, "disk-full", "node-2", "skipped", "no mounts here"),
    FaultEvent(300, "redis-down", "redis", "healed"),
    FaultEvent(500, "kill-active", "node-1", "injected"),
]


def names(windows: FaultWindows, from_ms: float, until_ms: float) -> list[str]:
    return [window.fault for window in windows.during(from_ms, until_ms)]


def test_a_fault_is_active_from_its_injection_until_it_is_healed_and_settled() -> None:
    windows = FaultWindows(EVENTS, settle_ms=10)
    assert names(windows, 0, 99) == []
    assert names(windows, 100, 110) == ["redis-down"]
    assert names(windows, 120, 160) == ["redis-down", "kill-active"]
    assert names(windows, 189, 189) == ["redis-down", "kill-active"]
    assert names(windows, 191, 192) == ["redis-down"]
    assert names(windows, 310, 499) == []


@given(
    spans=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=8),
    began=st.integers(-5, 80),
    took=st.integers(0, 30),
)
def test_what_was_active_during_a_read_is_what_any_instant_of_it_met(
    spans: list[tuple[int, int]], began: int, took: int
) -> None:
    events = []
    for number, (from_ms, lasts_ms) in enumerate(spans):
        events.append(FaultEvent(from_ms, "cut-node", f"node-{number}", "injected"))
        events.append(FaultEvent(from_ms + lasts_ms, "cut-node", f"node-{number}", "healed"))
    met = {
        f"node-{number}"
        for number, (from_ms, lasts_ms) in enumerate(spans)
        if from_ms <= began + took and began < from_ms + lasts_ms + 3
    }
    active = FaultWindows(events, settle_ms=3).during(began, began + took)
    assert {window.target for window in active} == met
