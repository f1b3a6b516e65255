"""The events of a node: what is reported once, and what the log keeps of what it reports."""

from __future__ import annotations

from typing import Any

from tests.support.clock import ManualClock

from understudy_node.events import NodeEvents
from understudy_shared.base.errors import UnsupportedError


class Generation:
    """As much of a generation as the log looks at."""

    def __init__(self, *tasks: str, ready: bool = True) -> None:
        self.lineage, self.layout = "l", "one layout"
        self.replicas = tasks
        self.held = dict.fromkeys(tasks)
        self.ready = ready


def log() -> Any:
    return NodeEvents(ManualClock())


def test_ready_is_reported_once_and_again_when_more_is_held() -> None:
    events = log()
    held = Generation("0_0", ready=False)
    events.note_ready(held, {})
    assert not list(events)
    held.ready = True
    for generation in (held, held, Generation("0_0"), Generation("0_0", "0_1"), Generation("0_1")):
        events.note_ready(generation, {})
    assert [event.detail for event in events] == ["1 tasks are open", "2 tasks are open"]


def test_what_is_not_supported_is_over_after_a_poll_that_reads_it_and_stays_while_it_must_be_read() -> None:
    events = log()
    events.failed(UnsupportedError("version v9"))
    events.polled(must_read=True)
    assert events.error is not None
    events.polled(must_read=False)
    assert events.error is None
