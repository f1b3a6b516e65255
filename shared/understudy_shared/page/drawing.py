"""Curves and bars as SVG paths, for the first paint and for readers without scripts (pure).

An unknown value is a gap, never a zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from understudy_shared.page.words import fixed

Points = Sequence[float | None]

SPARK_WIDTH, SPARK_HEIGHT = 120, 20
CURVE_WIDTH, CURVE_HEIGHT = 600, 140


def top_of(*series: Points) -> float:
    """Return the highest known value of several curves that share a scale; 1 when no value is above 0."""
    return max((value for points in series for value in points if value is not None), default=0) or 1


def curve_path(points: Points, top: float, width: int, height: int) -> str:
    """Return the `d` of a path: one line for each run of known values. A value alone is a short dash."""
    if not points:
        return ""
    step = width / max(1, len(points) - 1)
    parts: list[str] = []
    run = 0
    for index, value in enumerate(points):
        if value is None:
            run = 0
            continue
        # Half a stroke of room above and below, so that no line is cut.
        y = 1 + (height - 2) * (1 - min(1.0, value / top))
        at = f"{fixed(index * step, 1)} {fixed(y, 1)}".replace(",", "")
        parts.append(f"L{at}" if run else f"M{at}")
        run += 1
        is_alone = run == 1 and (index + 1 == len(points) or points[index + 1] is None)
        if is_alone:
            parts.append("h1")
    return "".join(parts)


def spark_path(points: Points) -> str:
    """Return the path of a small curve beside a store."""
    return curve_path(points, top_of(points), SPARK_WIDTH, SPARK_HEIGHT)


def bar_percents(counts: Sequence[int]) -> list[int]:
    """Return the height of each bar, in percent of the highest. A count above 0 is always high enough to be seen."""
    top = max(counts, default=0)
    return [0 if not value else max(2, value * 100 // top) for value in counts]
