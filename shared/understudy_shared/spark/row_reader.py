"""Compiles readers of UnsafeRow bytes: a `Flavour` decides what each leaf, struct and map becomes.

Pure. Every offset and size is checked: bytes that are not a row of the schema raise `CorruptFileError`, nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

from understudy_shared.base.errors import CorruptFileError
from understudy_shared.spark.layout import Source, bitmap_words, fixed_bytes, fixed_code
from understudy_shared.spark.types import ArrayType, MapType, SparkType, StructType, VoidType

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

    def leaf(self, spark_type: SparkType) -> Leaf | None:
        """Return how to convert a raw value; None to use it as it is."""

    def struct_literal(self, struct_type: StructType, variables: Sequence[str]) -> str:
        """Return the Python expression that builds a row from its variables."""

    def map_builder(self, map_type: MapType) -> Callable[[list[object], list[object]], object]:
        """Return a function from keys and values, equally long, to a map."""


def compile_reader(struct_type: StructType, flavour: Flavour) -> Reader:
    """Compile a function from a row's bytes to the flavour's values."""
    source = Source("read(buf)")
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


def _add_slots(source: Source, struct_type: StructType, refuse: str) -> None:
    """Check the row's size and bitmap; take its slots apart."""
    count = len(struct_type.fields)
    words, fixed = bitmap_words(count), fixed_bytes(struct_type)
    codes, targets = ["<", "Q" * words], [f"m{word}" for word in range(words)]
    for index, field in enumerate(struct_type.fields):
        code = fixed_code(field.type)
        if isinstance(field.type, VoidType):
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


def _leaf_of(spark_type: SparkType, flavour: Flavour) -> Leaf | None:
    return flavour.leaf(spark_type) if fixed_code(spark_type) is not None else _variable_leaf(spark_type, flavour)


def _add_columns(
    source: Source, struct_type: StructType, leaves: Sequence[Leaf | None], refuse: str, *, depth: int, nulls: bool
) -> None:
    """Emit the code that makes the columns' values of the raw ones. `nulls`: whether any of them may be null."""
    fixed = fixed_bytes(struct_type)
    for index, (field, leaf) in enumerate(zip(struct_type.fields, leaves, strict=True)):
        is_fixed, at = fixed_code(field.type) is not None, depth
        if isinstance(field.type, VoidType):
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


def _expression(source: Source, leaf: Leaf | None, raw: str) -> str:
    return raw if leaf is None else leaf.inline.format(f=source.bind(leaf.function), x=raw)


def _variable_leaf(spark_type: SparkType, flavour: Flavour) -> Leaf | None:
    match spark_type:
        case StructType():
            return Leaf(compile_reader(spark_type, flavour))
        case ArrayType(element):
            return Leaf(_array_reader(element, flavour))
        case MapType():
            return Leaf(_map_reader(spark_type, flavour))
        case _:
            return flavour.leaf(spark_type)


def compile_cell_reader(spark_type: SparkType, flavour: Flavour) -> Callable[[Any], object]:
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
    source = Source("convert(x)")
    source.add(f"return {leaf.inline.format(f=source.bind(leaf.function), x='x')}")
    return source.compile()


def _array_reader(element: SparkType, flavour: Flavour) -> Callable[[bytes], list[object]]:
    code = fixed_code(element)
    is_void = isinstance(element, VoidType)
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


def _map_reader(map_type: MapType, flavour: Flavour) -> Callable[[bytes], object]:
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


def _refuse_row(struct_type: StructType) -> Callable[..., CorruptFileError]:
    def refuse(size: int, column: int | None = None) -> CorruptFileError:
        return _outside(struct_type.name if column is None else f"column {struct_type.fields[column].name}", size)

    return refuse


def _outside(where: str, size: int) -> CorruptFileError:
    return CorruptFileError(
        f"{size} bytes are not a row of this schema",
        where=where,
        fix="The file is damaged, or the schema belongs to another version of the query",
    )
