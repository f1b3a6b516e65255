"""Signals that are only counted: the code looks at the count where it is safe to leave."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager

from understudy_shared.base.signals import signals_handled


class Signals:
    """The count of requests to stop."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self) -> AbstractContextManager[None]:
        """Count SIGINT, SIGTERM and SIGHUP (the terminal was closed) in place of their effects."""
        return signals_handled(self._count, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def check(self) -> None:
        """Raise KeyboardInterrupt when asked to stop."""
        if self.count:
            raise KeyboardInterrupt

    def is_hurried(self) -> bool:
        return self.count > 1

    def _count(self) -> None:
        self.count += 1
