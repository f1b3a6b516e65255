"""Opens older versions of tasks from the checkpoint, next to the current ones, for readers who name a version.

A few threads do it, each version once however many ask. An opened version is pinned (`pinned_versions.py`): the next
read finds it, and it goes when it was not read for a while. A failure is remembered for a moment.

Watches of prefixes follow the same versions, each with its own prefix. So the latest changelogs are cached: storage is
asked once for all watches.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from understudy_node.checkpoint.changelog import ChangelogOperation
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.task_view import RetainedVersions, TaskView
from understudy_shared.base.errors import MissingVersionError, UnderstudyError, VanishedError
from understudy_shared.base.words import TaskId
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.bounds import ReadVersion, Refusal
from understudy_shared.reads.tokens import OtherLineageError

T = TypeVar("T")

log = logging.getLogger(__name__)

PAST_FOLDER: Final = ".past"
"""Name of their folder in the data directory: no application's folder begins with a dot."""

OPENING_THREADS: Final = 2
READING_THREADS: Final = 1
"""Threads for functions that read for one reader only; the others open versions."""

MAX_WAITING: Final = 256
"""Limit on the versions that are being opened, or wait for it: the tasks of a large query, once."""

MAX_RUNNING: Final = 8
"""Limit on the functions that read for one reader only, running or waiting."""

FAILED_FOR_S: Final = 2.0
"""Time to remember a failure: readers who ask again at once get the same answer."""

MAX_FAILED: Final = 1024

MAX_VANISHED: Final = 3
"""Number of times that a file may vanish while a version is read: Spark's clean-up removes files that are not needed,
and the next listing shows the rest.
"""

MAX_KEPT_BYTES: Final = 16 * 1024 * 1024
"""Limit on the changelogs that are kept after they were read; a larger one is read each time."""

ENTRY_BYTES: Final = 250
"""Memory overhead of a changelog's entry."""

_GONE: Final = (MissingVersionError, VanishedError)


class PastTask(Protocol):
    """A task that can read its older versions."""

    @property
    def task(self) -> TaskId: ...

    def read_past(self, wanted: ReadVersion, disk: LocalBases) -> TaskView:
        """Read a version from the checkpoint into the folder of `disk`. Raises UnderstudyError."""

    def keep_past(self, view: TaskView, disk_bytes: int) -> None:
        """Keep a version that was read, for its readers. `disk_bytes` is the size of its files."""

    def retained(self) -> RetainedVersions | None:
        """Return the versions that can be read."""


class PastRefusal(NamedTuple):
    """The reason why a version cannot be read now. With neither, too many others are being opened."""

    refusal: Refusal | None
    error: UnderstudyError | None = None
    retained: RetainedVersions | None = None
    """For a version that is gone: those that can be read."""


OPENING: Final = PastRefusal(Refusal.VERSION_OPENING)
_Key = tuple[TaskId, ReadVersion]


class StoreChanges(NamedTuple):
    """The changes of a version of a store, as its changelog says them."""

    changes: Mapping[bytes, bytes | None]
    operations: Sequence[ChangelogOperation]

    @property
    def size_bytes(self) -> int:
        """Its memory, about."""
        changes = sum(len(key) + len(value or b"") for key, value in self.changes.items())
        operations = sum(len(each.key) + len(each.value or b"") for each in self.operations)
        return changes + operations + ENTRY_BYTES * (1 + len(self.changes) + len(self.operations))


class KeptChangelogs:
    """A cache of the latest changelogs, by the file and its commit. Called by any thread."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, int], tuple[StoreChanges, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, path: str, committed_at_ns: int) -> StoreChanges | None:
        """Return a changelog that is kept."""
        with self._lock:
            found = self._kept.get((path, committed_at_ns))
            if found is None:
                return None
            self._kept.move_to_end((path, committed_at_ns))
            return found[0]

    def keep(self, path: str, committed_at_ns: int, changelog: StoreChanges) -> None:
        """Keep a changelog, in place of those that were not read for longest."""
        size = changelog.size_bytes
        if size > self._max_bytes:
            return
        with self._lock:
            _, before = self._kept.pop((path, committed_at_ns), (None, 0))
            self._kept[path, committed_at_ns] = changelog, size
            self._bytes += size - before
            while self._bytes > self._max_bytes:
                self._bytes -= self._kept.popitem(last=False)[1][1]


class PastVersions:
    """The opener of one node. `root` is a folder that belongs to it alone; without one no older version is opened.

    `on_opened` is called by a thread of its own after each attempt.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.on_opened: Callable[[], None] = _ignore
        self.opened = 0
        """Number of versions opened, ever."""
        self.changelogs = KeptChangelogs()
        self._root = root
        self._folders = count(1)
        self._lock = threading.Lock()
        self._openers = ThreadPoolExecutor(OPENING_THREADS, thread_name_prefix="past-version")
        self._readers = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="past-reader")
        self._clearing = threading.Lock()
        self._is_cleared = False
        self._waiting: set[_Key] = set()
        self._running = 0
        self._failed: OrderedDict[_Key, tuple[float, PastRefusal]] = OrderedDict()
        self._is_closed = False

    def open(self, task: PastTask, wanted: ReadVersion) -> PastRefusal:
        """Begin to open a version, unless that is in progress, or just failed. Called by any thread."""
        key = (task.task, wanted)
        with self._lock:
            failed_s, refusal = self._failed.get(key, (0.0, OPENING))
            if failed_s > time.monotonic():
                return refusal
            if self._root is None or self._is_closed:
                return PastRefusal(Refusal.VERSION_GONE)
            if key in self._waiting:
                return OPENING
            if len(self._waiting) >= MAX_WAITING:
                return PastRefusal(None)
            self._waiting.add(key)
            self._openers.submit(self._open, task, wanted)
        return OPENING

    def run(self, work: Callable[[LocalBases], T]) -> Future[T]:
        """Run a function that reads versions for one reader only. Its folder is removed afterwards.

        Raises the problem of too many such functions at once.
        """
        with self._lock:
            if self._root is None or self._is_closed:
                raise ProblemError(Problem(ProblemType.NOT_INITIALISED, "this node stops", fix="Ask another one"))
            if self._running >= MAX_RUNNING:
                what = f"{self._running} histories are being read"
                raise ProblemError(Problem(ProblemType.OVERLOADED, what, fix="Retry after a second"))
            self._running += 1
            future = self._readers.submit(self._run, work)
        future.add_done_callback(self._ran)  # also when it is cancelled before it begins
        return future

    def _ran(self, _: Future[T]) -> None:
        with self._lock:
            self._running -= 1

    def _run(self, work: Callable[[LocalBases], T]) -> T:
        folder = self._new_folder()
        disk = LocalBases(folder)
        try:
            return work(disk)
        finally:
            disk.release()
            shutil.rmtree(folder, ignore_errors=True)

    def _new_folder(self) -> Path:
        """Return a new folder. Only the threads call it: what an earlier process left may take long to remove."""
        assert self._root is not None, "nothing is opened without a folder"
        with self._clearing:
            if not self._is_cleared:
                shutil.rmtree(self._root, ignore_errors=True)
                self._is_cleared = True
        return self._root / str(next(self._folders))

    def close(self) -> None:
        """Stop opening. Versions being opened are finished, and dropped with the process."""
        with self._lock:
            self._is_closed = True
        for threads in (self._openers, self._readers):  # without the lock, which those that are cancelled take
            threads.shutdown(wait=False, cancel_futures=True)

    def _open(self, task: PastTask, wanted: ReadVersion) -> None:
        refusal: PastRefusal | None = None
        try:
            refusal = self._tried(task, wanted)
        except Exception as error:
            log.exception("an older version was not opened", extra={"action": "past-version-not-opened"})
            refusal = PastRefusal(None, UnderstudyError(f"the version was not opened: {error!r}", where=str(task.task)))
        key = (task.task, wanted)
        with self._lock:
            self._waiting.discard(key)
            self._failed.pop(key, None)
            if refusal is not None:
                self._failed[key] = (time.monotonic() + FAILED_FOR_S, refusal)
                while len(self._failed) > MAX_FAILED:
                    self._failed.popitem(last=False)
        self.on_opened()

    def _tried(self, task: PastTask, wanted: ReadVersion) -> PastRefusal | None:
        """Open a version, or return why it cannot be opened."""
        try:
            task.keep_past(*self._read(partial(task.read_past, wanted)))
        except UnderstudyError as error:
            log.info("%s", error, extra={"action": "past-version-not-opened", "task": str(task.task)})
            if isinstance(error, OtherLineageError):
                return PastRefusal(Refusal.LINEAGE_CHANGED)
            if not isinstance(error, _GONE):
                return PastRefusal(None, error)
            return PastRefusal(Refusal.VERSION_GONE, retained=task.retained())
        self.opened += 1
        return None

    def _read(self, read: Callable[[LocalBases], TaskView]) -> tuple[TaskView, int]:
        """Read a version into a new folder, which goes with its bases. Return it, and the size of its files."""
        for attempt in count(1):
            folder = self._new_folder()
            disk = LocalBases(folder)
            try:
                view = read(disk)
            except BaseException as error:
                shutil.rmtree(folder, ignore_errors=True)
                if isinstance(error, VanishedError) and attempt < MAX_VANISHED:
                    continue
                raise
            finally:
                disk.release()
            # Open files stay readable, so any base of the version may own the folder of all.
            owner = next(iter(view.stores.values())).base
            weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
            return view, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        raise AssertionError("the last attempt raises or returns")


def _ignore() -> None:
    """Do nothing: the default of `on_opened`."""
