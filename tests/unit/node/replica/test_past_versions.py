"""Older versions are opened once for all who ask, within bounds, and a failure is told to each of them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.spark.queries import wait_until

from understudy_node.engine.base import EmptyBase
from understudy_node.engine.view import View
from understudy_node.replica import past_versions
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.past_versions import OPENING, PastVersions
from understudy_node.replica.task_view import Retained, TaskView
from understudy_shared.base.errors import CorruptFileError, MissingVersionError, UnderstudyError, VanishedError
from understudy_shared.base.words import ApplicationId, TaskId
from understudy_shared.reads.bounds import ReadVersion, Refusal
from understudy_shared.reads.tokens import LineageChangedError


class Task:
    """A task whose older versions are read by a function."""

    def __init__(self, read: Callable[[ReadVersion], None] = lambda wanted: None) -> None:
        self.task = TaskId(ApplicationId("a"), 0, 0)
        self.asked: list[ReadVersion] = []
        self.kept: list[TaskView] = []
        self._read = read

    def read_past(self, wanted: ReadVersion, disk: LocalBases) -> TaskView:
        self.asked.append(wanted)
        self._read(wanted)
        store = View.of(EmptyBase(), wanted.number)
        return TaskView(wanted.number, {"default": store}, None, None, None, frozenset(), b"", b"")

    def keep_past(self, view: TaskView, disk_bytes: int) -> None:
        self.kept.append(view)

    def retained(self) -> Retained | None:
        return Retained(3, 9)


def test_a_version_is_opened_once_while_others_ask_for_it(tmp_path: Path) -> None:
    go_on = threading.Event()
    task = Task(lambda wanted: wait_for(go_on))
    with closing(PastVersions(tmp_path / "past")) as past:
        assert [past.open(task, ReadVersion(4)) for _ in range(9)] == [OPENING] * 9
        go_on.set()
        wait_until(lambda: len(task.kept) == 1, what="the version")
        assert (task.kept[0].version, task.asked, past.opened) == (4, [ReadVersion(4)], 1)


def wait_for(event: threading.Event) -> None:
    assert event.wait(10)


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (MissingVersionError("purged"), Refusal.VERSION_GONE),
        (VanishedError("purged meanwhile"), Refusal.VERSION_GONE),
        (LineageChangedError("rewound"), Refusal.LINEAGE_CHANGED),
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
        assert told.retained == (Retained(3, 9) if refusal is Refusal.VERSION_GONE else None)
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
        histories = [past.run(lambda disk: wait_for(go_on)) for _ in range(past_versions.MAX_RUNNING)]
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
