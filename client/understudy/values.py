"""JSON values as people read them: plain text where that is safe, JSON where it is not (pure).

Rule: what a value holds never reaches the terminal as a control sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from understudy_shared.printable import printable


def shown(value: object) -> str:
    """One value in one line. A text that could be mistaken for something else, or that is not printable, is quoted."""
    if isinstance(value, str):
        return value if value.isprintable() and value.strip() == value != "" else quoted(value)
    return quoted(value)


def quoted(value: object) -> str:
    """Compact JSON, unprintable characters escaped."""
    return printable(orjson.dumps(value).decode())


def count_text(number: int | None, unit: str) -> str:
    """`3 versions`; unknown is said, never shown as 0."""
    return "unknown" if number is None else f"{number} {unit}"


def duration_text(ms: int | None) -> str:
    """Milliseconds in a unit that fits; unknown is said."""
    if ms is None:
        return "unknown"
    if ms < 10_000:
        return f"{ms} ms"
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 3 * size_ms:
            return f"{ms / size_ms:.1f} {unit}"
    return f"{ms / 1000:.1f} s"


def number_text(number: int | None) -> str:
    """A count in a column of counts; unknown is said, never shown as 0."""
    return "unknown" if number is None else str(number)


def position_text(position: int | None, end: int | None) -> str:
    """`418/420`: where a replica is and where the query is."""
    return "-" if position is None else f"{position}/{'?' if end is None else end}"


def host_text(host: Mapping[str, Any]) -> str:
    """`host:port`."""
    return printable(f"{host['host']}:{host['port']}")


def answer_rows(answer: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """An answer as (section, field, text); a section's name stands at its first row only."""
    lag, by = answer["lag"], answer["served_by"]
    end = lag["end_offset_position"]
    age = (
        f"{answer['version']} of {'unknown' if end is None else end}, "
        f"{count_text(lag['offset_lag'], 'versions')} behind, time lag {duration_text(lag['time_lag_ms'])}"
    )
    rows = [*_section("key", answer["key"])]
    rows += _section("value", answer["value"]) if answer["found"] else [("value", "absent", "")]
    rows += _section("result", answer["result"]) if "result" in answer else []
    rows += [
        ("version", age, ""),
        ("committed", shown(answer["committed_at"]), ""),
        ("watermark", shown(answer["watermark"]), ""),
        ("served by", f"{by['host']}:{by['port']}, {by['role']}, {by['state']}, partition {answer['partition']}", ""),
    ]
    if answer.get("marks"):
        rows.append(("marks", ", ".join(map(printable, answer["marks"])), ""))
    return [*rows, ("position", shown(answer["position"]), "")]


def batch_row(answer: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """One item of a batch as (key, outcome, value, age); `key` is empty for a problem, which does not repeat it."""
    if "found" not in answer:
        return "", printable(str(answer.get("type"))), printable(str(answer.get("detail"))), ""
    lag = answer["lag"]["offset_lag"]
    age = f"version {answer['version']}, {count_text(lag, 'behind')}"
    value = quoted(answer["value"]) if answer["found"] else ""
    return quoted(answer["key"]), "found" if answer["found"] else "absent", value, age


def _section(name: str, fields: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    if not fields:
        return [(name, "(no columns)", "")]
    return [(name if index == 0 else "", printable(field), shown(fields[field])) for index, field in enumerate(fields)]
