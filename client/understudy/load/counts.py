"""The results of a load of lookups: outcomes, latency, and the age of the answers (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from understudy_shared.telemetry.histogram import Histogram, upper_bound

PERCENTILES = (50.0, 90.0, 99.0, 99.9)

_TIME_LAG = re.compile(rb'"time_lag_ms":(\d+)')
_ROLE = re.compile(rb'"served_by":\{[^}]*"role":"(\w+)"')
_TYPE = re.compile(rb'"type":"([^"]+)"')


_BOUNDS_MS = (0.0, *(1.01**step for step in range(-1000, 1500)))
"""Each 1 % above the one before, from 50 ns to 50 minutes."""


class Measured(Histogram):
    """Measurements in ms. Percentiles are at most 1 % too high; `largest` is exact."""

    def __init__(self) -> None:
        super().__init__(_BOUNDS_MS)
        self.largest = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        super().observe(value)
        self.largest = max(self.largest, value)

    def percentile(self, percent: float) -> float | None:
        """Return the value that so many per cent do not exceed; `None` without any."""
        found = upper_bound(self.bounds, self.counts, percent / 100)
        return None if found is None else min(self.largest, found)


class LoadCounts:
    """Latency and time lag are in ms; `unknown_lags` counts answers whose time lag is null."""

    def __init__(self) -> None:
        self.latency_ms = Measured()
        self.time_lag_ms = Measured()
        self.unknown_lags = 0
        self.outcomes: Counter[str] = Counter()
        self.roles: Counter[str] = Counter()

    @property
    def are_all_answered(self) -> bool:
        """Whether every lookup was found or absent."""
        return set(self.outcomes) <= {"found", "absent"}

    def failed(self, why: str) -> None:
        """Count a lookup without a reply."""
        self.outcomes[why] += 1

    def answered(self, status: int, body: bytes, latency_ms: float) -> None:
        """Count a reply. Only a body that says so is found or absent."""
        self.latency_ms.observe(latency_ms)
        if status in {200, 404} and b'"found":' in body:
            self.outcomes["found" if status == 200 else "absent"] += 1
            lag, role = _TIME_LAG.search(body), _ROLE.search(body)
            if lag is None:
                self.unknown_lags += 1
            else:
                self.time_lag_ms.observe(int(lag.group(1)))
            if role is not None:
                self.roles[role.group(1).decode()] += 1
            return
        problem = _TYPE.search(body)
        self.outcomes[f"status {status}" if problem is None else problem.group(1).decode(errors="replace")] += 1

    def document(self, took_s: float) -> dict[str, Any]:
        """Return the report as JSON. Rates count replies."""
        return {
            "seconds": round(took_s, 3),
            "per_second": round(self.latency_ms.total / took_s, 1),
            "latency_ms": _percentiles(self.latency_ms),
            "time_lag_ms": _percentiles(self.time_lag_ms) | {"unknown": self.unknown_lags},
            "outcomes": dict(self.outcomes.most_common()),
            "roles": dict(self.roles.most_common()),
        }

    def lines(self, took_s: float) -> list[str]:
        """Return the report for people."""
        return [f"  {name:9}  {text}" for name, text in self._rows(took_s)]

    def _rows(self, took_s: float) -> Iterator[tuple[str, str]]:
        yield "lookups", f"{self.latency_ms.total:,} in {took_s:.1f} s, {self.latency_ms.total / took_s:,.0f} /s"
        yield "latency", _line(self.latency_ms)
        yield "outcomes", ", ".join(f"{what} {number:,}" for what, number in self.outcomes.most_common()) or "none"
        lag = _line(self.time_lag_ms)
        yield "time lag", f"{lag}; unknown {self.unknown_lags:,}" if self.unknown_lags else lag
        yield "served by", ", ".join(f"{role} {number:,}" for role, number in self.roles.most_common()) or "no replica"


def _percentiles(histogram: Measured) -> dict[str, float | None]:
    named: dict[str, float | None] = {f"p{percent:g}": histogram.percentile(percent) for percent in PERCENTILES}
    return {name: None if value is None else round(value, 3) for name, value in named.items()} | {
        "max": round(histogram.largest, 3) if histogram.total else None
    }


def _line(histogram: Measured) -> str:
    if not histogram.total:
        return "none"
    parts = [f"p{percent:g} {_short(histogram.percentile(percent) or 0.0)}" for percent in PERCENTILES]
    return f"{', '.join(parts)}, slowest {_short(histogram.largest)} ms"


def _short(value: float) -> str:
    """Print three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
