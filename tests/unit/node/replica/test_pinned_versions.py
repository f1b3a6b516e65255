"""Older versions: opened once for all who ask, pinned for a while and leased, within bounds."""

from __future__ import annotations

import shutil
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.queries import wait_until

from understudy_node.engine.base import EmptyBase
from understudy_node.engine.view import StateView
from understudy_node.replica import past_versions
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.past_versions import OPENING, PastVersions
from understudy_node.replica.pinned_versions import HOLD_MS, LeaseTable, PinnedViews, leased_version
from understudy_node.replica.task_view import RetainedVersions, TaskView
from understudy_shared.base.errors import CorruptFileError, MissingVersionError, UnderstudyError, VanishedError
from understudy_shared.base.words import ApplicationId, Lineage, TaskId
from understudy_shared.http.problems import ProblemError
from understudy_shared.reads.bounds import ReadVersion, Refusal
from understudy_shared.reads.tokens import OtherLineageError, Position, SnapshotLease

TASKS = [TaskId(ApplicationId("a"), 0, partition) for partition in range(3)]


def shown(store: StateView, committed_at_us: int | None = None) -> TaskView:
    return TaskView(store.version, {"default": store}, committed_at_us, None, None, frozenset(), b"", b"")


def first_version(size: int) -> StateView:
    """Four keys with values of so many bytes."""
    return StateView.of(EmptyBase(), 0).with_changes({b"%d" % key: bytes(size) for key in range(4)}, 1)


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
    current = {task: shown(StateView.of(EmptyBase(), 0).with_changes({b"0": b""}, 1)) for task in TASKS}
    asked: list[tuple[TaskId, TaskView]] = []
    for now_ms, (task, what, size) in enumerate(events):
        if what == "pin":
            pinned.pin(task, current[task], now_ms)
            asked.append((task, current[task]))
        else:  # on a new base, so that nothing is shared
            version = current[task].version + 1
            store = StateView.of(EmptyBase(), 0).with_changes({b"0": bytes(size)}, version)
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
    pinned.pin(TASKS[0], shown(StateView.of(base, 1)), 0)
    del base
    pinned.pin(TASKS[0], shown(StateView.of(EmptyBase(), 2)), 1)
    assert (len(pinned), gone() is None) == (1, False)
    pinned.expire(2)
    assert gone() is None


TTL_S = 60
TTL_MS = 1000 * TTL_S


def lease(version: int, lease_id: str = "a", committed_at_us: int | None = 7) -> SnapshotLease:
    position = Position(ApplicationId("a"), Lineage("l"), version, committed_at_us)
    return SnapshotLease(position, lease_id, TTL_S)


@given(
    st.lists(
        st.tuples(st.sampled_from(["grant", "renew", "release", "wait"]), st.integers(0, 5), st.integers(1, 4)),
        max_size=40,
    )
)
def test_leases_are_within_the_limits_and_each_version_is_kept_until_its_last_lease_ends(
    events: Sequence[tuple[str, int, int]],
) -> None:
    """Q65, Q66."""
    leases = LeaseTable(max_leases=4, max_versions=3)
    ends: dict[str, tuple[int, float]] = {}
    now_ms = 0.0
    for what, number, version in events:
        name = f"{number}-{version}"
        if what == "wait":
            now_ms += number * TTL_MS / 4
        ends = {each: (kept, until) for each, (kept, until) in ends.items() if until > now_ms}
        versions = {kept for kept, _ in ends.values()}
        if what == "grant":  # a router may ask twice
            has_room = name in ends or (len(ends) < 4 and (version in versions or len(versions) < 3))
            if has_room:
                leases.grant(lease(version, name), now_ms=now_ms)
                ends[name] = version, now_ms + TTL_MS
            else:
                with pytest.raises(ProblemError) as refused:
                    leases.grant(lease(version, name), now_ms=now_ms)
                assert 1 <= refused.value.problem.retry_after_s <= TTL_S
        elif what == "renew":
            came_back = leases.renew(lease(version, name), now_ms=now_ms)
            if name in ends:
                assert not came_back
                if ends[name][1] - now_ms <= TTL_MS * 2 / 3:
                    ends[name] = version, now_ms + TTL_MS
            else:
                assert came_back == (len(ends) < 2 and (version in versions or not versions)), "half of the room"
                if came_back:
                    ends[name] = version, now_ms + TTL_MS
        elif what == "release":
            assert leases.release(name) == (ends.pop(name, None) is not None)
        leases.expire(now_ms)
        assert len(leases) == len(ends)
        latest = {kept: max(until for of, until in ends.values() if of == kept) for kept, _ in ends.values()}
        assert {version.number: until for version, until in leases.until_ms.items()} == latest


def test_a_token_with_the_id_of_another_lease_renews_nothing() -> None:
    leases = LeaseTable()
    leases.grant(lease(3), now_ms=0)
    assert not leases.renew(lease(9), now_ms=TTL_MS - 1)
    assert leases.held(TTL_MS) == []
    assert leases.until_ms == {}


def test_a_leased_version_outlives_the_usual_time_and_goes_with_its_lease() -> None:
    leases = LeaseTable()
    pinned, old = PinnedViews(leases), shown(StateView.of(EmptyBase(), 1), 7)
    leases.grant(lease(1), now_ms=0)
    pinned.pin(TASKS[0], old, 0)
    pinned.expire(HOLD_MS + 1)
    assert pinned.find(TASKS[0], ReadVersion(1, 7), HOLD_MS + 1) is old
    pinned.expire(2 * HOLD_MS + 1)
    leases.expire(TTL_MS)
    pinned.expire(2 * HOLD_MS + 2)
    assert len(pinned) == 0


def test_a_replica_that_shows_a_leased_version_later_keeps_it_as_it_passes() -> None:
    """Q68: it was behind when the version was leased."""
    leases = LeaseTable()
    pinned = PinnedViews(leases)
    leases.grant(lease(2), now_ms=0)
    for version in (1, 2, 3):
        pinned.published(TASKS[0], shown(StateView.of(EmptyBase(), version), 7), version)
    found = pinned.find(TASKS[0], leased_version(lease(2)), HOLD_MS + 9)
    assert (len(pinned), found is not None and found.version) == (1, 2)


def test_above_a_limit_leased_versions_go_last() -> None:
    leases = LeaseTable()
    pinned = PinnedViews(leases, max_disk_bytes=100, max_views=2)
    leases.grant(lease(1), now_ms=0)
    for now_ms, version in enumerate((1, 2, 3, 4)):
        pinned.pin(TASKS[0], shown(StateView.of(EmptyBase(), version), 7), now_ms, disk_bytes=40)
    assert [pinned.find(TASKS[0], ReadVersion(each, 7), 5) is not None for each in (1, 2, 3, 4)] == [
        True,
        False,
        False,
        True,
    ]
    assert sum(each.disk_bytes for each in pinned.by_version().values()) <= 100


@pytest.mark.parametrize("held", [1, 10, 50])
@given(per_version=st.integers(1, 30), keys=st.integers(200, 400))
def test_held_versions_cost_what_the_model_says(held: int, per_version: int, keys: int) -> None:
    """Q70: one costs at most one overlay more, whatever its age; each further one no more than what its batches and
    the merges of tiers left behind: 1.5 times the changes of all, and one overlay.
    """
    leases = LeaseTable()
    pinned = PinnedViews(leases, max_bytes=1 << 40)
    store = StateView.of(EmptyBase(), 0).with_changes({b"%06d" % key: bytes(20) for key in range(keys)}, 1)
    one_change = -(-store.overlay_bytes // keys)
    for version in range(2, 62):
        changed = {b"%06d" % (version * 31 * (each + 1) % keys): bytes(20) for each in range(per_version)}
        store = store.with_changes(changed, version)
        if version < 2 + held:
            leases.grant(lease(version, str(version)), now_ms=0)
            pinned.pin(TASKS[0], shown(store, 7), 0)
        pinned.published(TASKS[0], shown(store, 7), 0)
    assert len(pinned) == held
    changes = held * per_version * one_change
    assert pinned.extra_bytes <= 1.5 * (store.overlay_bytes + changes * tiers_of_changes(held))


def tiers_of_changes(held: int) -> int:
    """How often a change is in a tier at most, while tiers are merged by doubling."""
    return max(1, held.bit_length())


class Task:
    """A task whose older versions are read by a function."""

    def __init__(self, read: Callable[[ReadVersion], object] = lambda wanted: None) -> None:
        self.task = TaskId(ApplicationId("a"), 0, 0)
        self.asked: list[ReadVersion] = []
        self.kept: list[TaskView] = []
        self._read = read

    def read_past(self, wanted: ReadVersion, disk: LocalBases) -> TaskView:
        self.asked.append(wanted)
        self._read(wanted)
        store = StateView.of(EmptyBase(), wanted.number)
        return TaskView(wanted.number, {"default": store}, None, None, None, frozenset(), b"", b"")

    def keep_past(self, view: TaskView, disk_bytes: int) -> None:
        self.kept.append(view)

    def retained(self) -> RetainedVersions | None:
        return RetainedVersions(3, 9)


def test_a_version_is_opened_once_while_others_ask_for_it(tmp_path: Path) -> None:
    go_on = threading.Event()
    task = Task(lambda wanted: go_on.wait(10))
    with closing(PastVersions(tmp_path / "past")) as past:
        assert [past.open(task, ReadVersion(4)) for _ in range(9)] == [OPENING] * 9
        go_on.set()
        wait_until(lambda: len(task.kept) == 1, what="the version")
        assert (task.kept[0].version, task.asked, past.opened) == (4, [ReadVersion(4)], 1)


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (MissingVersionError("purged"), Refusal.VERSION_GONE),
        (VanishedError("purged meanwhile"), Refusal.VERSION_GONE),
        (OtherLineageError("rewound"), Refusal.LINEAGE_CHANGED),
        (CorruptFileError("cut"), None),
    ],
)
def test_why_a_version_cannot_be_read_is_told_until_it_is_tried_again(
    error: UnderstudyError, refusal: Refusal | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(wanted: ReadVersion) -> None:
        raise error

    task, wanted = Task(fail), ReadVersion(2)
    with closing(PastVersions(tmp_path / "past")) as past:
        past.open(task, wanted)
        wait_until(lambda: past.open(task, wanted) != OPENING, what="the failure")
        tries = len(task.asked)
        told = past.open(task, wanted)
        assert told.refusal is refusal
        assert told.error is (error if refusal is None else None)
        assert told.retained == (RetainedVersions(3, 9) if refusal is Refusal.VERSION_GONE else None)
        assert tries == len(task.asked) == (past_versions.MAX_VANISHED if isinstance(error, VanishedError) else 1)
        assert not list((tmp_path / "past").iterdir()), "a failure leaves no files"
        monkeypatch.setattr(past_versions, "FAILED_FOR_S", 0.0)
        past._failed.clear()
        past.open(task, wanted)
        wait_until(lambda: len(task.asked) > tries, what="another try")


def test_histories_leave_the_opening_of_versions_its_threads(tmp_path: Path) -> None:
    go_on = threading.Event()
    task = Task()
    with closing(PastVersions(tmp_path / "past")) as past:
        histories = [past.run(lambda disk: go_on.wait(10)) for _ in range(past_versions.MAX_RUNNING)]
        past.open(task, ReadVersion(4))
        wait_until(lambda: len(task.kept) == 1, what="the version")
        go_on.set()
        for history in histories:
            history.result(10)


def test_what_an_earlier_process_left_is_removed_by_a_thread_and_not_by_the_one_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removers: list[tuple[Path, threading.Thread]] = []
    (tmp_path / "past" / "1").mkdir(parents=True)

    def removed(path: Path, *, ignore_errors: bool) -> None:
        removers.append((path, threading.current_thread()))
        really_remove(path, ignore_errors=ignore_errors)

    really_remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", removed)
    task = Task()
    with closing(PastVersions(tmp_path / "past")) as past:
        past.open(task, ReadVersion(4))
        past.open(task, ReadVersion(5))
        wait_until(lambda: len(task.kept) == 2, what="the versions")
    assert removers[0][0] == tmp_path / "past"
    assert [path for path, _ in removers].count(tmp_path / "past") == 1
    assert threading.current_thread() not in [thread for _, thread in removers]
