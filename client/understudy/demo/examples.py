"""The keys that the demo asks for, and the lines about their answers (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from understudy.terminal.values import shown
from understudy_shared.base.printable import printable

AIRCRAFT = "N14228"
"""The aircraft of the first departure of the year, which is there from the first batch on."""

_FIRST_HOUR = datetime(2013, 1, 1, 10, tzinfo=UTC)
_ORIGINS = ("EWR", "JFK", "LGA")
_HOURS = (0, 1, 2, -1, 3, 4, 5, 6, 7)
"""Hours after the watermark's to try: windows behind it are gone, and at night nothing departs."""


@dataclass(frozen=True, slots=True)
class Example:
    """A key as words, one per column, two for a window."""

    store: str
    words: tuple[str, ...]


FIRST = Example("aircraft", (AIRCRAFT,))
SECOND = Example("routes", ("UA", "EWR", "IAH"))


def hour_examples(store: Mapping[str, Any], watermark: str | None) -> Iterator[Example]:
    """Yield keys of the store of hours, likeliest first; one of them is there. `store` is its entry in `/v1/stores`."""
    hour = _hour_of(watermark)
    for offset in _HOURS:
        start = hour + timedelta(hours=offset)
        for origin in _ORIGINS:
            words = [
                word
                for column in store["key"]
                for word in (_window_words(start) if column["type"].startswith("struct<") else (origin,))
            ]
            yield Example(store["store"], tuple(words))


def answer_line(answer: Mapping[str, Any]) -> str:
    """Print an answer in one line: fields, then its age and the node that answered."""
    by, lag = answer["served_by"], answer["lag"]["offset_lag"]
    age = f"version {answer['version']}, {'lag unknown' if lag is None else f'{lag} behind'}"
    source = f"{printable(by['host'])}:{by['port']}, {by['role']}"
    return f"{_fields(answer)}  ({age}, from {source})"


def _fields(answer: Mapping[str, Any]) -> str:
    if not answer["found"]:
        return "absent"
    fields = answer.get("result") or answer["value"]
    return ", ".join(f"{printable(name)} {shown(value)}" for name, value in fields.items())


def _hour_of(watermark: str | None) -> datetime:
    """Return the watermark's hour; before there is one, the first departure's."""
    moment = _FIRST_HOUR if watermark is None else datetime.fromisoformat(watermark)
    return max(moment, _FIRST_HOUR).replace(minute=0, second=0, microsecond=0)


def _window_words(start: datetime) -> tuple[str, str]:
    end = start + timedelta(hours=1)
    return f"{start:%Y-%m-%dT%H:%M:%SZ}", f"{end:%Y-%m-%dT%H:%M:%SZ}"
