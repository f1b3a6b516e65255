"""Compiles decoders of Avro records, and encoders of keys, as Spark writes them into state (`encodingFormat` avro).

Spark derives the Avro schema from the columns: every column is a union of null and its type, nullable or not; of the
elements only structs, arrays and maps are. A decimal is as many bytes as its precision needs. A record is read with its
writer's columns, and resolved to the newest schema by Avro's rules: columns are found by name, new ones are null, and
numbers may have become wider. Doubtful conversions are refused by name. Values are as in
`understudy_shared.spark.unsafe_row`. Keys are written exactly as Spark does: one that differs in one byte is another
key.

A reader takes the bytes and a position, and returns a value and the position after it. Every length is checked before
anything is read; malformed bytes raise CorruptFileError, and no other error. All of it is pure.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

from understudy_shared.base.errors import CorruptFileError, UnsupportedError
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    LongType,
    MapType,
    SparkType,
    StringType,
    StructType,
    TimestampNtzType,
    TimestampType,
)
from understudy_shared.spark.unsafe_row import decimal_of, unscaled_of

AvroDecoder = Callable[[bytes, int], tuple[object, ...]]
"""A function from the bytes of a record, which begins at a position and ends with them, to one value per column."""


Read = Callable[[bytes, int], tuple[object, int]]

_LONG_BYTES: Final = 10
_BITS_OF_INT: Final = 32
_BITS_OF_LONG: Final = 64


def damaged(what: str, at: int) -> CorruptFileError:
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


def packed_reader(form: struct.Struct) -> Read:
    """Make a reader of a number in so many bytes."""

    def read(data: bytes, at: int) -> tuple[object, int]:
        return form.unpack(_taken(data, at, form.size))[0], at + form.size

    return read


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


_READERS: Final[Mapping[type[SparkType], Read]] = MappingProxyType(
    {
        BooleanType: read_boolean,
        IntType: read_int,
        LongType: read_long,
        FloatType: packed_reader(struct.Struct("<f")),
        DoubleType: packed_reader(struct.Struct("<d")),
        StringType: read_string,
        BinaryType: read_bytes,
        DateType: read_int,
        TimestampType: read_long,
        TimestampNtzType: read_long,
    }
)
_WIDER: Final = frozenset(
    {(IntType, LongType), (IntType, FloatType), (IntType, DoubleType), (LongType, DoubleType), (FloatType, DoubleType)}
)
"""Promotions: a number of the first type is read as the second. Avro reads a long as a float, too."""
_AS_FLOATS: Final = (FloatType, DoubleType)


def compile_avro_decoder(written: StructType, shown: StructType) -> AvroDecoder:
    """Compile a decoder of records with the columns `written`; it returns the columns `shown`.

    Raises UnsupportedError where the former cannot be read as the latter. The decoder raises CorruptFileError for bytes
    that are not such a record to their end.
    """
    read = _struct_reader(written, shown, "")

    def decode(data: bytes, at: int) -> tuple[object, ...]:
        row, end = read(data, at)
        # Bytes that are left belong to another schema, even if each value before them made sense.
        if end != len(data):
            raise damaged("there are bytes after it", end)
        return cast("tuple[object, ...]", row)

    return decode


def is_written_alike(one: StructType, other: StructType) -> bool:
    """Whether records with these columns are the same bytes: names do not matter."""
    return _form(one) == _form(other)


def _form(kind: SparkType) -> object:
    match kind:
        case StructType(fields):
            return "struct", tuple(_form(each.type) for each in fields)
        case ArrayType(element):
            return "array", _form(element)
        case MapType(key, value):
            return "map", _form(key), _form(value)
        case _:
            return kind


def is_union(element: SparkType) -> bool:
    """Whether an element of an array, or a value of a map, may be null."""
    return isinstance(element, StructType | ArrayType | MapType)


def fixed_size(decimal: DecimalType) -> int:
    """Return how many bytes hold every decimal of a precision (Avro's fixed decimal in Spark's SchemaConverters)."""
    greatest: int = 10**decimal.precision - 1
    return greatest.bit_length() // 8 + 1


def require_avro(struct: StructType, path: str = "") -> None:
    """Raise UnsupportedError for columns that Spark does not write as Avro, or that were never compared."""
    if not struct.fields:
        raise _unsupported("a struct without columns", path)
    repeated = [name for name, count in Counter(each.name for each in struct.fields).items() if count > 1]
    if repeated:
        raise _unsupported("two columns of one name", f"{path}{repeated[0]}")
    for each in struct.fields:
        _require_type(each.type, f"{path}{each.name}")


def _require_type(kind: SparkType, path: str) -> None:
    match kind:
        case StructType():
            require_avro(kind, f"{path}.")
        case ArrayType(element):
            _require_type(element, path)
        case MapType(StringType(), value):
            _require_type(value, path)
        case DecimalType():
            pass
        case BinaryType(opaque_as) if opaque_as:  # it is a record there
            raise _unsupported(f"type {opaque_as}", path)
        case _ if type(kind) not in _READERS:
            raise _unsupported(f"type {kind.name}", path)


def _struct_reader(written: StructType, shown: StructType, path: str) -> Read:
    """Make a reader of the columns in the order they were written; it puts each where it is shown."""
    require_avro(written, path)
    require_avro(shown, path)
    places = {each.name: place for place, each in enumerate(shown.fields)}
    steps = []
    for each in written.fields:
        place = places.get(each.name)
        # A dropped column is read by its own type, only to find where the next one begins.
        target = each if place is None else shown.fields[place]
        read_value = _value_reader(each.type, target.type, f"{path}{each.name}")
        steps.append((nullable_reader(read_value), place))
    count = len(shown.fields)

    def read(data: bytes, at: int) -> tuple[object, int]:
        row: list[object] = [None] * count
        for read_column, place in steps:
            value, at = read_column(data, at)
            if place is not None:
                row[place] = value
        return tuple(row), at

    return read


def _value_reader(stored: SparkType, given: SparkType, where: str) -> Read:
    match stored, given:
        case StructType(), StructType():
            return _struct_reader(stored, given, f"{where}.")
        case ArrayType(), ArrayType():
            return array_reader(_element_reader(stored.element, given.element, where))
        case MapType(StringType()), MapType(StringType()):
            return array_reader(pair_reader(read_string, _element_reader(stored.value, given.value, where)))
        # Avro matches decimals of the same precision and scale only.
        case DecimalType(), DecimalType() if stored == given:
            return fixed_reader(fixed_size(stored), decimal_of(stored))
    read = _READERS.get(type(stored))
    kinds = (type(stored), type(given))
    if read is None or not (kinds[0] is kinds[1] or kinds in _WIDER):
        raise _unsupported(f"a {stored.name} that became a {given.name}", where)
    return _as_float(read) if kinds[0] is not kinds[1] and kinds[1] in _AS_FLOATS else read


def _element_reader(stored: SparkType, given: SparkType, where: str) -> Read:
    read = _value_reader(stored, given, where)
    return nullable_reader(read) if is_union(stored) else read


def _as_float(read_number: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[object, int]:
        number, end = read_number(data, at)
        # An int would be printed as 1 where Spark's value is 1.0.
        return float(cast(float, number)), end

    return read


def _unsupported(what: str, where: str) -> UnsupportedError:
    return UnsupportedError(
        f"Avro state with {what} is not read",
        where=f"column {where}" if where else "the record",
        fix="Use a newer Understudy, or keep the column in a type that has not changed",
    )


Write = Callable[[Any], bytes]

_NULL, _VALUE = b"\x00", b"\x02"
"""Branches of a column, as zig-zag varints of 0 and 1."""


class NoSuchKeyError(ValueError):
    """An element of an array is null: Spark writes no such key."""


def compile_avro_encoder(columns: StructType) -> Callable[[Sequence[object]], bytes]:
    """Compile a function from a row to its record. Raises UnsupportedError for columns that Avro state lacks."""
    require_avro(columns)
    return _struct_writer(columns)


def _struct_writer(columns: StructType) -> Callable[[Sequence[object]], bytes]:
    writers = [_union(_value_writer(each.type)) for each in columns.fields]
    return lambda row: b"".join([write(value) for write, value in zip(writers, row, strict=True)])


def _union(write_value: Write) -> Write:
    return lambda value: _NULL if value is None else _VALUE + write_value(value)


def _value_writer(kind: SparkType) -> Write:
    match kind:
        case StructType():
            return _struct_writer(kind)
        case ArrayType(element):
            write_element = _value_writer(element)
            return _array_writer(_union(write_element) if is_union(element) else _never_null(write_element))
        case DecimalType():
            size, unscaled = fixed_size(kind), unscaled_of(kind)
            return lambda value: unscaled(value).to_bytes(size, "big", signed=True)
        case MapType():  # in the order of Java's hash map
            raise UnsupportedError(
                "A key of Avro state with a map is not read",
                where=f"type {kind.name}",
                fix="Group by the entries of the map, or by a text of it",
            )
        case _:
            return _WRITERS[type(kind)]


def _never_null(write_value: Write) -> Write:
    def write(value: object) -> bytes:
        if value is None:
            raise NoSuchKeyError
        return write_value(value)

    return write


def _array_writer(write_element: Write) -> Write:
    def write(values: Sequence[object]) -> bytes:
        # One block with all elements, then the empty block that ends every array.
        head = _number(len(values)) if values else b""
        return head + b"".join(map(write_element, values)) + _number(0)

    return write


def _number(value: int) -> bytes:
    # Python's ints have no width: of a long the shift by 63 leaves 0 or -1, as in Java.
    raw, written = (value << 1) ^ (value >> 63), bytearray()
    while raw > 0x7F:
        written.append(raw & 0x7F | 0x80)
        raw >>= 7
    written.append(raw)
    return bytes(written)


def _sized(data: bytes) -> bytes:
    return _number(len(data)) + data


_WRITERS: Final[Mapping[type[SparkType], Write]] = MappingProxyType(
    {
        BooleanType: lambda value: b"\x01" if value else b"\x00",
        IntType: _number,
        LongType: _number,
        FloatType: struct.Struct("<f").pack,
        DoubleType: struct.Struct("<d").pack,
        # As rows are read: bytes that are not UTF-8 come back unchanged.
        StringType: lambda value: _sized(value.encode("utf-8", "surrogateescape")),
        BinaryType: _sized,
        DateType: _number,
        TimestampType: _number,
        TimestampNtzType: _number,
    }
)
