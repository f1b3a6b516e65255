"""The end of a planner's process by SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable


def remove_spool_on_sigterm(remove_spool: Callable[[], None]) -> None:
    """Call `remove_spool` on SIGTERM, by which Spark ends planners (`PythonWorkerFactory.stopWorker`), and then exit.

    Exit with `os._exit`: nothing waits for this process, so Python's orderly exit is skipped. The handler is installed
    only in a main thread without one: other processes that use this source keep their own handling.
    """

    def end(number: int, _: object) -> None:
        try:
            remove_spool()
        finally:
            os._exit(128 + number)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
