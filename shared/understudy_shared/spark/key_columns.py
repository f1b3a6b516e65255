"""Encodes, places and prints the keys of a batch column by column, with the same result as key by key.

Pure. It takes keys whose columns are strings, integers and booleans without nulls: nearly all batches. Other batches,
and batches with a malformed key, go through the codec key by key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence, Sized
from typing import Any, NamedTuple, cast

import mmh3
import orjson

from understudy_shared.spark.layout import PADDING, Source
from understudy_shared.spark.murmur3 import SEED, hash_bytes, partition_of
from understudy_shared.spark.types import BooleanType, IntegralType, SparkType, StringType, StructType

Row = tuple[object, ...]


class EncodedKeys(NamedTuple):
    """Keys as columns: the partition of each, its UnsafeRow bytes, and its JSON for answers."""

    partitions: list[int]
    rows: list[bytes]
    printed: list[bytes]


_TEXT_HEAD = struct.Struct("<QII").pack
_TEXT_OFFSET = 16
"""Offset of the text in a row of one string column: behind the null bitmap and one slot."""

_signed_murmur3 = mmh3.mmh3_32_sintdigest


class KeyColumns:
    """The keys of one store, many at once, as `orjson.loads` returns them.

    Each method returns None where the keys have to be taken one by one.
    """

    def __init__(
        self,
        key: StructType,
        names: Sequence[str],
        *,
        encode: Callable[[Row], bytes],
        place: Callable[[Row, int], int],
        num_hash_columns: int,
    ) -> None:
        """Compile what prints them. `encode` and `place` take a single row."""
        self._kinds = [field.type for field in key.fields]
        self._names = names
        self._encode, self._place = encode, place
        self._is_taken = bool(self._kinds) and all(map(_is_plain, self._kinds))
        if self._is_taken:
            self._print = _printer(names)
            self._head = b'{%b:"' % orjson.dumps(names[0])
            self._is_one_text = isinstance(self._kinds[0], StringType) and len(self._kinds) == num_hash_columns == 1

    def encode(self, keys: Sequence[object], partitions: int) -> EncodedKeys | None:
        """Parse, encode, place and print keys, of so many partitions."""
        rows, columns = self._columns(keys)
        if rows is None:
            return None
        try:
            if self._is_one_text:
                texts = list(map(str.encode, columns[0]))
                # If their JSON adds only quotes and commas to the texts' bytes, nothing in them is escaped.
                is_plain = len(orjson.dumps(columns[0])) == sum(map(len, texts)) + 3 * len(texts) + 1
                printed = [self._head + text + b'"}' for text in texts] if is_plain else self._print(rows)
                return EncodedKeys(_text_partitions(texts, partitions), _text_rows(texts), printed)
            whole = list(map(tuple, rows))
            placed = [self._place(row, partitions) for row in whole]
            return EncodedKeys(placed, list(map(self._encode, whole)), self._print(rows))
        except (UnicodeEncodeError, orjson.JSONEncodeError):  # a lone surrogate
            return None

    def partitions(self, keys: Sequence[object], partitions: int) -> list[int] | None:
        """Return the partition of each key, of so many."""
        rows, columns = self._columns(keys)
        if rows is None:
            return None
        try:
            if self._is_one_text:
                return _text_partitions(list(map(str.encode, columns[0])), partitions)
            return [self._place(tuple(row), partitions) for row in rows]
        except UnicodeEncodeError:  # a lone surrogate
            return None

    def _columns(self, keys: Sequence[object]) -> tuple[Sequence[Sequence[object]] | None, Sequence[Sequence[Any]]]:
        """Return rows and columns; no rows where the keys have to be taken one by one."""
        rows = _rows(keys, self._names) if self._is_taken else None
        if rows is None:
            return None, ()
        columns = list(zip(*rows, strict=True))
        are_fit = all(_fits(kind, column) for kind, column in zip(self._kinds, columns, strict=True))
        return (rows, columns) if are_fit else (None, ())


def _is_plain(kind: SparkType) -> bool:
    """Whether a value is parsed, normalised and printed as what it is."""
    return isinstance(kind, StringType | BooleanType | IntegralType)


def _rows(keys: Sequence[object], names: Sequence[str]) -> Sequence[Sequence[object]] | None:
    """Return the keys as rows, from arrays in schema order or objects by column name; None when they are not all of one
    form.
    """
    if not _are(keys, list, dict) or set(map(len, cast("Sequence[Sized]", keys))) != {len(names)}:
        return None
    if type(keys[0]) is list:
        return cast("Sequence[list[object]]", keys)
    try:
        return [tuple([key[name] for name in names]) for key in cast("Sequence[dict[str, object]]", keys)]
    except KeyError:
        return None


def _are(values: Sequence[object], *kinds: type) -> bool:
    """Whether all values are of one and the same of these types, exactly."""
    found = set(map(type, values))
    return len(found) == 1 and found.pop() in kinds


def _fits(kind: SparkType, column: Sequence[Any]) -> bool:
    match kind:
        case StringType():
            return _are(column, str)
        case BooleanType():
            return _are(column, bool)
        case IntegralType(BITS=bits):
            limit = 1 << bits - 1
            return _are(column, int) and -limit <= min(column) and max(column) < limit
        case _:
            return False


def _printer(names: Sequence[str]) -> Callable[[Sequence[Sequence[object]]], list[bytes]]:
    """Compile a function from rows to their JSON objects by column name."""
    source = Source("print_rows(rows)")
    variables = [f"c{index}" for index in range(len(names))]
    fields = ", ".join(f"{name!r}: {variable}" for name, variable in zip(names, variables, strict=True))
    source.add(f"return [{source.bind(orjson.dumps)}({{{fields}}}) for {', '.join(variables)}, in rows]")
    return cast("Callable[[Sequence[Sequence[object]]], list[bytes]]", source.compile())


def _text_rows(texts: Sequence[bytes]) -> list[bytes]:
    """Encode rows of one string column each."""
    sizes = set(map(len, texts))
    heads = {size: _TEXT_HEAD(0, size, _TEXT_OFFSET) for size in sizes}
    if len(sizes) == 1 and not (size := sizes.pop()) & 7:
        head = heads[size]
        return [head + text for text in texts]
    return [heads[len(text)] + text + PADDING[len(text) & 7] for text in texts]


def _text_partitions(texts: Sequence[bytes], partitions: int) -> list[int]:
    # For whole words Spark's Murmur3 equals the standard one.
    if not any(size & 3 for size in set(map(len, texts))):
        return [_signed_murmur3(text, SEED) % partitions for text in texts]
    hashes = [hash_bytes(text, SEED) for text in texts]
    return [partition_of(h - 0x100000000 if h & 0x80000000 else h, partitions) for h in hashes]
