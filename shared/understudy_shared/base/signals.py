"""Signals that call a function within a block, in place of their effects."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def signals_handled(handle: Callable[[], None], *kinds: signal.Signals) -> Iterator[None]:
    """Have the signals call `handle` within the block. Only the main thread gets signals: others see no effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.signal(kind, lambda *_: handle()) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
