"""Turns a reader's key into the bytes that Spark stored, and finds the partition that holds it.

Pure; built once per key schema, used for every lookup. Keys are normalised as Spark does it before it stores them, so
that equal keys have equal bytes: -0.0 becomes 0.0, every NaN the canonical one, and the entries of a map are sorted by
key; all at any depth.

A batch is encoded, placed and printed column by column, with the same result as key by key. That takes keys whose
columns are strings, integers and booleans without nulls: nearly all batches. Other batches, and batches with a
malformed key, go through the codec key by key.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence, Sized
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple, cast

import mmh3
import orjson

from understudy_shared.base.errors import BadKeyError, CorruptFileError, UnsupportedError
from understudy_shared.base.words import KeyPlacement
from understudy_shared.spark import types as t
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.json_values import (
    compile_json_parser,
    compile_segment_parser,
    example_of,
    is_scalar,
    refuse_whole_key,
    refuse_whole_path,
)
from understudy_shared.spark.murmur3 import SEED, compile_row_hash, hash_bytes
from understudy_shared.spark.unsafe_row import (
    PADDING,
    FunctionSource,
    RowDecoder,
    compile_row_decoder,
    compile_row_encoder,
)

Normaliser = Callable[[tuple[object, ...]], tuple[object, ...]]

_NAN = float("nan")


def compile_normaliser(struct_type: t.StructType) -> Normaliser | None:
    """Compile a function from row to normalised row; None, the usual case, when rows of the schema need no change."""
    return cast("Normaliser | None", _normaliser(struct_type))


def _normaliser(spark_type: t.SparkType) -> Callable[..., object] | None:
    """Return the function for non-null values of a type; None when they need no change."""
    match spark_type:
        case t.FloatType() | t.DoubleType():
            return _normal_float
        case t.StructType(fields):
            return _struct_normaliser([_normaliser(field.type) for field in fields])
        case t.ArrayType(element):
            inner = _normaliser(element)
            return None if inner is None else lambda values: [_apply(inner, value) for value in values]
        case t.MapType():
            return _map_normaliser(spark_type)
        case _:
            return None


def _normal_float(value: float) -> float:
    return value + 0.0 if value == value else _NAN  # noqa: PLR0124


def _struct_normaliser(inner: Sequence[Callable[..., object] | None]) -> Callable[..., object] | None:
    if not any(inner):
        return None
    return lambda values: tuple(_apply(function, value) for function, value in zip(inner, values, strict=True))


def _map_normaliser(map_type: t.MapType) -> Callable[..., object]:
    keys, values, order = _normaliser(map_type.key), _normaliser(map_type.value), _order_of(map_type.key)

    def normalise(pairs: Sequence[tuple[object, object]]) -> list[tuple[object, object]]:
        normal = [(_apply(keys, key), _apply(values, value)) for key, value in pairs]
        return [pair for _, pair in sorted(((order(pair[0]), pair) for pair in normal), key=itemgetter(0))]

    return normalise


def _apply(function: Callable[..., object] | None, value: object) -> object:
    return value if function is None or value is None else function(value)


def _order_of(spark_type: t.SparkType) -> Callable[..., object]:
    """Return a sort key in Spark's order: strings by their bytes, NaN last, null first inside structs and arrays."""
    match spark_type:
        case t.StringType():
            return lambda text: cast(str, text).encode("utf-8", "surrogateescape")
        case t.FloatType() | t.DoubleType():
            return lambda number: (number != number, number)  # noqa: PLR0124
        case t.StructType(fields):
            orders = [_order_of(field.type) for field in fields]
            return lambda values: [_nulls_first(order, value) for order, value in zip(orders, values, strict=True)]
        case t.ArrayType(element):
            order = _order_of(element)
            return lambda values: [_nulls_first(order, value) for value in values]
        case _:
            return lambda value: value


def _nulls_first(order: Callable[..., object], value: object) -> tuple[object, ...]:
    return () if value is None else (order(value),)


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

    def __init__(self, codec: KeyCodec) -> None:
        """Compile what prints them."""
        self._kinds = [field.type for field in codec.key.fields]
        self._names = codec.names
        self._encode, self._place = codec.encode, codec.partition
        # Others are not parsed, normalised and printed as what they are.
        are_plain = all(isinstance(kind, t.StringType | t.BooleanType | t.IntegralType) for kind in self._kinds)
        self._is_taken = bool(self._kinds) and are_plain
        if self._is_taken:
            self._print = _printer(self._names)
            self._head = b'{%b:"' % orjson.dumps(self._names[0])
            is_placed_by_one = not codec.is_scattered and codec.num_hash_columns == 1
            self._is_one_text = isinstance(self._kinds[0], t.StringType) and len(self._kinds) == 1 and is_placed_by_one

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


def _fits(kind: t.SparkType, column: Sequence[Any]) -> bool:
    match kind:
        case t.StringType():
            return _are(column, str)
        case t.BooleanType():
            return _are(column, bool)
        case t.IntegralType(BITS=bits):
            limit = 1 << bits - 1
            return _are(column, int) and -limit <= min(column) and max(column) < limit
        case _:
            return False


def _printer(names: Sequence[str]) -> Callable[[Sequence[Sequence[object]]], list[bytes]]:
    """Compile a function from rows to their JSON objects by column name."""
    source = FunctionSource("print_rows(rows)")
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
    return [(h - 0x100000000 if h & 0x80000000 else h) % partitions for h in hashes]


Row = tuple[object, ...]

MAX_KEY_FIELDS = 1024
"""Limit on the fields of a key at all depths together; compiling that many takes a third of a second."""
COLLATION_FIX = "Group by the column with collation UTF8_BINARY; Spark's state store refuses other collations too"

ANY_PARTITION = -2
"""The partition of a key of a scattered store: it may be in any. No partition has this number."""

LAYOUT_CHARS = 16
"""Length of a layout's name: 64 bits tell mistakes apart, but not an attacker, who would copy the name."""


class KeyCodec:
    """The codec of one store's keys: it parses, encodes, places and prints them.

    `names` are the columns' public names, in schema order (default: Spark's own, made unique). `num_hash_columns` says
    how many leading columns decide the partition: None for all of them, 0 for operators whose keys all live in
    partition 0 (a global limit keys by one void column). `is_normalised` is whether Spark normalised floats and sorted
    maps before it stored the keys, so that a key sent as -0.0 must find 0.0: it does so for aggregations, deduplication
    and joins. Where `placement` is scattered, the hash decides nothing: each key is in `ANY_PARTITION`.
    """

    def __init__(
        self,
        key: t.StructType,
        *,
        names: Sequence[str] | None = None,
        num_hash_columns: int | None = None,
        is_normalised: bool = True,
        placement: KeyPlacement = KeyPlacement.BY_HASH,
    ) -> None:
        collated = t.collated_columns(key)
        if collated:
            raise UnsupportedError(
                f"key columns with a collation are not supported: {', '.join(collated)}",
                where=key.name,
                fix=COLLATION_FIX,
            )
        _refuse_unfit(key, names, num_hash_columns)
        self.key = key
        self.names = t.unique_names(field.name for field in key.fields) if names is None else tuple(names)
        self.num_hash_columns = len(key.fields) if num_hash_columns is None else num_hash_columns
        self.columns: tuple[dict[str, object], ...] = tuple(
            {"name": name, "type": field.type.name, "example": example_of(field.type)}
            for name, field in zip(self.names, key.fields, strict=True)
        )
        self.is_normalised = is_normalised
        self.placement = placement
        self.is_scattered = placement is KeyPlacement.SCATTERED
        self._parse = compile_json_parser(key, self.names)
        self._normalise = compile_normaliser(key) if is_normalised else None
        self._hash = compile_row_hash(t.StructType(key.fields[: self.num_hash_columns]))
        self.encode = compile_row_encoder(key)
        """Function from a row to UnsafeRow bytes. It is an attribute, not a method: the hot path saves a call."""
        self.to_json = compile_json_printer(key, self.names)
        """Function from UnsafeRow bytes to an object by column name."""
        self._is_flat = not any(isinstance(field.type, t.StructType) for field in key.fields)
        self._segment_parsers = _segment_parsers(key, self.names)
        self._without_segments = [
            name
            for name, field in zip(self.names, key.fields, strict=True)
            if isinstance(field.type, t.VoidType) or not (is_scalar(field.type) or is_window(field.type))
        ]

    def __repr__(self) -> str:
        return f"KeyCodec({self.key.name}, num_hash_columns={self.num_hash_columns})"

    def parse_json(self, key: object) -> Row:
        """Parse a key from a JSON array in schema order or an object by column name, as `orjson.loads` returns it."""
        row = self._parse(key)
        return row if self._normalise is None else self._normalise(row)

    def parse_segments(self, segments: Sequence[str]) -> Row:
        """Parse a key from percent-decoded path segments: one per column, two (start, end) for a window."""
        if self._without_segments:
            unfit = ", ".join(self._without_segments)
            raise self._refuse(segments, f"a path cannot hold {unfit}: use lookup?key= with a JSON key")
        if len(segments) != len(self._segment_parsers):
            takes = len(self._segment_parsers)
            reason = f"it has {len(segments)} path segments, the key takes {takes}"
            raise refuse_whole_path(self.key, self.names, segments, reason)
        values = [parse(text) for parse, text in zip(self._segment_parsers, segments, strict=True)]
        row: Row = tuple(values) if self._is_flat else self._folded(values)
        return row if self._normalise is None else self._normalise(row)

    @property
    def num_segments(self) -> int:
        """The number of path segments that a key takes."""
        return len(self._segment_parsers)

    def partition(self, row: Row, partitions: int) -> int:
        """Return the store partition of a key; 0 when no column is hashed, and `ANY_PARTITION` in a scattered store."""
        if self.is_scattered:
            return ANY_PARTITION
        # Spark's `pmod`: Python's remainder has the divisor's sign already.
        return self._hash(row) % partitions if self.num_hash_columns else 0

    def layout(self, partitions: int) -> str:
        """Name the layout: everything that decides how a key is encoded and where it is. Two codecs of one layout never
        disagree about a key. The public column names are not part of it.

        Releases compare the name with each other, so its ingredients never change.
        """
        # The name of the key's type has the names, the order and the types of its columns.
        decides = [self.key.name, self.num_hash_columns, self.is_normalised, partitions]
        # A release that would place the keys of a scattered store by their hash is refused, and says nothing is absent.
        decides += [self.placement] * self.is_scattered
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:LAYOUT_CHARS]

    def place(self, encoded: bytes, partitions: int) -> int | None:
        """Return the store partition of an encoded key, by its bytes alone; None when Spark would not write such a key
        here.

        Bytes that decode are encoded once more: a key of other types, or one that is not normalised, differs.
        """
        try:
            row = self._decode(encoded)
            row = row if self._normalise is None else self._normalise(row)
            return self.partition(row, partitions) if self.encode(row) == encoded else None
        except (CorruptFileError, ArithmeticError, ValueError, TypeError, struct.error):
            return None  # values that no column of these types has

    def may_hold(self, partition: int, encoded: bytes, partitions: int) -> bool:
        """Whether Spark may have stored an encoded key in this partition."""
        return self.place(encoded, partitions) in {partition, ANY_PARTITION}

    def decode(self, encoded: bytes) -> Row:
        """Decode the row of an encoded key."""
        return self._decode(encoded)

    @cached_property
    def key_columns(self) -> KeyColumns:
        """The keys, many at once."""
        return KeyColumns(self)

    @cached_property
    def _decode(self) -> RowDecoder:
        """The row decoder, compiled when it is first needed: only nodes read keys."""
        return compile_row_decoder(self.key)

    def _folded(self, values: list[object]) -> Row:
        """Make a row of the values of path segments: join the start and end of a window."""
        remaining = iter(values)
        return tuple(
            tuple(next(remaining) for _ in field.type.fields)
            if isinstance(field.type, t.StructType)
            else next(remaining)
            for field in self.key.fields
        )

    def _refuse(self, value: object, reason: str) -> BadKeyError:
        return refuse_whole_key(self.key, self.names, value, reason)


def _refuse_unfit(key: t.StructType, names: Sequence[str] | None, num_hash_columns: int | None) -> None:
    """Raise UnsupportedError for key schemas that cannot be compiled, or not within a moment."""
    columns, fields = len(key.fields), t.field_count(key)
    wrong = ""
    if fields > MAX_KEY_FIELDS:
        wrong = f"a key of {fields} fields, above {MAX_KEY_FIELDS}"
    elif names is not None and len(names) != columns:
        wrong = f"{len(names)} names for {columns} key columns"
    elif names is not None and len(set(names)) != columns:
        wrong = "two key columns of one name"
    elif num_hash_columns is not None and not 0 <= num_hash_columns <= columns:
        wrong = f"{num_hash_columns} of {columns} key columns decide the partition"
    if wrong:
        raise UnsupportedError(f"{wrong}: such keys are not supported", where="the key's schema")


def _segment_parsers(key: t.StructType, names: Sequence[str]) -> list[Callable[[str], object]]:
    """Make a parser per path segment; a window takes two."""
    parsers = []
    for name, field in zip(names, key.fields, strict=True):
        if isinstance(field.type, t.StructType):
            parsers += [compile_segment_parser(part.type, f"{name}.{part.name}") for part in field.type.fields]
        else:
            parsers.append(compile_segment_parser(field.type, name))
    return parsers


def is_window(spark_type: t.SparkType) -> bool:
    """Whether it is the type of `window(...)` and `session_window(...)`: struct<start, end> of timestamps."""
    return (
        isinstance(spark_type, t.StructType)
        and [part.name for part in spark_type.fields] == ["start", "end"]
        and all(isinstance(part.type, t.TimestampType | t.TimestampNtzType) for part in spark_type.fields)
    )
