"""The position of a client: the newest that any of its answers had (pure).

Threads and tasks share it, and it only goes forward. A position of another history takes its place: the old one means
nothing there.
"""

from __future__ import annotations

import os
import threading

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.reads.position import LineageChangedError, Position, decode_position


class SessionPosition:
    """The newest position, and its token as a server gave it."""

    def __init__(self) -> None:
        self.token: str | None = None
        self._position: Position | None = None
        self._locks: dict[int, threading.Lock] = {}

    def __repr__(self) -> str:
        return f"SessionPosition({self._position})"

    def observe(self, token: object) -> None:
        """Take the position of an answer into account. What is no position is left out."""
        if token == self.token or not isinstance(token, str):
            return
        try:
            position = decode_position(token)
        except UnderstudyError:
            return
        with self._lock():
            self._merge(position, token)

    def forget(self, token: str) -> None:
        """Drop a position of which a server says that its history is gone, unless a newer one took its place."""
        with self._lock():
            if self.token == token:
                self.token = self._position = None

    def _merge(self, position: Position, token: str) -> None:
        known = self._position
        try:
            merged = position if known is None else known.merge(position)
        except LineageChangedError:
            merged = position
        if merged is not known:
            self._position, self.token = merged, token

    def _lock(self) -> threading.Lock:
        """Return the lock of this process: that of a parent may have been taken when it forked."""
        return self._locks.setdefault(os.getpid(), threading.Lock())
