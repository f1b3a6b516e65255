"""Reads the bytes of Avro values: numbers, texts, blocks. Every length is checked before anything is taken.

Pure. A reader takes the bytes and a position, and returns a value and the position behind it. Malformed bytes raise
CorruptFileError, and no other error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from understudy_shared.base.errors import CorruptFileError

Read = Callable[[bytes, int], tuple[object, int]]

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_LONG_BYTES: Final = 10
_BITS_OF_INT: Final = 32
_BITS_OF_LONG: Final = 64


def damaged(what: str, at: int) -> CorruptFileError:
    """Make the error for bytes that are no Avro record of the schema."""
    return CorruptFileError(
        f"not an Avro record of this schema: {what}",
        where=f"byte {at}",
        fix="The file is damaged, or the schema belongs to another version of the query",
    )


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read a zig-zag varint of at most 64 bits."""
    raw = shift = 0
    # Ten bytes at most: a damaged run of bytes with the high bit set must end.
    for position in range(at, min(at + _LONG_BYTES, len(data))):
        byte = data[position]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Ten bytes have 70 bits: what is above 64 would make another number, so it is damage.
            if raw >> _BITS_OF_LONG:
                break
            # Zig-zag: the lowest bit is the sign.
            return (raw >> 1) ^ -(raw & 1), position + 1
        shift += 7
    raise damaged("a number does not end, or is too large", at)


def read_int(data: bytes, at: int) -> tuple[int, int]:
    """Read a zig-zag varint of at most 32 bits."""
    value, end = read_long(data, at)
    if not -(1 << _BITS_OF_INT - 1) <= value < 1 << _BITS_OF_INT - 1:
        raise damaged("a number is too large", at)
    return value, end


def read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    """Read one byte, 0 or 1."""
    byte = data[at : at + 1]
    if byte not in {b"\x00", b"\x01"}:
        raise damaged("a truth value is neither 0 nor 1", at)
    return byte == b"\x01", at + 1


def read_float(data: bytes, at: int) -> tuple[float, int]:
    """Read four bytes, little-endian."""
    number: float = _FLOAT.unpack(_taken(data, at, _FLOAT.size))[0]
    return number, at + _FLOAT.size


def read_double(data: bytes, at: int) -> tuple[float, int]:
    """Read eight bytes, little-endian."""
    number: float = _DOUBLE.unpack(_taken(data, at, _DOUBLE.size))[0]
    return number, at + _DOUBLE.size


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Read a length, and as many bytes."""
    length, start = read_long(data, at)
    return _taken(data, start, length), start + length


def read_string(data: bytes, at: int) -> tuple[str, int]:
    """Read the same as text; bytes that are not UTF-8 become surrogate escapes, as in rows."""
    taken, end = read_bytes(data, at)
    return taken.decode("utf-8", "surrogateescape"), end


def fixed_reader(size: int, convert: Callable[[int], object]) -> Read:
    """Make a reader of a big-endian two's complement of so many bytes."""

    def read(data: bytes, at: int) -> tuple[object, int]:
        return convert(int.from_bytes(_taken(data, at, size), "big", signed=True)), at + size

    return read


def nullable_reader(read_value: Read) -> Read:
    """Make a reader of null (branch 0) or a value (branch 1)."""

    def read(data: bytes, at: int) -> tuple[object, int]:
        branch = data[at : at + 1]
        # Branch 1 as a zig-zag varint: Spark puts null first in each union.
        if branch == b"\x02":
            return read_value(data, at + 1)
        if branch == b"\x00":
            return None, at + 1
        raise damaged("a column is neither null nor a value", at)

    return read


def array_reader(read_element: Read) -> Callable[[bytes, int], tuple[list[object], int]]:
    """Make a reader of blocks of elements, each with its count; a count of zero ends them. Every element has bytes."""

    def read(data: bytes, at: int) -> tuple[list[object], int]:
        elements: list[object] = []
        while True:
            count, at = read_long(data, at)
            if count == 0:
                return elements, at
            # Each element takes a byte or more, so a damaged count cannot ask for memory. A negative count is legal
            # Avro, and Spark never writes one.
            if not 0 < count <= len(data) - at:
                raise damaged("more elements than there are bytes", at)
            for _ in range(count):
                element, at = read_element(data, at)
                elements.append(element)

    return read


def pair_reader(read_key: Read, read_value: Read) -> Read:
    """Make a reader of an entry of a map."""

    def read(data: bytes, at: int) -> tuple[object, int]:
        key, at = read_key(data, at)
        value, at = read_value(data, at)
        return (key, value), at

    return read


def _taken(data: bytes, at: int, length: int) -> bytes:
    # A slice never raises: that it is too short is the only sign of an end that comes too early.
    taken = data[at : at + length] if length >= 0 else b""
    if length < 0 or len(taken) != length:
        raise damaged("it ends too early", at)
    return taken
