"""The bytes of many values under one key, as Spark writes and RocksDB appends them (pure).

Each is its length, then the encoded row (Spark's `RocksDBStateStoreProvider`, merged by a string append). In a
checkpoint that Spark 4.0 or 4.1 began there is a comma between two of them, in a later one nothing. A row's length is
that of whole words and a version byte, so its first byte is never a comma's: the bytes show which of the two it is. An
Avro record has any length, so there the caller gives the separator.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from understudy_shared.base.errors import CorruptFileError

_LENGTH: Final = struct.Struct("<i")
_COMMA: Final = ord(",")
_WORD_BYTES: Final = 8


def split_values(kept: bytes, *, prefix: bytes, where: str, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield where each value begins, and its row without its `prefix`, from the value on that begins at `at`. Raises
    CorruptFileError when the bytes are not such rows to their end.
    """
    end, skip = len(kept), len(prefix)
    has_commas: bool | None = None
    if not end:
        raise CorruptFileError("a list has no values", where=where)
    while at < end:
        begins, start = at, at + _LENGTH.size
        if start > end:
            raise CorruptFileError("a list ends inside a length", where=where)
        (length,) = _LENGTH.unpack_from(kept, at)
        at = start + length
        if length < skip or (length - skip) % _WORD_BYTES or at > end or not kept.startswith(prefix, start):
            raise CorruptFileError("a list holds something that is not a row, or ends inside one", where=where)
        yield begins, kept[start + skip : at]
        if at == end:
            return
        is_comma = kept[at] == _COMMA
        if has_commas not in (None, is_comma):
            raise CorruptFileError("some values of a list are separated, some are not", where=where)
        has_commas = is_comma
        at += is_comma
    raise CorruptFileError("a list ends behind a separator", where=where)


def split_records(kept: bytes, *, separator: bytes, where: str, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield where each Avro record begins, and the record with the bytes before it, from the one on that begins at
    `at`. Raises CorruptFileError when the bytes are not such records, with the separator between them, to their end.
    """
    end = len(kept)
    while True:
        begins, start = at, at + _LENGTH.size
        if start > end:
            raise CorruptFileError("a list ends inside a length, or has no values", where=where)
        (length,) = _LENGTH.unpack_from(kept, at)
        at = start + length
        if length < 0 or at > end:
            raise CorruptFileError("a list ends inside a record", where=where)
        yield begins, kept[start:at]
        if at == end:
            return
        if not kept.startswith(separator, at):
            raise CorruptFileError("two records of a list are not separated", where=where)
        at += len(separator)
