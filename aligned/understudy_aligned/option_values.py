"""Typed access to option values, which are strings. Each accessor checks the value's form and range (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Mapping
from difflib import get_close_matches
from typing import TypeVar

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.texts import BadSizeError, parse_size

T = TypeVar("T", bound=str)
V = TypeVar("V")

_DURATION = re.compile(r"([0-9]{1,18})([a-z]*)")
_UNITS_US = {
    "us": 1,
    **dict.fromkeys(("", "ms"), 1_000),
    "s": 1_000_000,
    **dict.fromkeys(("m", "min"), 60_000_000),
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
"""Microseconds of the units of Spark's durations."""

_FLAGS = {"true": True, "false": False}


class GivenOptions:
    """Option names ignore case, as Spark's do. Values are stripped. Every method may raise SettingsError."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value.strip() for name, value in given.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def refuse_unknown(self, known: Collection[str], *, prefix: str) -> None:
        """Raise SettingsError for a name that is not in `known` and does not begin with `prefix`."""
        for name in self._given:
            if name in known or (name.startswith(prefix) and name != prefix):
                continue
            near = get_close_matches(name, known, n=1)
            raise SettingsError(
                f"there is no option '{name}'",
                where="format understudy",
                fix=f"Did you mean '{near[0]}'?" if near else f"The options are: {', '.join(sorted(known))}, {prefix}*",
            )

    def below(self, prefix: str) -> dict[str, str]:
        """Return options whose name begins with `prefix`, by the rest of the name."""
        return {name.removeprefix(prefix): value for name, value in self._given.items() if name.startswith(prefix)}

    def text(self, name: str) -> str | None:
        value = self._given.get(name)
        if value == "":
            raise SettingsError("the value is empty", where=f"option {name}", fix="Give it a value, or leave it out")
        return value

    def whole(self, name: str, *, least: int, most: int | None = None, also: int | None = None) -> int | None:
        """Return a whole number from `least` to `most`, or `also`. None if the option is not set."""
        value = self.text(name)
        return None if value is None else parse_whole(name, value, least=least, most=most, also=also)

    def by_topic(
        self, name: str, topics: Container[str], parse: Callable[[str, str], V], default: V
    ) -> tuple[V, Mapping[str, V]]:
        """Return a value, and the values of topics that have their own: `5` or `5,weather:9` or `weather:9`."""
        found, own = default, dict[str, V]()
        entries = [entry.strip() for entry in (self.text(name) or "").split(",")] if name in self else []
        for index, entry in enumerate(entries):
            topic, colon, value = entry.rpartition(":")
            if not colon and index == 0:
                found = parse(name, value)
            elif colon and topic in topics and topic not in own:
                own[topic] = parse(name, value)
            else:
                what = "a topic a second time" if topic in topics else "no topic of this query"
                raise SettingsError(
                    f"'{entry}' names {what}",
                    where=f"option {name}",
                    fix="Write a value for all topics, and then others like 'weather:VALUE', each topic once",
                )
        return found, own

    def size(self, name: str) -> int | None:
        """Return a number of bytes, at least one: `512m`, `64MiB`, `1000000`. None if the option is not set."""
        value = self.text(name)
        if value is None:
            return None
        try:
            size = parse_size(value)
        except BadSizeError as bad:
            raise SettingsError(bad.what, where=f"option {name}", fix=bad.fix) from bad
        if size < 1:
            raise SettingsError(f"'{value}' is not a size of at least one byte", where=f"option {name}")
        return size

    def duration_ms(self, name: str) -> int | None:
        """Return milliseconds: `15m`, `30s`, `900000`, as Spark writes durations. None if the option is not set."""
        value = self.text(name)
        if value is None:
            return None
        found = _DURATION.fullmatch(value.lower())
        if found is None or found[2] not in _UNITS_US:
            raise SettingsError(
                f"'{value}' is not a duration", where=f"option {name}", fix="Write it like 30s, 15m, 2h or 900000 (ms)"
            )
        return int(found[1]) * _UNITS_US[found[2]] // 1000

    def choice(self, name: str, words: tuple[T, ...], default: T) -> T:
        """Return one of `words`; case does not matter."""
        return parse_choice(name, self.text(name) or default, words)

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _FLAGS:
            raise SettingsError(f"'{value}' is neither true nor false", where=f"option {name}")
        return _FLAGS[value.lower()]


def parse_whole(name: str, value: str, *, least: int, most: int | None = None, also: int | None = None) -> int:
    """Parse a whole number from `least` to `most`, or `also`."""
    try:
        number = int(value)
    except ValueError:
        number = None
    if number is None or not (number == also or (number >= least and (most is None or number <= most))):
        raise SettingsError(f"'{value}' is not a {_range_text(least, most, also)}", where=f"option {name}")
    return number


def parse_choice(name: str, value: str, words: tuple[T, ...]) -> T:
    """Parse one of `words`; case does not matter."""
    for word in words:
        if value.lower() == word:
            return word
    raise SettingsError(f"'{value.lower()}' is not one of {', '.join(words)}", where=f"option {name}")


def _range_text(least: int, most: int | None, also: int | None) -> str:
    span = f"whole number of at least {least}" if most is None else f"whole number from {least} to {most}"
    return span if also is None else f"{span}, or {also}"
