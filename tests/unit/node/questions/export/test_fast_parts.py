"""Parts made column by column are what is made row by row: for every type and form, byte for byte where it is text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.checkpoint.described import described_store, reader_of
from tests.support.spark.values import SCALAR_TYPES, rows, schemas, struct_of

from understudy_node.engine.base import EmptyBase
from understudy_node.engine.view import StateView
from understudy_node.questions.export.bulk.part import UnfitRowsError, fast_part, table_of
from understudy_node.questions.export.bulk.pipe import PartCancelledError
from understudy_node.questions.export.bulk.worker import form_of, make_part, row_by_row
from understudy_node.questions.export.parts import BulkQuestion, MadePart, export_columns
from understudy_node.questions.scan.rows import row_maker
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.stores import StoreAlias
from understudy_shared.questions.export.columns import arrow_schema
from understudy_shared.questions.scan.page import Place, Room
from understudy_shared.questions.scan.question import ScanQuestion
from understudy_shared.reads.export_format import ExportFormat
from understudy_shared.spark.types import DoubleType, Field, LongType, SparkType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

KEY = StructType((Field("k", LongType()),))
PREFIX = b"\x00"
Values = list[tuple[object, ...]]
TEXTS = [ExportFormat.NDJSON, ExportFormat.CSV]


class Asked:
    """A question of a store of these rows."""

    def __init__(
        self,
        value: StructType,
        values: Values,
        form: ExportFormat,
        *,
        question: ScanQuestion | None = None,
        longs_as_text: bool = False,
        alias: StoreAlias | None = None,
    ) -> None:
        encode_key, encode = compile_row_encoder(KEY), compile_row_encoder(value)
        self.records = {PREFIX + encode_key((at,)): PREFIX + encode(row) for at, row in enumerate(values)}
        self.reader = reader_of(described_store(KEY, value), aliases=None if alias is None else {"op0": alias})
        question = question or ScanQuestion()
        maker = row_maker(self.reader, question, longs_as_text=longs_as_text)
        self.question = BulkQuestion(maker, question, form, export_columns(self.reader.store, maker.fields))

    @property
    def view(self) -> StateView:
        view = StateView.of(EmptyBase(), 0)
        return view.with_changes(dict(self.records), 1) if self.records else view

    @property
    def reading(self) -> Reading:
        stamp = b'"partition":0,"version":1,"committed_at":null,"watermark":null'
        stores = {self.reader.store.store_name: self.view}
        view = TaskView(1, stores, None, None, None, frozenset(), stamp, b'"position":"p"')
        return Reading(view, None, b"")  # type: ignore[arg-type]  # it says no lag

    def fast(self, after: bytes | None = None, room: Room | None = None) -> MadePart:
        """The part that is made column by column. Raises UnfitRowsError."""
        table = table_of(self.question.maker, self.question.columns)
        assert table is not None
        form = form_of(self.question.format, table, self.question.columns, self.question.maker.longs_as_text)
        assert form is not None
        return fast_part(table, form, self.view, after, room or plenty())

    def plain(self) -> MadePart:
        """The same part row by row."""
        return row_by_row(self.question, self.reading, Place(0), plenty())

    def made(self) -> MadePart:
        """The part as the process makes it."""
        return make_part(self.question, self.reading, Place(0), plenty())

    def parts(self, room: Room) -> Iterator[MadePart]:
        """All parts that are made column by column."""
        after = None
        while True:
            part = self.fast(after, room)
            yield part
            after = part.after
            if part.is_end:
                return

    def table(self, payload: bytes) -> list[dict[str, Any]]:
        """The rows of Arrow messages; numbers by their bits, so that NaN equals itself."""
        schema = arrow_schema(self.question.columns, {})
        stream = pa.BufferReader(schema.serialize().to_pybytes() + payload + b"\xff\xff\xff\xff\x00\x00\x00\x00")
        table = pa.ipc.open_stream(stream).read_all()
        table.validate(full=True)
        return [{name: _comparable(each) for name, each in row.items()} for row in _rows(table)]


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """Times as integers: Python's own have a smaller range."""
    plain = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type) else column
        for column in table.columns
    ]
    plain = [column.cast(pa.int32()) if pa.types.is_date(column.type) else column for column in plain]
    plain = [column.cast(pa.int64()) if pa.types.is_time(column.type) else column for column in plain]
    rows: list[dict[str, Any]] = pa.table(plain, names=table.column_names).to_pylist()
    return rows


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return value


def payload_of(part: MadePart) -> bytes:
    return b"".join(part.pieces)


def in_one_piece(part: MadePart) -> MadePart:
    """The part in one piece: where it is cut does not matter."""
    return part._replace(pieces=(payload_of(part),))


def plenty() -> Room:
    return Room(65_536, 1 << 22, monotonic() + 60)


def schemas_and_many_rows() -> st.SearchStrategy[tuple[StructType, Values]]:
    return schemas().flatmap(lambda schema: st.tuples(st.just(schema), st.lists(rows(schema), max_size=8)))


@given(schemas_and_many_rows(), st.sampled_from(TEXTS), st.booleans())
def test_texts_are_those_of_the_rows(
    schema_and_rows: tuple[StructType, Values], form: ExportFormat, longs_as_text: bool
) -> None:
    asked = Asked(*schema_and_rows, form, longs_as_text=longs_as_text)
    assert in_one_piece(asked.fast()) == in_one_piece(asked.plain())


@settings(max_examples=20)
@pytest.mark.parametrize("spark_type", SCALAR_TYPES, ids=lambda each: each.name)
@given(data=st.data())
def test_a_column_of_any_type_is_printed_as_one_value_is(spark_type: SparkType, data: st.DataObject) -> None:
    value = struct_of(spark_type)
    given_rows = data.draw(st.lists(rows(value), min_size=1, max_size=40))
    for form in TEXTS:
        asked = Asked(value, given_rows, form)
        assert in_one_piece(asked.fast()) == in_one_piece(asked.plain())


@settings(max_examples=20)
@pytest.mark.parametrize("spark_type", SCALAR_TYPES, ids=lambda each: each.name)
@given(data=st.data())
def test_an_arrow_column_of_any_type_has_the_values_of_the_rows(spark_type: SparkType, data: st.DataObject) -> None:
    value = struct_of(spark_type)
    asked = Asked(value, data.draw(st.lists(rows(value), min_size=1, max_size=40)), ExportFormat.ARROW)
    made, plain = asked.made(), asked.plain()
    assert made[1:] == plain[1:]
    assert asked.table(payload_of(made)) == asked.table(payload_of(plain))


TWO = StructType((Field("s", StringType()), Field("d", DoubleType())))
FEW: Values = [("plain", 1.5), ("two\nlines", None), (None, math.nan), ("", -0.0), ('"quoted"', 1e300), ("é", math.inf)]


@pytest.mark.parametrize("form", list(ExportFormat))
@pytest.mark.parametrize("rows_each", [1, 2, 4, 5, 6, 7])
def test_parts_of_any_size_have_each_row_once(form: ExportFormat, rows_each: int) -> None:
    asked = Asked(TWO, FEW, form)
    parts = list(asked.parts(Room(rows_each, 1 << 22, monotonic() + 60)))
    assert [part.found for part in parts[:-1]] == [rows_each] * (len(parts) - 1)
    assert parts[-1].found, "what is full looks whether there is more"
    joined = b"".join(payload_of(part) for part in parts)
    if form is ExportFormat.ARROW:
        assert asked.table(joined) == asked.table(payload_of(asked.plain()))
    else:
        assert joined == payload_of(asked.plain())


@pytest.mark.parametrize("room_bytes", [1, 60, 120, 200])
def test_a_part_ends_before_the_row_that_would_exceed_it_unless_that_is_its_first(room_bytes: int) -> None:
    asked = Asked(TWO, FEW, ExportFormat.NDJSON)
    parts = list(asked.parts(Room(65_536, room_bytes, monotonic() + 60)))
    assert b"".join(payload_of(part) for part in parts) == payload_of(asked.plain())
    assert all(part.found == 1 or len(payload_of(part)) <= room_bytes for part in parts)


@pytest.mark.parametrize("form", list(ExportFormat))
@pytest.mark.parametrize("make", [make_part, row_by_row])
def test_a_part_whose_reader_has_left_ends_at_once(form: ExportFormat, make: Callable[..., MadePart]) -> None:
    asked = Asked(TWO, FEW, form)
    with pytest.raises(PartCancelledError):
        make(asked.question, asked.reading, Place(0), plenty(), lambda: True)


@pytest.mark.parametrize("form", list(ExportFormat))
def test_damaged_rows_are_what_single_rows_say(form: ExportFormat) -> None:
    asked = Asked(TWO, FEW, form)
    damaged = list(asked.records)[1]
    whole = asked.records[damaged]
    outside = whole[:9] + b"\xff" + whole[10:]
    for kept in (b"\x00", b"", whole[:-8], b"\x00\x84" + whole[2:], outside):
        asked.records[damaged] = kept
        with pytest.raises(UnfitRowsError):
            asked.fast()
        made, plain = asked.made(), asked.plain()
        assert made[1:] == plain[1:]
        assert payload_of(made) == payload_of(plain)
        assert b"problem" in payload_of(made) or form is not ExportFormat.NDJSON


@pytest.mark.parametrize("form", list(ExportFormat))
def test_chosen_columns_and_long_numbers_are_printed_as_rows_have_them(form: ExportFormat) -> None:
    value = StructType((Field("a", LongType()), Field("b", StringType()), Field("c", LongType())))
    values: Values = [(1, "x", 2), (None, None, 1 << 60)]
    for fields in (("c", "a"), ("b",)):
        as_text = form is not ExportFormat.ARROW  # which has types
        asked = Asked(value, values, form, question=ScanQuestion(fields=fields), longs_as_text=as_text)
        made, plain = asked.fast(), asked.plain()
        if form is ExportFormat.ARROW:
            assert asked.table(payload_of(made)) == asked.table(payload_of(plain))
        else:
            assert made == plain
