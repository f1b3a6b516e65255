"""The forms of many rows, put together from the cells of their columns: NDJSON, CSV, and Arrow (pure).

JSON is printed as `orjson` prints what `json_printer` makes of each cell: that of frequent types many at once, the
others value by value, by the printer itself. Arrow is equal to that of `ArrowRows`, without a Python value for each
cell: those of a slice become a chunk, checked but not an array yet. The chunks of a part become one array, so pyarrow
is called once for each column. It is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import orjson

from understudy_node.questions.export.bulk.part import (
    U8,
    AnyCells,
    FixedCells,
    Form,
    Mask,
    PartPiece,
    Projection,
    UnfitRowsError,
    VariableCells,
    is_ascii,
    is_text,
    joined,
    printed,
    values_of,
)
from understudy_shared.http.lookup_requests import numbers_as_text
from understudy_shared.questions.export.columns import PROBLEM, ExportColumns, arrow_schema
from understudy_shared.questions.scan.hop import MAX_ROW_BYTES
from understudy_shared.reads.export_format import csv_field
from understudy_shared.spark.arrow import arrow_type
from understudy_shared.spark.json_printer import compile_json_cell
from understudy_shared.spark.temporal import MICROS_PER_DAY, NANOS_PER_DAY, date_text
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DateType,
    DecimalType,
    DoubleType,
    IntegralType,
    MapType,
    SparkType,
    StringType,
    StructType,
    TimestampNtzType,
    TimestampType,
    TimeType,
    VariantType,
    VoidType,
    YearMonthIntervalType,
)

if TYPE_CHECKING:
    import pyarrow as pa

PrintCells = Callable[[AnyCells], list[bytes]]
"""A function from a column's cells to the JSON, or the field of CSV, of each."""

NULL: Final = b"null"
_QUOTE, _BACKSLASH, _NEWLINE, _FIRST_PRINTABLE = 0x22, 0x5C, 0x0A, 0x20


def cell_printer(spark_type: SparkType, *, longs_as_text: bool = False, label: bytes = b"") -> PrintCells:
    """Return the printer of a column. It raises UnfitRowsError for cells that are not of their type. Each text begins
    with `label`, which has no line break.
    """
    match spark_type:
        case VoidType():
            return lambda cells: [label + NULL] * len(_fixed(cells).values)
        case IntegralType() if not longs_as_text:
            return _labelled_nulls(partial(_json_numbers, label=label), label)
        case DoubleType():
            return _labelled_nulls(partial(_json_doubles, label=label), label)
        case StringType():
            return _labelled_nulls(partial(_json_strings, label=label), label)
    print_cells = _unlabelled(spark_type, longs_as_text=longs_as_text)
    return _labelled_nulls(
        (lambda cells: [label + text for text in print_cells(cells)]) if label else print_cells, label
    )


def _unlabelled(spark_type: SparkType, *, longs_as_text: bool) -> Callable[[Any], list[bytes]]:
    match spark_type:
        case IntegralType():
            return _long_texts
        case BooleanType():
            return _json_booleans
        case DateType():
            return _dates
        case TimestampType():
            return partial(_timestamps, zone=b'Z"')
        case TimestampNtzType():
            return partial(_timestamps, zone=b'"')
        case _:
            return partial(_json_one_by_one, compile_json_cell(spark_type), longs_as_text=longs_as_text)


def _labelled_nulls(print_cells: Callable[[Any], list[bytes]], label: bytes) -> PrintCells:
    def printed(cells: AnyCells) -> list[bytes]:
        texts = print_cells(cells)
        if cells.nulls is not None:
            for at in np.flatnonzero(cells.nulls).tolist():
                texts[at] = label + NULL
        return texts

    return printed


def _fixed(cells: AnyCells) -> FixedCells:
    assert isinstance(cells, FixedCells), "what is in slots"
    return cells


def _json_numbers(cells: FixedCells, *, label: bytes = b"") -> list[bytes]:
    array = orjson.dumps(np.ascontiguousarray(cells.values), option=orjson.OPT_SERIALIZE_NUMPY)
    return _split(array[1:-1], b",", label)


def _split(texts: bytes, between: bytes, label: bytes) -> list[bytes]:
    """Split texts at `between`, with the label before each. It is put there before the split, which is faster."""
    return (label + texts.replace(between, b"\n" + label)).split(b"\n") if label else texts.split(between)


def _long_texts(cells: FixedCells) -> list[bytes]:
    return [b'"%b"' % text for text in _json_numbers(cells)]


def _json_booleans(cells: FixedCells) -> list[bytes]:
    return [b"true" if each else b"false" for each in cells.values.tolist()]


def _json_doubles(cells: FixedCells, *, label: bytes = b"") -> list[bytes]:
    finite = np.isfinite(cells.values)
    if bool(finite.all()):
        return _json_numbers(cells, label=label)
    texts = _json_numbers(FixedCells(np.where(finite, cells.values, 0.0), None), label=label)
    for at in np.flatnonzero(~finite).tolist():
        value = cells.values[at]
        texts[at] = label + (b'"NaN"' if np.isnan(value) else b'"Infinity"' if value > 0 else b'"-Infinity"')
    return texts


def _dates(cells: FixedCells) -> list[bytes]:
    days = values_of(cells)
    unique, inverse = np.unique(days, return_inverse=True)
    texts = [b'"%b"' % date_text(day).encode() for day in unique.tolist()]
    return [texts[at] for at in inverse.tolist()]


def _timestamps(cells: FixedCells, *, zone: bytes) -> list[bytes]:
    """Print timestamps: the dates, of which there are few, one by one, and the digits of the times at once."""
    days, micros = np.divmod(values_of(cells), MICROS_PER_DAY)
    unique, inverse = np.unique(days, return_inverse=True)
    dates = [date_text(day).encode() for day in unique.tolist()]
    seconds, fraction = np.divmod(micros, 1_000_000)
    minutes, second = np.divmod(seconds, 60)
    hour, minute = np.divmod(minutes, 60)
    template = b"T00:00:00.000000%b" % zone
    times = np.tile(np.frombuffer(template, np.uint8), (len(days), 1))
    for at, width, values in ((1, 2, hour), (4, 2, minute), (7, 2, second), (10, 6, fraction)):
        _write_digits(times, at, width, values)
    texts = times.reshape(-1).view(f"S{len(template)}").tolist()
    return [b'"%b%b' % (dates[day], text) for day, text in zip(inverse.tolist(), texts, strict=True)]


def _write_digits(out: U8, at: int, width: int, values: npt.NDArray[Any]) -> None:
    rest = values.astype(np.int32)
    for column in range(at + width - 1, at - 1, -1):
        rest, digit = np.divmod(rest, 10)
        out[:, column] = digit + ord("0")


def _json_strings(cells: VariableCells, *, label: bytes = b"") -> list[bytes]:
    """Print strings that need no escapes as they are, in quotes; others one by one."""
    out, begins = joined(cells, before=1, behind=2, fill=_QUOTE)
    ends = begins + cells.sizes + 2
    out[ends] = _NEWLINE
    # Where a quote, a backslash or a control character is in a string, there are more of them than strings have.
    special = np.count_nonzero((out < _FIRST_PRINTABLE) | (out == _QUOTE) | (out == _BACKSLASH))
    if special == 3 * len(ends) and is_text(out):
        return _split(out[:-1].tobytes(), b"\n", label)
    return [label + text for text in _json_one_by_one(compile_json_cell(StringType()), cells)]


def _json_one_by_one(
    print_cell: Callable[[Any], object], cells: AnyCells, *, longs_as_text: bool = False
) -> list[bytes]:
    values = printed(print_cell, cells)
    if longs_as_text:
        values = [numbers_as_text(each) for each in values]
    return [orjson.dumps(each) for each in values]


_SPECIAL: Final = np.frombuffer(b',"\n\r', np.uint8)
_AT_EDGE: Final = np.frombuffer(b" \t#", np.uint8)
"""Bytes for which a field is quoted: the first ones anywhere, the second ones at its ends; `#` begins a comment."""


def field_printer(spark_type: SparkType, *, is_first: bool, longs_as_text: bool = False) -> PrintCells:
    """Return the printer of a column; `is_first`: of the first one. It raises UnfitRowsError for cells that are not of
    their type.
    """
    match spark_type:
        case VoidType() | IntegralType() | BooleanType():
            return partial(_csv_plain, cell_printer(spark_type))
        case DoubleType():
            return partial(_csv_doubles, cell_printer(spark_type))
        case DateType() | TimestampType() | TimestampNtzType():
            return partial(_csv_unquoted, cell_printer(spark_type))
        case StringType():
            return partial(_csv_strings, one_by_one=_csv_one_by_one(spark_type, is_first=is_first, longs_as_text=False))
        case _:
            return _csv_one_by_one(spark_type, is_first=is_first, longs_as_text=longs_as_text)


def _csv_plain(print_cells: Callable[[AnyCells], list[bytes]], cells: AnyCells) -> list[bytes]:
    """Return JSON without quotes as fields."""
    return _csv_with_nulls(print_cells(cells), cells)


def _csv_doubles(print_cells: Callable[[AnyCells], list[bytes]], cells: AnyCells) -> list[bytes]:
    assert isinstance(cells, FixedCells), "what is in slots"
    return (
        _csv_plain(print_cells, cells) if bool(np.isfinite(cells.values).all()) else _csv_unquoted(print_cells, cells)
    )


def _csv_unquoted(print_cells: Callable[[AnyCells], list[bytes]], cells: AnyCells) -> list[bytes]:
    """Return JSON of numbers and plain texts as fields."""
    return _csv_with_nulls([text.strip(b'"') for text in print_cells(cells)], cells)


def _csv_with_nulls(texts: list[bytes], cells: AnyCells) -> list[bytes]:
    if cells.nulls is not None:
        for at in np.flatnonzero(cells.nulls).tolist():
            texts[at] = b""
    return texts


def _csv_strings(cells: VariableCells, *, one_by_one: PrintCells) -> list[bytes]:
    """Print strings as they are if no string has to be quoted, else one by one."""
    is_empty = cells.sizes == 0 if cells.nulls is None else (cells.sizes == 0) & ~cells.nulls
    out, begins = joined(cells, behind=1, fill=_NEWLINE)
    ends = begins + cells.sizes
    filled = cells.sizes > 0
    edges = np.concatenate((out[begins[filled]], out[ends[filled] - 1]))
    special = int(np.isin(out, _SPECIAL).sum()) - len(ends)
    if special or bool(is_empty.any()) or bool(np.isin(edges, _AT_EDGE).any()) or not is_text(out):
        return one_by_one(cells)
    texts = out.tobytes().split(b"\n")
    texts.pop()
    return texts


def _csv_one_by_one(spark_type: SparkType, *, is_first: bool, longs_as_text: bool) -> PrintCells:
    print_cell = compile_json_cell(spark_type)

    def print_fields(cells: AnyCells) -> list[bytes]:
        values: list[Any] = printed(print_cell, cells)
        if longs_as_text:
            values = [numbers_as_text(each) for each in values]
        return [csv_field(each, is_first=is_first) for each in values]

    return print_fields


class NdjsonForm(Form):
    """The form of NDJSON: each line has a row of a scan."""

    def __init__(self, table: Projection, *, longs_as_text: bool = False) -> None:
        *labels, self._end = _between(table)
        self._printers = [
            cell_printer(each.type, longs_as_text=longs_as_text, label=label)
            for each, label in zip(table.columns, labels, strict=True)
        ]

    def piece(self, cells: Sequence[AnyCells], count: int) -> PartPiece:
        columns = [print_cells(column) for print_cells, column in zip(self._printers, cells, strict=True)]
        lines = b"".join(chain.from_iterable(zip(*columns, repeat(self._end, count), strict=True)))
        if len(lines) > MAX_ROW_BYTES:
            raise UnfitRowsError  # a row may be too long, which only the row says
        return PartPiece(lines, count, len(lines))


class CsvLines(Form):
    """The form of CSV: a field for each column, and an empty one for the problem that no row has."""

    def __init__(self, table: Projection, *, longs_as_text: bool = False) -> None:
        self._printers = [
            field_printer(each.type, is_first=not at, longs_as_text=longs_as_text)
            for at, each in enumerate(table.columns)
        ]

    def piece(self, cells: Sequence[AnyCells], count: int) -> PartPiece:
        columns: list[Iterable[bytes]] = []
        for print_fields, column in zip(self._printers, cells, strict=True):
            columns += [print_fields(column), repeat(b",", count)]
        lines = b"".join(chain.from_iterable(zip(*columns, repeat(b"\n", count), strict=True)))
        if len(lines) > MAX_ROW_BYTES:
            raise UnfitRowsError
        return PartPiece(lines, count, len(lines))


def _between(table: Projection) -> list[bytes]:
    """Return the bytes of a line before its first cell, between two cells, and after its last."""
    between = [b'{"row":{"key":{']
    part = "key"
    is_first = True
    for column in table.columns:
        if column.part != part:
            between[-1] += b'},"value":{'
            part, is_first = column.part, True
        between[-1] += b"%b%b:" % (b"" if is_first else b",", orjson.dumps(column.name))
        between.append(b"")
        is_first = False
    if part == "key" and table.has_value:
        between[-1] += b'},"value":{'
    between[-1] += b"}}}\n"
    return between


class ColumnChunk(NamedTuple):
    """The cells of a column in a slice, as an array will hold them: `values` are numbers, or the bytes of texts, each
    of which has one of `sizes`. `size_bytes` is what they take of an array.
    """

    values: npt.NDArray[Any]
    sizes: npt.NDArray[np.int64] | None
    nulls: Mask | None
    size_bytes: int


class ArrowColumn(NamedTuple):
    """The two steps from the cells of a column to its array."""

    chunk: Callable[[Any], ColumnChunk]
    """Raises UnfitRowsError for cells that Arrow cannot hold."""
    array: Callable[[Sequence[ColumnChunk]], Any]


def arrow_column(spark_type: SparkType) -> ArrowColumn | None:
    """Return how a column's arrays are made; None for nested types."""
    kind = arrow_type(spark_type)
    numbers = partial(_array_of_numbers, kind)
    match spark_type:
        case StructType() | ArrayType() | MapType():
            return None
        case VoidType():
            return ArrowColumn(_arrow_voids, _array_of_voids)
        case BooleanType():
            return ArrowColumn(_arrow_booleans, partial(_array_of_booleans, kind))
        case StringType() | BinaryType():
            chunk = partial(_arrow_bytes, is_string=isinstance(spark_type, StringType))
            return ArrowColumn(chunk, partial(_array_of_texts, kind))
        case DecimalType():
            return ArrowColumn(partial(_arrow_wide_decimals if spark_type.is_wide else _arrow_decimals, kind), numbers)
        case YearMonthIntervalType() | CalendarIntervalType() | VariantType():
            return ArrowColumn(partial(_arrow_texts, compile_json_cell(spark_type)), partial(_array_of_texts, kind))
        case TimeType():
            return ArrowColumn(_arrow_times, numbers)
        case _:
            return ArrowColumn(_arrow_numbers, numbers)


def _chunk(values: npt.NDArray[Any], nulls: Mask | None) -> ColumnChunk:
    return ColumnChunk(values, None, nulls, values.nbytes + _bits_bytes(nulls))


def _bits_bytes(nulls: Mask | None) -> int:
    return 0 if nulls is None else (len(nulls) + 7) // 8


def _arrow_voids(cells: AnyCells) -> ColumnChunk:
    return ColumnChunk(_fixed(cells).values, None, None, 0)


def _arrow_numbers(cells: AnyCells) -> ColumnChunk:
    return _chunk(_fixed(cells).values, cells.nulls)


def _arrow_times(cells: AnyCells) -> ColumnChunk:
    nanos = values_of(_fixed(cells))
    if bool(((nanos < 0) | (nanos >= NANOS_PER_DAY)).any()):
        raise UnfitRowsError
    return _chunk(nanos, cells.nulls)


def _arrow_booleans(cells: AnyCells) -> ColumnChunk:
    values = _fixed(cells).values != 0
    return ColumnChunk(values, None, cells.nulls, (len(values) + 7) // 8 + _bits_bytes(cells.nulls))


def _arrow_bytes(cells: VariableCells, *, is_string: bool) -> ColumnChunk:
    chars, begins = joined(cells)
    if is_string and not is_ascii(chars):
        inside = chars[begins[cells.sizes > 0]] & _CONTINUATION_MASK == _CONTINUATION
        if bool(inside.any()) or not is_text(chars):
            raise UnfitRowsError
    return _chunk_of_texts(chars, cells.sizes, cells.nulls)


def _chunk_of_texts(chars: U8, sizes: npt.NDArray[np.int64], nulls: Mask | None) -> ColumnChunk:
    return ColumnChunk(chars, sizes, nulls, 4 * len(sizes) + len(chars) + _bits_bytes(nulls))


def _arrow_decimals(kind: pa.DataType, cells: AnyCells) -> ColumnChunk:
    unscaled = values_of(_fixed(cells))
    limit = 10**kind.precision
    if bool(((unscaled >= limit) | (unscaled <= -limit)).any()):
        raise UnfitRowsError
    return _chunk(np.stack((unscaled, unscaled >> 63), axis=1), cells.nulls)


def _arrow_wide_decimals(kind: pa.DataType, cells: VariableCells) -> ColumnChunk:
    limit = 10**kind.precision
    unscaled = [int.from_bytes(piece, "big", signed=True) for piece in cells.pieces()]
    sizes = cells.sizes if cells.nulls is None else cells.sizes[~cells.nulls]
    if bool((sizes == 0).any()) or not all(-limit < each < limit for each in unscaled):
        raise UnfitRowsError
    halves = b"".join(each.to_bytes(16, "little", signed=True) for each in unscaled)
    return _chunk(np.frombuffer(halves, np.int64).reshape(-1, 2), cells.nulls)


def _arrow_texts(print_cell: Callable[[Any], object], cells: AnyCells) -> ColumnChunk:
    """Make texts of what is printed for each cell."""
    texts = ["" if each is None else str(each) for each in printed(print_cell, cells)]
    pieces = [text.encode() for text in texts]
    sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
    return _chunk_of_texts(np.frombuffer(b"".join(pieces), np.uint8), sizes, cells.nulls)


def _array_of_voids(chunks: Sequence[ColumnChunk]) -> Any:
    return _pyarrow().nulls(sum(len(each.values) for each in chunks))


def _array_of_booleans(kind: pa.DataType, chunks: Sequence[ColumnChunk]) -> Any:
    values = np.concatenate([each.values for each in chunks])
    return _array(kind, len(values), chunks, np.packbits(values, bitorder="little"))


def _array_of_numbers(kind: pa.DataType, chunks: Sequence[ColumnChunk]) -> Any:
    values = np.concatenate([each.values for each in chunks])
    return _array(kind, len(values), chunks, values)


def _array_of_texts(kind: pa.DataType, chunks: Sequence[ColumnChunk]) -> Any:
    sizes = np.concatenate([each.sizes for each in chunks if each.sizes is not None])
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return _array(kind, len(sizes), chunks, offsets, np.concatenate([each.values for each in chunks]))


def _array(kind: pa.DataType, count: int, chunks: Sequence[ColumnChunk], *buffers: npt.NDArray[Any]) -> Any:
    pa = _pyarrow()
    validity = None
    if any(each.nulls is not None for each in chunks):
        valid = [_valid(each) for each in chunks]
        validity = pa.py_buffer(np.packbits(np.concatenate(valid), bitorder="little"))
    return pa.Array.from_buffers(kind, count, [validity, *map(pa.py_buffer, buffers)])


def _valid(chunk: ColumnChunk) -> Mask:
    if chunk.nulls is not None:
        return ~chunk.nulls
    return np.ones(len(chunk.values) if chunk.sizes is None else len(chunk.sizes), np.bool_)


def _pyarrow() -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return pa


_CONTINUATION, _CONTINUATION_MASK = 0x80, 0xC0
"""The bits by which a byte inside a character of UTF-8 is known."""


class ArrowForm(Form):
    """The form of Arrow: one record batch for a part."""

    def __init__(self, columns: ExportColumns, made: Mapping[tuple[str, ...], ArrowColumn]) -> None:
        self._columns = columns
        self._made = made
        self._schema = arrow_schema(columns, {})

    def piece(self, cells: Sequence[AnyCells], count: int) -> PartPiece:
        chunks = [made.chunk(column) for made, column in zip(self._made.values(), cells, strict=True)]
        return PartPiece(chunks, count, sum(chunk.size_bytes for chunk in chunks))

    def payload(self, pieces: Sequence[PartPiece]) -> tuple[bytes | memoryview, ...]:
        if not pieces:
            return ()
        import pyarrow as pa  # noqa: PLC0415

        columns = zip(*(cast("list[ColumnChunk]", piece.made) for piece in pieces), strict=True)
        arrays = {path: made.array(chunks) for (path, made), chunks in zip(self._made.items(), columns, strict=True)}
        arrays[PROBLEM,] = pa.nulls(sum(piece.rows for piece in pieces), pa.string())
        placed = [
            arrays[field.name,] if (field.name,) in arrays else self._struct(field, arrays) for field in self._schema
        ]
        return (memoryview(pa.record_batch(placed, schema=self._schema).serialize()),)

    def _struct(self, field: Any, arrays: Mapping[tuple[str, ...], Any]) -> Any:
        """Return the array of a field: a struct of the arrays of its columns, or the array of a flat column."""
        import pyarrow as pa  # noqa: PLC0415

        if self._columns.is_flat:
            return next(array for path, array in arrays.items() if path[-1] == field.name)
        inner = [array for path, array in arrays.items() if path[0] == field.name]
        return pa.StructArray.from_arrays(inner, fields=list(field.type))


def arrow_batches(table: Projection, columns: ExportColumns) -> ArrowForm | None:
    """Return the form of a table; None where a column's values have to be made one by one."""
    found: dict[tuple[str, ...], ArrowColumn] = {}
    for each in table.columns:
        made = arrow_column(each.type)
        if made is None:
            return None
        found[each.part, each.name] = made
    return ArrowForm(columns, found)
