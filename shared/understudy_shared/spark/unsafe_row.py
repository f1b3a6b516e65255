"""Converts UnsafeRow bytes to and from Python values, compiled once per schema.

Pure. Representation: integers, dates (days), timestamps (micros), times (nanos) and intervals (months or micros) are
`int`; a calendar interval is `(months, days, micros)`; decimals are `Decimal`, strings `str`, binary `bytes`; a struct
is a tuple, an array a list, a map a list of pairs, null is None. Strings that are not UTF-8 keep their bytes as
surrogate escapes, so that encoding a decoded row gives the same bytes.

Encoding gives exactly Spark's bytes: a key that differs in one byte is another key. Values must fit their types, as the
parsers of `json_values` ensure; an integer too large raises `struct.error`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import cast

from understudy_shared.base.errors import CorruptFileError
from understudy_shared.spark.layout import (
    CALENDAR_INTERVAL,
    PADDING,
    RESERVED_BYTES,
    Source,
    bitmap_words,
    decimal_of,
    fixed_bytes,
    fixed_code,
    is_reserved,
    signed_big_endian,
    unscaled_of,
)
from understudy_shared.spark.row_reader import Leaf, compile_reader
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DecimalType,
    MapType,
    SparkType,
    StringType,
    StructType,
    VariantType,
    VoidType,
)

__all__ = [
    "RowDecoder",
    "RowEncoder",
    "compile_row_decoder",
    "compile_row_encoder",
    "read_calendar_interval",
    "read_unscaled",
]

RowDecoder = Callable[[bytes], tuple[object, ...]]


RowEncoder = Callable[[Sequence[object]], bytes]


def compile_row_encoder(struct_type: StructType) -> RowEncoder:
    """Compile a function from a row (one value per field, None for null) to its UnsafeRow bytes."""
    if not struct_type.fields:
        return _encode_nothing
    source = Source("encode(row)")
    columns = [f"c{i}" for i in range(len(struct_type.fields))]
    words = bitmap_words(len(columns))
    source.add(f"{', '.join(columns)}, = row")
    source.add(" = ".join(f"m{word}" for word in range(words)) + " = 0")
    source.add(f"o = {fixed_bytes(struct_type)}")
    codes, arguments, tail = ["<", "Q" * words], [f"m{word}" for word in range(words)], []
    for index, field in enumerate(struct_type.fields):
        column, set_null = columns[index], f"m{index // 64} |= {1 << index % 64}"
        code = fixed_code(field.type)
        if isinstance(field.type, VoidType):
            source.add(set_null)
            codes.append("8x")
        elif code is not None:
            _add_fixed(source, field.type, column, set_null)
            # A value narrower than its 8-byte slot stands at the front, and the rest is zero (UnsafeRowWriter.write).
            codes.append(f"{code}{8 - struct.calcsize(code)}x")
            arguments.append(column)
        else:
            _add_variable(source, field.type, index, set_null)
            # UnsafeRow has the offset in the upper half of the slot: in little-endian order, the size comes first.
            codes.append("II")
            arguments += [f"n{index}", f"o{index}"]
            tail.append(f"d{index}")
    pack = source.bind(struct.Struct("".join(codes)).pack)
    head = f"{pack}({', '.join(arguments)})"
    source.add(
        f"return {' + '.join([head, *tail])}" if len(tail) < 5 else f"return b''.join(({head}, {', '.join(tail)}))"
    )
    return cast(RowEncoder, source.compile())


def _add_fixed(source: Source, spark_type: SparkType, column: str, set_null: str) -> None:
    source.add(f"if {column} is None:")
    source.add(f"{set_null}; {column} = 0", 2)
    if isinstance(spark_type, DecimalType):
        source.add("else:")
        source.add(f"{column} = {source.bind(unscaled_of(spark_type))}({column})", 2)


def _add_variable(source: Source, spark_type: SparkType, index: int, set_null: str) -> None:
    """Emit code that puts padded bytes in `d{index}`, size in `n{index}`, offset in `o{index}`, and advances `o`."""
    data, size, column = f"d{index}", f"n{index}", f"c{index}"
    reserved = is_reserved(spark_type)
    padding = source.bind(PADDING)
    source.add(f"if {column} is None:")
    if reserved:
        # UnsafeRowWriter reserves 16 bytes even for a null, so that the value can be updated in place. The slot of a
        # null decimal has size 0, that of a null interval its full size.
        null_bytes = 0 if isinstance(spark_type, DecimalType) else RESERVED_BYTES
        source.add(f"{set_null}; {size} = {null_bytes}; {data} = {bytes(RESERVED_BYTES)!r}", 2)
    else:
        source.add(f"{set_null}; {size} = o{index} = 0; {data} = b''", 2)
    source.add("else:")
    source.add(f"{data} = {_inline_encoding(source, spark_type, column)}; {size} = len({data})", 2)
    if reserved:
        source.add(f"{data} = {data}.ljust({RESERVED_BYTES}, b'\\0')", 2)
        source.add(f"o{index} = o; o += {RESERVED_BYTES}")
    else:
        # The slot has the size without padding; the next value begins at a whole word (BufferHolder).
        source.add(f"o{index} = o; o += {size} + 7 & -8", 2)
        source.add(f"if {size} & 7:", 2)
        source.add(f"{data} += {padding}[{size} & 7]", 3)


def _inline_encoding(source: Source, spark_type: SparkType, column: str) -> str:
    if isinstance(spark_type, StringType):
        return f"{column}.encode('utf-8', 'surrogateescape')"
    if isinstance(spark_type, BinaryType):
        return column
    return f"{source.bind(_value_encoder(spark_type))}({column})"


def _encode_nothing(row: Sequence[object]) -> bytes:
    if row:
        raise ValueError(f"a row of a schema without columns has no values, got {len(row)}")
    return b""


def _value_encoder(spark_type: SparkType) -> Callable[..., bytes]:
    """Return a function from a value to its unpadded variable part."""
    match spark_type:
        case StringType():
            return lambda text: cast(str, text).encode("utf-8", "surrogateescape")
        case BinaryType() | VariantType():
            return bytes
        case DecimalType():
            unscaled = unscaled_of(spark_type)
            return lambda value: signed_big_endian(unscaled(value))
        case CalendarIntervalType():
            return lambda parts: CALENDAR_INTERVAL.pack(*parts)
        case StructType():
            return compile_row_encoder(spark_type)
        case ArrayType(element):
            return _array_encoder(element)
        case MapType(key, value):
            return _map_encoder(_array_encoder(key), _array_encoder(value))
        case _:
            raise AssertionError(f"{spark_type.name} has no variable part")


def _map_encoder(encode_keys: Callable[..., bytes], encode_values: Callable[..., bytes]) -> Callable[..., bytes]:
    def encode(pairs: Sequence[tuple[object, object]]) -> bytes:
        keys = encode_keys([key for key, _ in pairs])
        # UnsafeMapData: the size of the key array, the key array, the value array. Padding is part of the key array.
        return len(keys).to_bytes(8, "little") + keys + encode_values([value for _, value in pairs])

    return encode


def _array_encoder(element: SparkType) -> Callable[..., bytes]:
    code = fixed_code(element)
    if isinstance(element, VoidType):
        return lambda values: _array_head(values) + bytes(8 * len(values))
    if code is None:
        return _variable_array_encoder(_value_encoder(element))
    convert = unscaled_of(element) if isinstance(element, DecimalType) else None

    def encode(values: Sequence[object]) -> bytes:
        filled: Sequence[object] = values
        if convert is not None:
            filled = [0 if value is None else convert(value) for value in values]  # type: ignore[arg-type]
        elif None in values:
            filled = [0 if value is None else value for value in values]
        # Elements of an array stand at their own width, not in slots (UnsafeArrayData); only the whole is padded.
        body = struct.pack(f"<{len(values)}{code}", *filled)
        return _array_head(values) + body + PADDING[len(body) & 7]

    return encode


def _variable_array_encoder(encode_value: Callable[..., bytes]) -> Callable[..., bytes]:
    def encode(values: Sequence[object]) -> bytes:
        head = _array_head(values)
        offset = len(head) + 8 * len(values)
        slots: list[int] = []
        parts: list[bytes] = []
        for value in values:
            if value is None:
                slots += (0, 0)
                continue
            data = encode_value(value)
            slots += (len(data), offset)
            offset += len(data) + 7 & -8
            parts += (data, PADDING[len(data) & 7])
        return head + struct.pack(f"<{len(slots)}I", *slots) + b"".join(parts)

    return encode


def _array_head(values: Sequence[object]) -> bytes:
    """Return the element count and the null bitmap."""
    count = len(values)
    nulls = 0
    for index, value in enumerate(values):
        if value is None:
            nulls |= 1 << index
    return count.to_bytes(8, "little") + nulls.to_bytes(8 * bitmap_words(count), "little")


def compile_row_decoder(struct_type: StructType) -> RowDecoder:
    """Compile a function from UnsafeRow bytes to one value per field; it raises `CorruptFileError` when the bytes are
    not such a row.
    """
    return cast(RowDecoder, compile_reader(struct_type, _PythonValues()))


def read_unscaled(data: bytes) -> int:
    """Return the unscaled integer of a wide decimal."""
    if not 0 < len(data) <= RESERVED_BYTES:
        raise CorruptFileError(f"a decimal has {len(data)} bytes", where="a row", fix="The file is damaged")
    return int.from_bytes(data, "big", signed=True)


def read_calendar_interval(data: bytes) -> tuple[int, int, int]:
    if len(data) != RESERVED_BYTES:
        raise CorruptFileError(f"a calendar interval has {len(data)} bytes", where="a row", fix="The file is damaged")
    return CALENDAR_INTERVAL.unpack(data)


class _PythonValues:
    """The flavour of plain Python values, for computations."""

    def leaf(self, spark_type: SparkType) -> Leaf | None:
        match spark_type:
            case StringType():
                return Leaf(str, "{x}.decode('utf-8', 'surrogateescape')")
            case DecimalType():
                decimal = decimal_of(spark_type)
                return Leaf(lambda data: decimal(read_unscaled(data))) if spark_type.is_wide else Leaf(decimal)
            case CalendarIntervalType():
                return Leaf(read_calendar_interval)
            case _:
                return None

    def struct_literal(self, struct_type: StructType, variables: Sequence[str]) -> str:
        return f"({''.join(f'{variable}, ' for variable in variables)})"

    def map_builder(self, map_type: MapType) -> Callable[[list[object], list[object]], object]:
        return lambda keys, values: list(zip(keys, values, strict=True))
