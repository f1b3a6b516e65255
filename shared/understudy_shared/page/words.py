"""Formats numbers for the page, with units, and "?" for an unknown value; and curves as SVG paths, for the first paint
and for browsers without scripts (pure).

`static/words.js` has some of these functions, for curves and answers, and a browser test compares the two. So both
round with `floor(x + 0.5)`, which gives the same digits in both languages. In a curve an unknown value is a gap, never
a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

UNKNOWN = "?"

FRESH_MS = 2000

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def number(value: float | None) -> str:
    """Write a whole number with commas between thousands."""
    return UNKNOWN if value is None else f"{floor(value + 0.5):,}"


def fixed(value: float, digits: int) -> str:
    """Write a number with `digits` digits after the point."""
    scale = 10**digits
    scaled = floor(value * scale + 0.5)
    whole = f"{scaled // scale:,}"
    return f"{whole}.{scaled % scale:0{digits}d}" if digits else whole


def duration(ms: float | None) -> str:
    """Write a time in the largest unit that leaves at least two digits."""
    if ms is None:
        return UNKNOWN
    whole_ms = floor(ms + 0.5)
    if whole_ms < 1000:
        return f"{whole_ms} ms"
    if whole_ms < 10_000:
        return f"{fixed(whole_ms / 1000, 1)} s"
    if whole_ms < 120_000:
        return f"{number(whole_ms / 1000)} s"
    if whole_ms < 7_200_000:
        return f"{number(whole_ms / 60_000)} min"
    if whole_ms < 172_800_000:
        return f"{number(whole_ms / 3_600_000)} h"
    return f"{number(whole_ms / 86_400_000)} d"


def age(ms: float | None) -> str:
    """Write the age of a report, now or when it was sent. The router sends a part again only if this text changes.

    All ages below two seconds have the same text, because a heartbeat is normally up to a second old.
    """
    if ms is None:
        return UNKNOWN
    if ms < FRESH_MS:
        return "< 2 s"
    return f"{floor(ms / 1000)} s" if ms < 120_000 else duration(ms)


def size(n_bytes: float | None) -> str:
    """Write bytes, with decimal units (1 kB is 1,000 bytes)."""
    if n_bytes is None:
        return UNKNOWN
    power, scaled = 0, float(n_bytes)
    while scaled >= 1000 and power < len(_SIZES) - 1:
        power, scaled = power + 1, scaled / 1000
    return f"{fixed(scaled, 1 if power else 0)} {_SIZES[power]}"


def rate(per_s: float | None) -> str:
    """Write events per second, with a decimal if there are few."""
    if per_s is None:
        return UNKNOWN
    return number(per_s) if per_s >= 10 or per_s == 0 else fixed(per_s, 1)


def percent(value: float | None) -> str:
    """Write a share, rounded down: 99.999 % is not all."""
    if value is None:
        return UNKNOWN
    hundredths = floor(value * 100)
    return f"{hundredths // 100} %" if hundredths % 100 == 0 else f"{hundredths // 100}.{hundredths % 100:02d} %"


def count(value: float | None, noun: str, plural: str = "") -> str:
    """Write a number of things: `1 batch`, `2 batches`, `? batches`."""
    return f"{number(value)} {noun if value == 1 else plural or noun + 's'}"


def batches(value: float | None) -> str:
    """Write a lag in versions, for readers who think of batches."""
    return count(value, "batch", "batches")


Points = Sequence[float | None]

SPARK_WIDTH, SPARK_HEIGHT = 120, 20
CURVE_WIDTH, CURVE_HEIGHT = 600, 140


def top_of(*series: Points) -> float:
    """Return the highest known value of curves that share a scale; 1 if no value is above 0."""
    return max((value for points in series for value in points if value is not None), default=0) or 1


def curve_path(points: Points, top: float, width: int, height: int) -> str:
    """Return the `d` of a path: one line for each run of known values. A single value is a short dash."""
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
