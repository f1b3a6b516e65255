"""JSON values as people read them: plain text where that is safe, JSON where it is not (pure).

Rule: what a value holds never reaches the terminal as a control sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from understudy_shared.base.texts import duration_text as known_duration_text
from understudy_shared.base.texts import printable

_LISTS = ("sessions", "rows", "values", "entries", "timers")
"""Members of an answer that hold all elements of a key."""

_MOMENTS = {"expires_at": "expires", "expired": "expired", "timeout_at": "times out"}
"""Members of an answer beside what is stored, and their names for people."""


def shown(value: object) -> str:
    """Print a value in one line; quote unprintable texts, and those that look like another type."""
    if isinstance(value, str):
        return value if value.isprintable() and value.strip() == value != "" else quoted(value)
    return quoted(value)


def quoted(value: object) -> str:
    """Print compact JSON, unprintable characters escaped."""
    return printable(orjson.dumps(value).decode())


def count_text(number: int | None, unit: str) -> str:
    """Print `3 versions`; an unknown number is `unknown`, never 0."""
    return "unknown" if number is None else f"{number} {unit}"


def duration_text(ms: int | None) -> str:
    """Print milliseconds in a unit that fits; an unknown number is `unknown`."""
    return "unknown" if ms is None else known_duration_text(ms)


def number_text(number: int | None) -> str:
    """Print a count in a column of counts; an unknown number is `unknown`, never 0."""
    return "unknown" if number is None else str(number)


def position_text(position: int | None, end: int | None) -> str:
    """Print `418/420`: where a replica is and where the query is."""
    return "-" if position is None else f"{position}/{'?' if end is None else end}"


def host_text(host: Mapping[str, Any]) -> str:
    """Print `host:port`."""
    return printable(f"{host['host']}:{host['port']}")


def answer_rows(answer: Mapping[str, Any], *, raw: bool) -> list[tuple[str, str, str]]:
    """Return an answer as (section, field, text); a section's name stands at its first row only.

    The result comes first. The value that Spark stores is shown when there is no result, or when `raw` asks for it.
    """
    lag, by = answer["lag"], answer["served_by"]
    end = lag["end_offset_position"]
    age = (
        f"{answer['version']} of {'unknown' if end is None else end}, "
        f"{count_text(lag['offset_lag'], 'versions')} behind, time lag {duration_text(lag['time_lag_ms'])}"
    )
    rows = [*_section("key", answer["key"])]
    rows += _found_rows(answer, raw=raw) if answer["found"] else [("value", "absent", ""), *_moment_rows(answer)]
    rows += [
        ("version", age, ""),
        ("committed", shown(answer["committed_at"]), ""),
        ("watermark", shown(answer["watermark"]), ""),
        ("served by", f"{by['host']}:{by['port']}, {by['role']}, {by['state']}, {_partition(answer)}", ""),
    ]
    if answer.get("marks"):
        rows.append(("marks", ", ".join(map(printable, answer["marks"])), ""))
    return [*rows, ("position", shown(answer["position"]), "")]


def _partition(answer: Mapping[str, Any]) -> str:
    return "all partitions asked" if answer["partition"] is None else f"partition {answer['partition']}"


def batch_row(answer: Mapping[str, Any], *, raw: bool) -> tuple[str, ...]:
    """Return one item of a batch as (key, outcome, result, age), with the stored value before the age when `raw` asks
    for it.

    `key` is empty for a problem, which does not repeat it.
    """
    if "found" not in answer:
        cells = ("", printable(str(answer.get("type"))), printable(str(answer.get("detail"))))
        return (*cells, "", "") if raw else (*cells, "")
    lag = answer["lag"]["offset_lag"]
    age = f"version {answer['version']}, {count_text(lag, 'behind')}"
    is_found = answer["found"]
    shown_first = _found_cell(answer) if is_found else ""
    stored = (quoted(answer["value"]) if "value" in answer else "",) if raw else ()
    return quoted(answer["key"]), "found" if is_found else "absent", shown_first, *stored, age


def _found_rows(answer: Mapping[str, Any], *, raw: bool) -> list[tuple[str, str, str]]:
    """Return the found members, by the kind of the store."""
    rows = []
    if "result" in answer:
        rows += _section("result", answer["result"])
    if "value" in answer and (raw or "result" not in answer):
        rows += _section("value", answer["value"])
    for member in _LISTS:
        rows += [
            (member if index == 0 else "", str(index + 1), quoted(each))
            for index, each in enumerate(answer.get(member, ()))
        ]
    if answer.get("next_cursor") is not None:
        rows.append(("more", f"--cursor {shown(answer['next_cursor'])}", ""))
    return [*rows, *_moment_rows(answer)]


def _moment_rows(answer: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(name, shown(answer[member]), "") for member, name in _MOMENTS.items() if member in answer]


def _found_cell(answer: Mapping[str, Any]) -> str:
    """Return them in one cell of a table."""
    more = "" if answer.get("next_cursor") is None else f" and more: --cursor {shown(answer['next_cursor'])}"
    for member in ("result", "value", *_LISTS):
        if member in answer:
            return quoted(answer[member]) + more
    moments = {name: answer[member] for member, name in _MOMENTS.items() if member in answer}
    return quoted(moments) if moments else ""


def absence_note(answer: Mapping[str, Any]) -> str:
    """Say why a window's key is absent, where that follows from the watermark; else nothing.

    Spark removes a window's state in the batch whose watermark reaches the window's end.
    """
    if answer.get("found") is not False or answer["watermark"] is None:
        return ""
    ends = [end for value in answer["key"].values() if (end := _window_end(value)) is not None]
    watermark = _moment(answer["watermark"])
    if not ends or watermark is None or min(ends) > watermark:
        return ""
    return (
        f"The watermark ({answer['watermark']}) has passed the end of this window: "
        "Spark has dropped its state (in append and update mode)."
    )


def _window_end(value: object) -> datetime | None:
    return _moment(value["end"]) if isinstance(value, dict) and list(value) == ["start", "end"] else None


def _moment(text: object) -> datetime | None:
    """Parse a timestamp of an answer; None for other texts. `timestamp_ntz` is compared as UTC, as Spark does."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _section(name: str, fields: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    if not fields:
        return [(name, "(no columns)", "")]
    return [(name if index == 0 else "", printable(field), shown(fields[field])) for index, field in enumerate(fields)]
