"""The thread that polls: turn after turn until it is stopped, earlier when it is woken.

Wakes the poll loop when the logs of a local checkpoint change, by Linux's inotify.

It only makes a poll come earlier; the poll finds out what happened. So a missed event costs time, never correctness.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import select
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from pathlib import Path

from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_shared.base.clock import Clock

FOLDERS = ("commits", "offsets")

LOCAL_FILE_SYSTEMS = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""File systems that report writes of all processes of this machine. Network file systems do not report writes of other
machines.
"""

_CREATED, _MOVED_TO, _DELETED_SELF, _MOVED_SELF, _IGNORED = 0x100, 0x80, 0x400, 0x800, 0x8000
_ONLY_FOLDERS = 0x1000000
_MASK = _CREATED | _MOVED_TO | _DELETED_SELF | _MOVED_SELF | _ONLY_FOLDERS
_GONE = _DELETED_SELF | _MOVED_SELF | _IGNORED
_EVENT = struct.Struct("iIII")
_READ_BYTES = 65_536
_ESCAPE = re.compile(r"\\([0-7]{3})")


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
        kind = file_system_of(root.resolve(), Path("/proc/self/mountinfo").read_text())
    except OSError:
        return None
    return LogWatch(root, changed) if kind in LOCAL_FILE_SYSTEMS else None


def file_system_of(path: Path, mountinfo: str) -> str | None:
    """Return the type of the file system that holds `path`, by the text of `/proc/self/mountinfo` (proc(5)), last mount
    first where several are on one place.
    """
    found: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        place = Path(_ESCAPE.sub(lambda each: chr(int(each[1], 8)), fields.split(" ")[4]))
        depth = len(place.parts)
        if path.is_relative_to(place) and (found is None or depth >= found[0]):
            found = depth, rest.split(" ")[0]
    return None if found is None else found[1]


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
