"""Keeps collections of garbage short: what stays is left out of them.

A full collection looks at every object of the process, and nothing else runs meanwhile: 100 ms in a router of 100,000
replicas. What survives one is mostly there to stay, so after a long one its survivors are left out of the next ones.
Only cycles of garbage among them are not freed then. So all are looked at again when twice as many are left out.
"""

from __future__ import annotations

import gc
import time

FULL = 2
"""The generation of a collection that looks at all objects which are not left out."""

LONG_S = 0.01
"""Length of a full collection after which its survivors are left out."""


def leave_out_what_stays() -> None:
    """Leave everything that exists now out of collections: modules, classes, the application. From now on also leave
    out what survives a long full collection.

    A full collection would look at 90,000 of the objects that exist now, about once a second under batches.
    """
    gc.collect()
    gc.freeze()
    if _survivors not in gc.callbacks:
        gc.callbacks.append(_survivors)


class SurvivorsLeftOut:
    """A callback of the collector (`gc.callbacks`)."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._whole = 0
        """Objects after the last collection that looked at all of them; 0 while the next one does."""

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Take in that a collection begins or ends."""
        if info["generation"] < FULL:
            return
        if phase == "start":
            self._began_s = time.perf_counter()
        elif time.perf_counter() - self._began_s >= LONG_S:
            self._leave_out()

    def _leave_out(self) -> None:
        gc.freeze()
        left_out = gc.get_freeze_count()
        if not self._whole:
            self._whole = left_out
        elif left_out > 2 * self._whole:
            self._whole = 0
            gc.unfreeze()


_survivors = SurvivorsLeftOut()
