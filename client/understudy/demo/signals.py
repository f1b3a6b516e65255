"""Signals that are only counted: the code looks at the count where it is safe to leave."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Signals:
    """The count of requests to stop."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count SIGINT, SIGTERM and SIGHUP (the terminal was closed) in place of their effects."""
        kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {kind: signal.signal(kind, self._count) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt when asked to stop."""
        if self.count:
            raise KeyboardInterrupt

    def is_hurried(self) -> bool:
        return self.count > 1

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
