"""Detection of a replica that cannot advance: it is behind a known end, and none of its steps helps (pure; time is
passed in).

A replica that fails again and again is stalled after FAILING_RETRIES retries without a new version. One that does not
fail is stalled when none of its steps ends for SILENT_MS: a restore that goes on step by step is not, nor is one that
waits for its turn. Where the end is not known, the replica reports unknown lag instead.
"""

from __future__ import annotations

FAILING_RETRIES = 10
"""Number of retries until a failing replica is stalled: storage that hiccups, and files that Spark replaces just then,
are there again after one or two.
"""

SILENT_MS = 60_000.0
"""Time without the end of a step until a replica is stalled: far more than reading one changelog, or fetching one file,
takes.
"""


class Stall:
    """The steps and failures of one replica. `is_now`: whether it was stalled at the last look."""

    def __init__(self) -> None:
        self.is_now = False
        self._version: int | None = None
        self._steps = 0
        self._since_ms: float | None = None

    def look(
        self, *, lags: bool, version: int | None, steps: int, fails: bool, waits: bool, now_ms: float, retry_ms: float
    ) -> None:
        """Judge again. `lags`: it is behind an end that is known. `waits`: others may get their steps before it."""
        moved = version != self._version or (steps != self._steps and not fails)
        if not lags or moved or self._since_ms is None:
            self._since_ms, self.is_now = now_ms, False
        elif fails or self.is_now:
            self.is_now = self.is_now or now_ms - self._since_ms >= FAILING_RETRIES * retry_ms
        else:
            self.is_now = not waits and now_ms - self._since_ms >= SILENT_MS
        self._version, self._steps = version, steps
