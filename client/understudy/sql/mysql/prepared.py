"""Prepared statements: their parameters as constants of SQL (pure).

mysql-mimic puts texts into a statement without escapes, and knows no dates: so parameters are read here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from understudy.sql.errors import SqlError
from understudy.sql.mysql.dialect import filled, placeholders

MAX_PREPARED: Final = 256
"""Number of prepared statements of a connection."""

MAX_LONG_DATA_BYTES: Final = 1024 * 1024
_UNSIGNED: Final = 0x80


@dataclass(slots=True)
class Prepared:
    """A statement as it was prepared. `types` are those of the last execution: a client may send them once."""

    text: str
    places: list[tuple[int, int]]
    types: list[tuple[int, bool]] = field(default_factory=list)

    def bound(self, data: bytes, long_data: Mapping[int, bytes]) -> str:
        """Return the statement with the parameters of an execution. Raises SqlError."""
        if not self.places:
            return self.text
        try:
            return filled(self.text, self.places, self._constants(data, long_data))
        except (struct.error, IndexError) as error:
            raise SqlError("the parameters are cut", where="parameters", fix="Check the client") from error

    def _constants(self, data: bytes, long_data: Mapping[int, bytes]) -> list[str]:
        number = len(self.places)
        nulls, at = data[: (number + 7) // 8], (number + 7) // 8
        if data[at]:
            pairs = data[at + 1 : at + 1 + 2 * number]
            self.types = [(pairs[2 * each], bool(pairs[2 * each + 1] & _UNSIGNED)) for each in range(number)]
            at += 2 * number
        if len(self.types) != number:
            raise SqlError("the types of the parameters are missing", where="parameters", fix="Check the client")
        reader = _Reader(data, at + 1)
        found = []
        for each, (kind, is_unsigned) in enumerate(self.types):
            if nulls[each // 8] >> (each % 8) & 1:
                found.append("NULL")
            elif each in long_data:
                found.append(_text(long_data[each]))
            else:
                found.append(reader.constant(kind, is_unsigned=is_unsigned))
        return found


def prepared(text: str) -> Prepared:
    """Prepare a statement. Raises SqlError."""
    return Prepared(text, placeholders(text))


def _text(data: bytes) -> str:
    """Return a text as a constant; one that is no UTF-8 as bytes."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"x'{data.hex()}'"
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


class _Reader:
    """A reader of values, one behind another."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    def constant(self, kind: int, *, is_unsigned: bool) -> str:
        """Read a value of a type, as a constant."""
        if kind in _NUMBERS:
            signed, unsigned = _NUMBERS[kind]
            return _number(self._unpacked(unsigned if is_unsigned else signed))
        if kind in _MOMENTS:
            return f"'{_MOMENTS[kind](self._bytes(self._bytes(1)[0]))}'"
        if kind in _DECIMALS:
            return self._decimal()
        if kind in _TEXTS:
            return _text(self._bytes(self._length()))
        if kind == _NULL:
            return "NULL"
        raise SqlError(f"parameters of the type {kind} are not known", where="parameters", fix="Send them as texts")

    def _decimal(self) -> str:
        text = self._bytes(self._length()).decode("ascii", "replace")
        if not text.lstrip("+-").replace(".", "", 1).isdigit():
            raise SqlError("a parameter is no decimal number", where="parameters", fix="Check the client")
        return text

    def _unpacked(self, form: str) -> Any:
        return struct.unpack("<" + form, self._bytes(struct.calcsize("<" + form)))[0]

    def _bytes(self, number: int) -> bytes:
        found = self._data[self._at : self._at + number]
        if len(found) < number:
            raise IndexError(number)
        self._at += number
        return found

    def _length(self) -> int:
        first: int = self._bytes(1)[0]
        size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
        return first if size is None else int.from_bytes(self._bytes(size), "little")


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"CAST('{value}' AS DOUBLE)"
    text = repr(value)
    return text if isinstance(value, int) or "e" in text else f"{text}e0"  # else it would be a decimal number


def _moment(data: bytes) -> str:
    year, month, day, *rest = struct.unpack("<HBBBBBI", data.ljust(11, b"\0")) if data else (0, 0, 0, 0, 0, 0, 0)
    hour, minute, second, micros = rest
    clock = f" {hour:02}:{minute:02}:{second:02}" if len(data) > 4 else ""
    return f"{year:04}-{month:02}-{day:02}{clock}{f'.{micros:06}' if micros else ''}"


def _time(data: bytes) -> str:
    negative, days, hour, minute, second, micros = struct.unpack("<BIBBBI", data.ljust(12, b"\0"))
    sign = "-" if negative else ""
    return f"{sign}{days * 24 + hour:02}:{minute:02}:{second:02}{f'.{micros:06}' if micros else ''}"


_NULL: Final = 6
_NUMBERS: Final[Mapping[int, Sequence[str]]] = {
    1: "bB", 2: "hH", 13: "hH", 3: "iI", 9: "iI", 8: "qQ", 4: "ff", 5: "dd",
}  # fmt: skip
_DECIMALS: Final = (0, 246)
_TEXTS: Final = (15, 16, 245, 247, 248, 249, 250, 251, 252, 253, 254)
_MOMENTS: Final[Mapping[int, Callable[[bytes], str]]] = {7: _moment, 10: _moment, 12: _moment, 11: _time}
