"""Pinned versions stay readable for a while, within bounds; what was dropped is not found, and nothing else for it."""

from __future__ import annotations

import weakref

from hypothesis import given
from hypothesis import strategies as st

from understudy_node.engine.base import EmptyBase
from understudy_node.engine.view import View
from understudy_node.replica.pinned_versions import HOLD_MS, PinnedViews
from understudy_node.replica.task_view import TaskView
from understudy_shared.base.words import ApplicationId, TaskId
from understudy_shared.reads.bounds import ReadVersion

TASKS = [TaskId(ApplicationId("a"), 0, partition) for partition in range(3)]


def shown(store: View, committed_at_us: int | None = None) -> TaskView:
    return TaskView(store.version, {"default": store}, committed_at_us, None, None, frozenset(), b"", b"")


def first_version(size: int) -> View:
    """Four keys with values of so many bytes."""
    return View.of(EmptyBase(), 0).with_changes({b"%d" % key: bytes(size) for key in range(4)}, 1)


def test_a_version_is_found_by_its_number_and_commit_until_it_was_not_read_for_long() -> None:
    pinned, view = PinnedViews(), shown(first_version(10), 7)
    pinned.pin(TASKS[0], view, 0)
    assert pinned.find(TASKS[0], ReadVersion(1, 7), HOLD_MS - 1) is view
    assert pinned.find(TASKS[0], ReadVersion(1, 8), 1) is None, "it was committed again: another content"
    assert pinned.find(TASKS[0], ReadVersion(1, None), 1) is None
    assert pinned.find(TASKS[0], ReadVersion(2, 7), 1) is None
    assert pinned.find(TASKS[1], ReadVersion(1, 7), 1) is None
    pinned.pin(TASKS[0], view, HOLD_MS - 1)
    assert len(pinned) == 1, "a version is pinned once"
    assert pinned.find(TASKS[0], ReadVersion(1, of_any_commit=True), 2 * HOLD_MS - 2) is view, "held again from now on"
    assert pinned.find(TASKS[0], ReadVersion(1, 7), 3 * HOLD_MS - 2) is None
    assert len(pinned) == 0


EVENTS = st.lists(
    st.tuples(st.sampled_from(TASKS), st.sampled_from(["pin", "publish"]), st.integers(0, 400)), max_size=40
)


@given(EVENTS)
def test_the_limits_are_kept_and_what_is_found_is_what_was_pinned(events: list[tuple[TaskId, str, int]]) -> None:
    pinned = PinnedViews(max_bytes=1000, max_views=5)
    current = {task: shown(View.of(EmptyBase(), 0).with_changes({b"0": b""}, 1)) for task in TASKS}
    asked: list[tuple[TaskId, TaskView]] = []
    for now_ms, (task, what, size) in enumerate(events):
        if what == "pin":
            pinned.pin(task, current[task], now_ms)
            asked.append((task, current[task]))
        else:  # on a new base, so that nothing is shared
            version = current[task].version + 1
            store = View.of(EmptyBase(), 0).with_changes({b"0": bytes(size)}, version)
            current[task] = shown(store)
            pinned.published(task, current[task], now_ms)
        assert len(pinned) <= 5
        assert pinned.extra_bytes <= 1000
    for task, view in asked:
        assert pinned.find(task, ReadVersion(view.version, None), len(events)) in (view, None)
    if asked and asked[-1][1] is current[asked[-1][0]]:
        task, view = asked[-1]
        assert pinned.find(task, ReadVersion(view.version, None), len(events)) is view, (
            "what is shown is not dropped for its bytes"
        )


def test_a_dropped_version_is_closed_by_the_next_turn_and_not_by_the_reader_who_drops_it() -> None:
    pinned, base = PinnedViews(max_views=1), EmptyBase()
    gone = weakref.ref(base)
    pinned.pin(TASKS[0], shown(View.of(base, 1)), 0)
    del base
    pinned.pin(TASKS[0], shown(View.of(EmptyBase(), 2)), 1)
    assert (len(pinned), gone() is None) == (1, False)
    pinned.expire(2)
    assert gone() is None
