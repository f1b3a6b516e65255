"""The polling thread: turn after turn until it is stopped, earlier when Linux's inotify sees the logs change.

The poller keeps the end; `end.py` decides. A poll is four stats at once, whatever the number of tasks: three confirm
the end, one sees a batch in progress. A poll before the first commit also lists the commit log; a poll that finds the
end in doubt lists it once and reports the verdict. The node decides what follows from a rewound or re-created
checkpoint. A missed inotify event costs time, never correctness.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from understudy_node.checkpoint.description import CheckpointDescription
from understudy_node.checkpoint.files import CheckpointFiles, FileStat, LocalFiles, is_on_this_machine
from understudy_node.checkpoint.logs import MAX_LOG_BYTES, batch_ids, parse_query_id
from understudy_node.checkpoint.state_variables import TRANSFORM
from understudy_node.follow.end import End, Next, Probe, Verdict, advance, observe, settle
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import CorruptFileError, NotACheckpointError, VanishedError
from understudy_shared.base.words import Lineage
from understudy_shared.bus.messages import QueryProgress

MAX_STATS: Final = 64
"""Limit on the stats of one poll: with more commits at once the metadata is read without them, which costs less."""


class NewSchemas:
    """The batches that were checked. It belongs to the polling thread."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files
        self._looked_at: int | None = None
        self._must_read = False

    def were_read(self, description: CheckpointDescription) -> None:
        """Note that schemas are known as of the last commit of `description`."""
        last = description.last_commit
        self._looked_at = None if last is None else last.batch_id
        self._must_read = False

    def to_read(self, description: CheckpointDescription, batch_id: int) -> bool:
        """Whether there may be other schemas than in `description` since the last call, and once more at each commit
        until they were read.
        """
        if self._looked_at is None or batch_id <= self._looked_at:
            return False
        paths = metadata_paths(description, range(self._looked_at + 1, batch_id + 1))
        if not self._must_read and paths:
            self._must_read = len(paths) > MAX_STATS or any(self._files.stats(paths))
        self._looked_at = batch_id  # not before: where the storage failed, the same batches are checked again
        return self._must_read

    @property
    def must_read(self) -> bool:
        """Whether other schemas were found, and not read yet."""
        return self._must_read


def metadata_paths(description: CheckpointDescription, batches: range) -> list[str]:
    """List the metadata of operators that may change their state, if one of these batches is the first of a run."""
    operators = [each.operator_id for each in description.operators if each.operator_name in TRANSFORM]
    numbered = [f"state/{operator_id}/_metadata/v2/{batch}" for operator_id in operators for batch in batches]
    return numbered + [
        f"state/{each.operator_id}/_metadata/metadata" for each in description.operators if each.inferred_from
    ]


IDLE_AFTER_MS = 60_000.0
IDLE_INTERVALS = 10


class Cadence:
    """The record of all polls: the last move of the end and the last interval between moves."""

    def __init__(self) -> None:
        self._moved_ms: float | None = None
        self._interval_ms = 0.0
        self._idle = False
        self._since_ms: float | None = None
        self._batch: tuple[int, float] | None = None
        """The version before the batch that has begun, and when that was first seen."""

    def saw(self, end: End, *, now_ms: float) -> bool:
        """Record a poll; True when an idle query committed again."""
        if self._since_ms is None:
            self._since_ms = now_ms
        if end.moved_ms is None or end.moved_ms == self._moved_ms:
            return False
        if self._moved_ms is not None:
            self._interval_ms = end.moved_ms - self._moved_ms
        self._moved_ms = end.moved_ms
        resumed, self._idle = self._idle, False
        return resumed

    def saw_batch(self, after_version: int, *, has_begun: bool, now_ms: float) -> None:
        if not has_begun:
            self._batch = None
        elif self._batch is None or self._batch[0] != after_version:
            self._batch = (after_version, now_ms)

    @property
    def is_batch_in_progress(self) -> bool:
        """Whether a batch has begun that is not committed."""
        return self._batch is not None

    def progress(self, now_ms: float) -> QueryProgress:
        since_ms, batch = self.since_commit_ms(now_ms), self._batch  # read once: another thread polls
        return QueryProgress(
            since_commit_ms=None if since_ms is None else _count(since_ms),
            commit_interval_ms=_count(self._interval_ms) or None,
            batch_ms=None if batch is None else _count(now_ms - batch[1]),
        )

    def since_commit_ms(self, now_ms: float) -> float | None:
        """Return the time since this process last saw a commit arrive; None when it saw no commit arrive."""
        return None if self._moved_ms is None else now_ms - self._moved_ms

    def quiet_ms(self, now_ms: float) -> float:
        """Return the time since this process last saw a commit arrive, or since its first poll."""
        start_ms = self._moved_ms if self._moved_ms is not None else self._since_ms
        return 0.0 if start_ms is None else now_ms - start_ms

    def turned_idle(self, now_ms: float) -> bool:
        """Whether the query has just become idle; true once."""
        was, self._idle = self._idle, self._is_idle(now_ms)
        return self._idle and not was

    def state(self, now_ms: float, *, confirmed: bool) -> str:
        """Return `committing`, `idle`, `waiting` (this process saw no commit yet), or `unknown` (no confirmed end)."""
        if not confirmed:
            return "unknown"
        if self._is_idle(now_ms):
            return "idle"
        return "waiting" if self._moved_ms is None else "committing"

    def _is_idle(self, now_ms: float) -> bool:
        return self.quiet_ms(now_ms) > max(IDLE_AFTER_MS, IDLE_INTERVALS * self._interval_ms)


def _count(ms: float) -> int:
    return max(0, round(ms))


MAX_ADVANCE = 256
"""Number of commits taken in one poll, so that a long backlog never keeps the poller from reporting."""


QUICK_PROBE_MS = 100.0
"""Time of a quick probe. Its stats may be answered in any order. Within this time no query commits and purges two
batches; after a slower probe the last commit is checked again, after the absence of the next.
"""


@dataclass(frozen=True, slots=True)
class Poll:
    end: End
    verdict: Verdict
    batch_in_progress: bool


class Poller:
    """The end of one lineage; `poll()` is called by one thread, `end` is read by all."""

    def __init__(self, files: CheckpointFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self.lineage, query_id = _read_query_id(files)
        ids = batch_ids(files.list("commits") or [])
        version = max(ids, default=-1) + 1
        self.end = End(version, self._stat_commit(version), query_id)

    def poll(self) -> Poll:
        """Poll once. Errors of the storage propagate: the last confirmation only grows older.

        Readers see a new end once it is confirmed, and doubt at once; they never see the instant between finding a
        commit and looking for the next.
        """
        end, verdict, listed, in_progress = self.end, Verdict.SAME, False, False
        for _ in range(MAX_ADVANCE):
            probe, in_progress = self._probe(end)
            end, what = observe(end, probe)
            if what is Next.READ and probe.next_commit is not None:
                end = advance(end, probe.next_commit, now_ms=self._clock.monotonic_ms())
                continue
            if what is Next.WAIT or listed:
                break
            self.end, listed = end, True
            end, verdict = self._settle(end)
            if verdict not in (Verdict.SAME, Verdict.AHEAD):
                break
        self.end = end
        return Poll(end, verdict, in_progress)

    def _probe(self, end: End) -> tuple[Probe, bool]:
        """Read the files' evidence about the end, and whether the batch after it has begun."""
        started_ms = self._clock.monotonic_ms()
        version = end.version
        names = [
            f"commits/{version}",
            "metadata",
            f"offsets/{version}",
            *([f"commits/{version - 1}"] if version else []),
        ]
        next_commit, query_id, next_offsets, *last = self._files.stats(names)
        if next_commit is None and last and self._clock.monotonic_ms() - started_ms > QUICK_PROBE_MS:
            last = [self._stat_commit(version)]
        is_first_absent = version == 0 and next_commit is None
        probe = Probe(
            started_ms=started_ms,
            next_commit=next_commit,
            last_commit=last[0] if last else None,
            query_id=query_id,
            commits_without_first=is_first_absent and bool(batch_ids(self._files.list("commits") or [])),
        )
        return probe, next_offsets is not None

    def _settle(self, end: End) -> tuple[End, Verdict]:
        try:
            lineage, query_id = _read_query_id(self._files)
        except (NotACheckpointError, CorruptFileError):
            return end, settle(end, same_query=None, batch_ids=None, last_commit=None)
        names = self._files.list("commits")
        ids = None if names is None else batch_ids(names)
        last_commit = self._stat_commit(end.version)
        verdict = settle(end, same_query=lineage == self.lineage, batch_ids=ids, last_commit=last_commit)
        if verdict is Verdict.SAME:
            # Keep the last commit while its file cannot be seen, so that a different file in its place is noticed.
            return replace(end, last_commit=last_commit or end.last_commit, query_id=query_id), verdict
        if verdict is Verdict.AHEAD:
            version, moved_ms = max(ids or [], default=-1) + 1, self._clock.monotonic_ms()
            newest = self._stat_commit(version)
            ahead = replace(end, version=version, last_commit=newest, query_id=query_id, moved_ms=moved_ms, unseen=())
            return ahead, verdict
        return end, verdict

    def _stat_commit(self, version: int) -> FileStat | None:
        """Stat the commit file that makes `version`; None before the first version."""
        return None if version < 1 else self._files.stat(f"commits/{version - 1}")


def _read_query_id(files: CheckpointFiles) -> tuple[Lineage, FileStat]:
    stat = files.stat("metadata")
    try:
        if stat is None:
            raise VanishedError("there is no `metadata` file", where=files.url)
        return Lineage(parse_query_id(files.read("metadata", MAX_LOG_BYTES))), stat
    except VanishedError:
        raise NotACheckpointError(
            "the checkpoint has no `metadata` file", where=files.url, fix="Point at the query's checkpointLocation"
        ) from None


FOLDERS = ("commits", "offsets")

_CREATED, _MOVED_TO, _DELETED_SELF, _MOVED_SELF, _IGNORED = 0x100, 0x80, 0x400, 0x800, 0x8000
_ONLY_FOLDERS = 0x1000000
_MASK = _CREATED | _MOVED_TO | _DELETED_SELF | _MOVED_SELF | _ONLY_FOLDERS
_GONE = _DELETED_SELF | _MOVED_SELF | _IGNORED
_EVENT = struct.Struct("iIII")
_READ_BYTES = 65_536


class LogWatch:
    """The watch over logs: a thread that calls `changed` when a file appears in a log, hidden ones apart.

    `is_on` is whether all logs are watched. A log that is not there yet, or was deleted and made anew, is watched once
    `renew` finds it.
    """

    def __init__(self, root: Path, changed: Callable[[], None]) -> None:
        self._root = root
        self._changed = changed
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._events = self._stop_read = self._stop_write = -1
        self._watched: dict[int, str] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    @property
    def is_on(self) -> bool:
        return len(self._watched) == len(FOLDERS)

    def start(self) -> None:
        """Begin to watch. Where the system has no inotify to spare, it stays off."""
        try:
            self._events = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            log.info("the checkpoint is polled and not watched: %s", error, extra={"action": "not-watched"})
            return
        self._stop_read, self._stop_write = os.pipe()
        self.renew()
        self._thread.start()

    def stop(self, *, timeout_s: float) -> None:
        """End the thread. It calls nothing afterwards."""
        if self._thread.ident is not None:
            os.close(self._stop_write)
            self._thread.join(timeout_s)

    def renew(self) -> None:
        """Watch the logs that are not watched."""
        if self.is_on:
            return
        with self._lock:
            if self._events < 0:
                return
            for folder in set(FOLDERS) - set(self._watched.values()):
                path = os.fsencode(self._root / folder)
                watch = self._libc.inotify_add_watch(self._events, ctypes.c_char_p(path), ctypes.c_uint32(_MASK))
                if watch >= 0:
                    self._watched[watch] = folder

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in (self._events, self._stop_read):
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        try:
            while not any(descriptor == self._stop_read for descriptor, _ in poll.poll()):
                if self._take_in(os.read(self._events, _READ_BYTES)):
                    self._changed()
        except Exception:
            log.exception("the checkpoint is polled and no longer watched", extra={"action": "watch-failed"})
        finally:  # without this thread nothing is watched, and polls come often again
            with self._lock:
                events, self._events = self._events, -1
                self._watched.clear()
            os.close(events)
            os.close(self._stop_read)

    def _take_in(self, data: bytes) -> bool:
        """Whether an event calls for a poll. A folder that is gone is no longer watched."""
        is_news = False
        for watch, mask, name in events(data):
            if mask & _GONE:
                with self._lock:
                    if self._watched.pop(watch, None) is not None and not mask & _IGNORED:
                        self._libc.inotify_rm_watch(self._events, watch)
            is_news = is_news or not (mask & _IGNORED or name.startswith(b"."))  # ignored: the end of a watch
        return is_news

    def _checked(self, result: int) -> int:
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return result


def events(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield watch, mask and file name of each event that was read; an event of a folder itself has an empty name."""
    at = 0
    while at < len(data):
        watch, mask, _, size = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield watch, mask, data[at : at + size].rstrip(b"\0")
        at += size


def log_watch(files: CheckpointFiles, changed: Callable[[], None]) -> LogWatch | None:
    """Make the watch over a checkpoint's logs; None where events cannot be relied on."""
    if not isinstance(files, LocalFiles) or sys.platform != "linux":
        return None
    root = Path(files.url)
    try:
        is_local = is_on_this_machine(root)
    except OSError:
        return None
    return LogWatch(root, changed) if is_local else None


log = logging.getLogger(__name__)


class PollLoop:
    """The thread that runs `turn`, which returns the ms until the next turn. `failure` is the bug that ended it."""

    def __init__(self, turn: Callable[[], float], files: CheckpointFiles, *, floor_ms: float, clock: Clock) -> None:
        """Prepare the thread, which changes of the logs in `files` wake where they can be watched. `floor_ms`: least
        time between the beginnings of two turns.
        """
        self.failure: BaseException | None = None
        self.floor_ms = floor_ms
        self._turn = turn
        self._clock = clock
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=lambda: self._context.run(self._run), name="follow", daemon=True)
        self._context = Context()
        self._watch = log_watch(files, self.wake)

    @property
    def is_watched(self) -> bool:
        """Whether every change of the logs wakes the thread."""
        return self._watch is not None and self._watch.is_on

    def start(self) -> None:
        if self._watch is not None:
            self._watch.start()
        self._context = copy_context()  # the names in records
        self._thread.start()

    def wake(self) -> None:
        """Make the next turn come now. Called from any thread."""
        self._woken.set()

    def stop(self, *, timeout_s: float) -> None:
        """End the thread after the turn in flight."""
        self._stopping.set()
        self.wake()
        self._thread.join(timeout_s)
        if self._watch is not None:
            self._watch.stop(timeout_s=timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                began_ms = self._clock.monotonic_ms()
                self._woken.clear()
                if self._watch is not None:
                    self._watch.renew()
                if self._woken.wait(
                    self._turn() / 1000
                ):  # Woken early, it still polls no more often than the floor allows.
                    self._stopping.wait(max(0.0, began_ms + self.floor_ms - self._clock.monotonic_ms()) / 1000)
        except BaseException as error:
            self.failure = error
            log.exception("following stopped", extra={"action": "follow-failed"})
