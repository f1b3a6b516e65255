"""Converts UnsafeRow bytes to and from Python values, compiled once per schema
(`org.apache.spark.sql.catalyst.expressions.UnsafeRow`, `UnsafeArrayData`).

Pure. Everything is little-endian; a row is a null bitmap in 8-byte words, one 8-byte slot per field, then the variable
region, every piece of it padded to 8 bytes. A slot has the value, or the offset and the size of its variable part.
Offsets count from the start of their row (or array).

Integers, dates (days), timestamps (micros), times (nanos) and intervals (months or micros) are `int`; a calendar
interval is `(months, days, micros)`; decimals are `Decimal`, strings `str`, binary `bytes`; a struct is a tuple, an
array a list, a map a list of pairs, null is None. Strings that are not UTF-8 keep their bytes as surrogate escapes, so
that encoding a decoded row gives the same bytes.

Encoding gives exactly Spark's bytes: a key that differs in one byte is another key. Values must fit their types, as the
parsers of `json_values` ensure; an integer too large raises `struct.error`. Reading checks every offset and size: bytes
that are not a row of the schema raise `CorruptFileError`, nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple, Protocol, cast

from understudy_shared.base.errors import CorruptFileError
from understudy_shared.spark import types as t

PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
"""Padding bytes: `PADDING[size & 7]` completes `size` bytes to whole words."""
RESERVED_BYTES = 16
"""Size of a wide decimal or calendar interval in a row's variable region, null or not."""
CALENDAR_INTERVAL = struct.Struct("<iiq")
DECIMAL_CONTEXT = Context(prec=100)
"""Decimal arithmetic on 38-digit values must not round to the default 28 digits."""

_FIXED_CODES: dict[type[t.SparkType], str] = {
    t.BooleanType: "?",
    t.ByteType: "b",
    t.ShortType: "h",
    t.IntType: "i",
    t.DateType: "i",
    t.YearMonthIntervalType: "i",
    t.LongType: "q",
    t.TimestampType: "q",
    t.TimestampNtzType: "q",
    t.TimeType: "q",
    t.DayTimeIntervalType: "q",
    t.FloatType: "f",
    t.DoubleType: "d",
}


def fixed_code(spark_type: t.SparkType) -> str | None:
    """Return the `struct` code of a type stored in its slot; None for a type stored in the variable region."""
    if isinstance(spark_type, t.DecimalType):
        return None if spark_type.is_wide else "q"
    return _FIXED_CODES.get(type(spark_type))


def is_reserved(spark_type: t.SparkType) -> bool:
    """Whether Spark updates the variable part in place, so that even a null occupies its bytes in a row."""
    return isinstance(spark_type, t.CalendarIntervalType) or (
        isinstance(spark_type, t.DecimalType) and spark_type.is_wide
    )


def bitmap_words(count: int) -> int:
    return (count + 63) // 64


def fixed_bytes(struct_type: t.StructType) -> int:
    """Return the offset of the variable region of a row."""
    count = len(struct_type.fields)
    return 8 * (bitmap_words(count) + count)


def unscaled_of(decimal_type: t.DecimalType) -> Callable[[Decimal], int]:
    """Build the function from a Decimal to the integer that Spark stores; the value must fit the scale."""
    scale = decimal_type.scale

    def unscaled(value: Decimal) -> int:
        return int(value.scaleb(scale, DECIMAL_CONTEXT))

    return unscaled


def decimal_of(decimal_type: t.DecimalType) -> Callable[[int], Decimal]:
    scale = -decimal_type.scale

    def decimal(unscaled: int) -> Decimal:
        return Decimal(unscaled).scaleb(scale, DECIMAL_CONTEXT)

    return decimal


def signed_big_endian(value: int) -> bytes:
    """Return the bytes of Java's `BigInteger.toByteArray`: two's complement, as few bytes as hold the sign."""
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


class FunctionSource:
    """Python source of one function, grown line by line, with the objects that it refers to.

    Compiling per schema removes every per-column decision from the hot path: it is 3-5 times faster than closures.
    """

    def __init__(self, signature: str) -> None:
        self._lines = [f"def {signature}:"]
        self._names: dict[str, object] = {}
        self._function = signature.partition("(")[0]

    def bind(self, value: object) -> str:
        """Make an object available inside the function, and return its name there."""
        name = f"_{len(self._names)}"
        self._names[name] = value
        return name

    def add(self, text: str, depth: int = 1) -> None:
        self._lines.append("    " * depth + text)

    def compile(self) -> Callable[..., object]:
        # Safe to run: column names enter the text only as repr() literals.
        exec("\n".join(self._lines), self._names)  # noqa: S102
        return cast(Callable[..., object], self._names[self._function])


Reader = Callable[[bytes], object]

MAX_FIELDS_TWICE = 32
"""Limit on the fields of rows for which a second reader, for rows without nulls, is compiled: it takes time."""


class Leaf(NamedTuple):
    """The conversion of a raw scalar (number, bool, or the bytes of its variable part) to a value.

    `inline` is an expression over `{x}`, the raw value, and `{f}`, the function; bytes may stand in it only once.
    """

    function: Callable[..., object]
    inline: str = "{f}({x})"


class Flavour(Protocol):
    """The choice of the Python values that a reader builds."""

    def leaf(self, spark_type: t.SparkType) -> Leaf | None:
        """Return how to convert a raw value; None to use it as it is."""

    def struct_literal(self, struct_type: t.StructType, variables: Sequence[str]) -> str:
        """Return the Python expression that builds a row from its variables."""

    def map_builder(self, map_type: t.MapType) -> Callable[[list[object], list[object]], object]:
        """Return a function from keys and values, equally long, to a map."""


def compile_reader(struct_type: t.StructType, flavour: Flavour) -> Reader:
    """Compile a function from a row's bytes to the flavour's values."""
    source = FunctionSource("read(buf)")
    refuse = source.bind(_refuse_row(struct_type))
    _add_slots(source, struct_type, refuse)
    count, words = len(struct_type.fields), bitmap_words(len(struct_type.fields))
    returned = f"return {flavour.struct_literal(struct_type, [f'c{index}' for index in range(count)])}"
    # Leaves are compiled once for both branches below: a nested row is compiled here, too.
    leaves = [_leaf_of(field.type, flavour) for field in struct_type.fields]
    if 0 < count <= MAX_FIELDS_TWICE:
        # Most rows have no null, and one check per row costs less than one per column.
        source.add(f"if not ({' | '.join(f'm{word}' for word in range(words))}):")
        _add_columns(source, struct_type, leaves, refuse, depth=2, nulls=False)
        source.add(returned, 2)
    _add_columns(source, struct_type, leaves, refuse, depth=1, nulls=True)
    source.add(returned)
    return cast(Reader, source.compile())


def _add_slots(source: FunctionSource, struct_type: t.StructType, refuse: str) -> None:
    """Check the row's size and bitmap; take its slots apart."""
    count = len(struct_type.fields)
    words, fixed = bitmap_words(count), fixed_bytes(struct_type)
    codes, targets = ["<", "Q" * words], [f"m{word}" for word in range(words)]
    for index, field in enumerate(struct_type.fields):
        code = fixed_code(field.type)
        if isinstance(field.type, t.VoidType):
            codes.append("8x")
        elif code is not None:
            codes.append(f"{code}{8 - struct.calcsize(code)}x")
            targets.append(f"c{index}")
        else:
            codes.append("II")
            targets += [f"n{index}", f"o{index}"]
    has_variable = "II" in codes
    layout = struct.Struct("".join(codes))
    source.add("size = len(buf)")
    source.add(f"if size < {fixed} or size & 7:" if has_variable else f"if size != {fixed}:")
    source.add(f"raise {refuse}(size)", 2)
    if targets:
        source.add(f"{', '.join(targets)}, = {source.bind(layout.unpack_from)}(buf)")
    # Bits of the bitmap beyond the last column must be zero: bytes of another schema mostly fail here.
    if count % 64:
        source.add(f"if m{words - 1} >> {count % 64}:")
        source.add(f"raise {refuse}(size)", 2)


def _leaf_of(spark_type: t.SparkType, flavour: Flavour) -> Leaf | None:
    return flavour.leaf(spark_type) if fixed_code(spark_type) is not None else _variable_leaf(spark_type, flavour)


def _add_columns(
    source: FunctionSource,
    struct_type: t.StructType,
    leaves: Sequence[Leaf | None],
    refuse: str,
    *,
    depth: int,
    nulls: bool,
) -> None:
    """Emit the code that makes the columns' values of the raw ones. `nulls`: whether any of them may be null."""
    fixed = fixed_bytes(struct_type)
    for index, (field, leaf) in enumerate(zip(struct_type.fields, leaves, strict=True)):
        is_fixed, at = fixed_code(field.type) is not None, depth
        if isinstance(field.type, t.VoidType):
            source.add(f"c{index} = None", depth)
            continue
        if nulls:
            source.add(f"if m{index // 64} & {1 << index % 64}:", depth)
            source.add(f"c{index} = None", depth + 1)
            if is_fixed and leaf is None:
                continue
            source.add("else:", depth)
            at += 1
        if not is_fixed:
            source.add(f"e = o{index} + n{index}", at)
            # Offsets are data: one into the fixed part, or beyond the row, would read other columns as this one.
            source.add(f"if o{index} < {fixed} or e > size:", at)
            source.add(f"raise {refuse}(size, {index})", at + 1)
            source.add(f"c{index} = {_expression(source, leaf, f'buf[o{index}:e]')}", at)
        elif leaf is not None:
            source.add(f"c{index} = {_expression(source, leaf, f'c{index}')}", at)


def _expression(source: FunctionSource, leaf: Leaf | None, raw: str) -> str:
    return raw if leaf is None else leaf.inline.format(f=source.bind(leaf.function), x=raw)


def _variable_leaf(spark_type: t.SparkType, flavour: Flavour) -> Leaf | None:
    match spark_type:
        case t.StructType():
            return Leaf(compile_reader(spark_type, flavour))
        case t.ArrayType(element):
            return Leaf(_array_reader(element, flavour))
        case t.MapType():
            return Leaf(_map_reader(spark_type, flavour))
        case _:
            return flavour.leaf(spark_type)


def compile_cell_reader(spark_type: t.SparkType, flavour: Flavour) -> Callable[[Any], object]:
    """Compile a function from a raw cell that is not null, a number or the bytes of its variable part, to the flavour's
    value: of one column, where `compile_reader` reads whole rows.
    """
    return _leaf_function(_leaf_of(spark_type, flavour)) or _as_it_is


def _as_it_is(raw: object) -> object:
    return raw


def _leaf_function(leaf: Leaf | None) -> Callable[..., object] | None:
    """Return the leaf as a plain function, for elements of arrays."""
    if leaf is None or leaf.inline == Leaf(_outside).inline:
        return leaf and leaf.function
    source = FunctionSource("convert(x)")
    source.add(f"return {leaf.inline.format(f=source.bind(leaf.function), x='x')}")
    return source.compile()


def _array_reader(element: t.SparkType, flavour: Flavour) -> Callable[[bytes], list[object]]:
    code = fixed_code(element)
    is_void = isinstance(element, t.VoidType)
    width = 8 if code is None else struct.calcsize(code)
    convert = _leaf_function(
        _variable_leaf(element, flavour) if code is None and not is_void else flavour.leaf(element)
    )
    where = f"array<{element.name}>"

    def read(buf: bytes) -> list[object]:
        count, head = _array_bounds(buf, width, where)
        nulls = int.from_bytes(buf[8:head], "little")
        if nulls >> count:
            raise _outside(where, len(buf))
        if is_void:
            return [None] * count
        values: Sequence[object]
        values = _slices(buf, count, head, where) if code is None else struct.unpack_from(f"<{count}{code}", buf, head)
        if not nulls:
            return list(values) if convert is None else [convert(value) for value in values]
        return [
            None if nulls >> index & 1 else (value if convert is None else convert(value))
            for index, value in enumerate(values)
        ]

    return read


def _array_bounds(buf: bytes, width: int, where: str) -> tuple[int, int]:
    """Return the element count and the offset of the elements; refuse a count that the bytes cannot hold."""
    size = len(buf)
    count = int.from_bytes(buf[:8], "little", signed=True)
    head = 8 + 8 * bitmap_words(count)
    if size < 8 or count < 0 or head + count * width > size:
        raise _outside(where, size)
    return count, head


def _slices(buf: bytes, count: int, head: int, where: str) -> list[bytes]:
    """Return the bytes behind each slot; a null element has an empty slot."""
    slots = struct.unpack_from(f"<{2 * count}I", buf, head)
    first, size = head + 8 * count, len(buf)
    slices: list[bytes] = []
    for length, offset in zip(slots[::2], slots[1::2], strict=True):
        end = offset + length
        if end > size or (offset < first and end):
            raise _outside(where, size)
        slices.append(buf[offset:end])
    return slices


def _map_reader(map_type: t.MapType, flavour: Flavour) -> Callable[[bytes], object]:
    read_keys = _array_reader(map_type.key, flavour)
    read_values = _array_reader(map_type.value, flavour)
    build = flavour.map_builder(map_type)
    where = map_type.name

    def read(buf: bytes) -> object:
        end = 8 + int.from_bytes(buf[:8], "little", signed=True)
        # The size of the key array is data, too: a damaged one must not make the arrays overlap.
        if not 8 <= end <= len(buf):
            raise _outside(where, len(buf))
        keys, values = read_keys(buf[8:end]), read_values(buf[end:])
        if len(keys) != len(values):
            raise _outside(where, len(buf))
        return build(keys, values)

    return read


def _refuse_row(struct_type: t.StructType) -> Callable[..., CorruptFileError]:
    def refuse(size: int, column: int | None = None) -> CorruptFileError:
        return _outside(struct_type.name if column is None else f"column {struct_type.fields[column].name}", size)

    return refuse


def _outside(where: str, size: int) -> CorruptFileError:
    return CorruptFileError(
        f"{size} bytes are not a row of this schema",
        where=where,
        fix="The file is damaged, or the schema belongs to another version of the query",
    )


RowDecoder = Callable[[bytes], tuple[object, ...]]

RowEncoder = Callable[[Sequence[object]], bytes]


def compile_row_encoder(struct_type: t.StructType) -> RowEncoder:
    """Compile a function from a row (one value per field, None for null) to its UnsafeRow bytes."""
    if not struct_type.fields:
        return _encode_nothing
    source = FunctionSource("encode(row)")
    columns = [f"c{i}" for i in range(len(struct_type.fields))]
    words = bitmap_words(len(columns))
    source.add(f"{', '.join(columns)}, = row")
    source.add(" = ".join(f"m{word}" for word in range(words)) + " = 0")
    source.add(f"o = {fixed_bytes(struct_type)}")
    codes, arguments, tail = ["<", "Q" * words], [f"m{word}" for word in range(words)], []
    for index, field in enumerate(struct_type.fields):
        column, set_null = columns[index], f"m{index // 64} |= {1 << index % 64}"
        code = fixed_code(field.type)
        if isinstance(field.type, t.VoidType):
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


def _add_fixed(source: FunctionSource, spark_type: t.SparkType, column: str, set_null: str) -> None:
    source.add(f"if {column} is None:")
    source.add(f"{set_null}; {column} = 0", 2)
    if isinstance(spark_type, t.DecimalType):
        source.add("else:")
        source.add(f"{column} = {source.bind(unscaled_of(spark_type))}({column})", 2)


def _add_variable(source: FunctionSource, spark_type: t.SparkType, index: int, set_null: str) -> None:
    """Emit code that puts padded bytes in `d{index}`, size in `n{index}`, offset in `o{index}`, and advances `o`."""
    data, size, column = f"d{index}", f"n{index}", f"c{index}"
    reserved = is_reserved(spark_type)
    padding = source.bind(PADDING)
    source.add(f"if {column} is None:")
    if reserved:
        # UnsafeRowWriter reserves 16 bytes even for a null, so that the value can be updated in place. The slot of a
        # null decimal has size 0, that of a null interval its full size.
        null_bytes = 0 if isinstance(spark_type, t.DecimalType) else RESERVED_BYTES
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


def _inline_encoding(source: FunctionSource, spark_type: t.SparkType, column: str) -> str:
    if isinstance(spark_type, t.StringType):
        return f"{column}.encode('utf-8', 'surrogateescape')"
    if isinstance(spark_type, t.BinaryType):
        return column
    return f"{source.bind(_value_encoder(spark_type))}({column})"


def _encode_nothing(row: Sequence[object]) -> bytes:
    if row:
        raise ValueError(f"a row of a schema without columns has no values, got {len(row)}")
    return b""


def _value_encoder(spark_type: t.SparkType) -> Callable[..., bytes]:
    """Return a function from a value to its unpadded variable part."""
    match spark_type:
        case t.StringType():
            return lambda text: cast(str, text).encode("utf-8", "surrogateescape")
        case t.BinaryType() | t.VariantType():
            return bytes
        case t.DecimalType():
            unscaled = unscaled_of(spark_type)
            return lambda value: signed_big_endian(unscaled(value))
        case t.CalendarIntervalType():
            return lambda parts: CALENDAR_INTERVAL.pack(*parts)
        case t.StructType():
            return compile_row_encoder(spark_type)
        case t.ArrayType(element):
            return _array_encoder(element)
        case t.MapType(key, value):
            return _map_encoder(_array_encoder(key), _array_encoder(value))
        case _:
            raise AssertionError(f"{spark_type.name} has no variable part")


def _map_encoder(encode_keys: Callable[..., bytes], encode_values: Callable[..., bytes]) -> Callable[..., bytes]:
    def encode(pairs: Sequence[tuple[object, object]]) -> bytes:
        keys = encode_keys([key for key, _ in pairs])
        # UnsafeMapData: the size of the key array, the key array, the value array. Padding is part of the key array.
        return len(keys).to_bytes(8, "little") + keys + encode_values([value for _, value in pairs])

    return encode


def _array_encoder(element: t.SparkType) -> Callable[..., bytes]:
    code = fixed_code(element)
    if isinstance(element, t.VoidType):
        return lambda values: _array_head(values) + bytes(8 * len(values))
    if code is None:
        return _variable_array_encoder(_value_encoder(element))
    convert = unscaled_of(element) if isinstance(element, t.DecimalType) else None

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


def compile_row_decoder(struct_type: t.StructType) -> RowDecoder:
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

    def leaf(self, spark_type: t.SparkType) -> Leaf | None:
        match spark_type:
            case t.StringType():
                return Leaf(str, "{x}.decode('utf-8', 'surrogateescape')")
            case t.DecimalType():
                decimal = decimal_of(spark_type)
                return Leaf(lambda data: decimal(read_unscaled(data))) if spark_type.is_wide else Leaf(decimal)
            case t.CalendarIntervalType():
                return Leaf(read_calendar_interval)
            case _:
                return None

    def struct_literal(self, struct_type: t.StructType, variables: Sequence[str]) -> str:
        return f"({''.join(f'{variable}, ' for variable in variables)})"

    def map_builder(self, map_type: t.MapType) -> Callable[[list[object], list[object]], object]:
        return lambda keys, values: list(zip(keys, values, strict=True))
