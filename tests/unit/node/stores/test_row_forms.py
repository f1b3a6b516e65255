"""State variables in Avro answer as those in rows do; many values are read to their end; what is neither is damage."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint import avro
from tests.support.checkpoint.shown import shown

from understudy_node.checkpoint.state_variables import AvroRows, StateVariable
from understudy_node.engine.view import StateTable
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.finder import Finder, FoundMembers
from understudy_node.stores.row_forms import row_form, split_records, split_values
from understudy_node.stores.state_variables import ListVariable, MapVariable, ValueVariable, value_printer
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.base.words import StoreKind
from understudy_shared.reads.bounds import EVERYTHING
from understudy_shared.spark.store_keys import WHOLE_MAP
from understudy_shared.spark.types import Field, IntType, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

ROWS = st.lists(st.binary(max_size=5).map(lambda data: data * 8), min_size=1, max_size=6)
"""Whole words, commas among their bytes."""


def joined(rows: list[bytes], separator: bytes, prefix: bytes = b"\x00") -> bytes:
    return separator.join(struct.pack("<i", len(prefix + row)) + prefix + row for row in rows)


def split(kept: bytes) -> list[bytes]:
    return [row for _, row in split_values(kept, prefix=b"\x00", where="a list")]


@given(rows=ROWS, separator=st.sampled_from([b"", b","]))
def test_every_value_is_found_with_the_separator_of_any_spark(rows: list[bytes], separator: bytes) -> None:
    assert split(joined(rows, separator)) == rows


@given(rows=ROWS, separator=st.sampled_from([b"", b","]), data=st.data())
def test_a_list_that_is_cut_inside_a_value_is_refused(rows: list[bytes], separator: bytes, data: st.DataObject) -> None:
    whole = joined(rows, separator)
    ends = {len(joined(rows[:count], separator)) for count in range(1, len(rows) + 1)}
    cut = data.draw(st.sampled_from([at for at in range(len(whole)) if at not in ends]))
    with pytest.raises(CorruptFileError):
        split(whole[:cut])


RECORDS = st.lists(st.binary(max_size=60) | st.sampled_from([b"", b",", b"," * 44]), min_size=1, max_size=6)
"""Some have 44 bytes: the length before such a record begins with the byte of a comma."""


@given(records=RECORDS, separator=st.sampled_from([b"", b","]), data=st.data())
def test_every_record_is_found_from_any_on_with_the_separator_that_is_said(
    records: list[bytes], separator: bytes, data: st.DataObject
) -> None:
    kept = joined(records, separator, prefix=b"")
    found = list(split_records(kept, separator=separator, where="a list"))
    assert [record for _, record in found] == records
    number = data.draw(st.integers(0, len(records) - 1))
    assert list(split_records(kept, separator=separator, where="a list", at=found[number][0])) == found[number:]


@pytest.mark.parametrize("separator", [b"", b","])
@given(kept=st.binary(max_size=60))
def test_any_bytes_are_records_with_that_separator_or_refused(separator: bytes, kept: bytes) -> None:
    try:
        records = [record for _, record in split_records(kept, separator=separator, where="a list")]
    except CorruptFileError:
        return
    assert kept == joined(records, separator, prefix=b"")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_list_or_refused(kept: bytes) -> None:
    try:
        rows = split(kept)
    except CorruptFileError:
        return
    assert kept in (joined(rows, b""), joined(rows, b","))


@pytest.mark.parametrize(
    "kept",
    [
        joined([b"a" * 8, b"b" * 8], b"") + b"," + joined([b"c" * 8], b""),
        joined([b"a" * 8], b"") + b",",
        joined([b"a" * 7], b""),
        joined([b"a" * 8], b"", prefix=b"\x01"),
        struct.pack("<i", -1),
        b"",
    ],
    ids=["mixed separators", "ends with one", "no whole words", "another encoding", "no length", "empty"],
)
def test_what_spark_does_not_write_is_refused(kept: bytes) -> None:
    with pytest.raises(CorruptFileError):
        split(kept)


PREFIX, FAMILY, TABLE, FAMILIES = b"\x00", b"\x07\x00", StateTable("default", "seen"), {"seen": 7}
KEY = StructType((Field("word", StringType()), Field("n", LongType(), nullable=False)))
USER = StructType((Field("place", StringType()),))
OLD = StructType((Field("visits", IntType()), Field("gone", StringType())))
VALUE = StructType((Field("note", StringType()), Field("visits", LongType())))
WITH_TTL = StructType((Field("value", VALUE), Field("ttlExpirationMs", LongType())))
WRAPPED, USER_PART = StructType((Field("key", KEY),)), StructType((Field("userKey", USER),))
PLAIN = StateVariable(
    "seen", StoreKind.VALUE, False, "", KEY, USER, VALUE, VALUE, AvroRows(KEY, StructType(), 0, {0: OLD, 3: VALUE}, b"")
)
assert PLAIN.avro is not None
MAP = replace(PLAIN, kind=StoreKind.MAP, avro=replace(PLAIN.avro, first=WRAPPED, rest=USER_PART))
SEPARATED = replace(PLAIN, avro=replace(PLAIN.avro, separator=b","))
EXPIRING = replace(PLAIN, has_ttl=True, stored=WITH_TTL, avro=replace(PLAIN.avro, written={0: WITH_TTL}))

GROUPING = st.tuples(st.none() | st.text("ab,", max_size=60), st.integers(-2, 2))
Grouping = tuple[str | None, int]
encode_key = compile_row_encoder(KEY)
encode_entry = compile_row_encoder(StructType((*KEY.fields, *USER.fields)))


def numbered(schema: int, columns: StructType, row: tuple[object, ...]) -> bytes:
    return PREFIX + struct.pack("<h", schema) + avro.record(columns, row)


def plain_key(key: Grouping) -> bytes:
    return FAMILY + numbered(0, KEY, key)


def part_key(key: Grouping, rest: bytes) -> bytes:
    first = PREFIX + avro.record(WRAPPED, (key,))
    return FAMILY + struct.pack("<i", len(first)) + first + rest


def listed(*records: bytes, separator: bytes = b"") -> bytes:
    return separator.join(struct.pack("<i", len(each)) + each for each in records)


def printer(variable: StateVariable) -> Callable[[bytes], dict[str, object]]:
    return value_printer(variable, ("note", "visits"), None, lambda: 5_000)


def found(finder: Finder, records: Mapping[bytes, bytes], row: bytes) -> dict[str, object] | None:
    said: FoundMembers | None = finder.find(view(records), PREFIX + row, EVERYTHING)
    return None if said is None else dict(json.loads(b"{" + said.members.removesuffix(b",") + b"}"))


def view(records: Mapping[bytes, bytes]) -> TaskView:
    return shown(dict(records), families=FAMILIES)


value_of = ValueVariable(TABLE, printer(PLAIN), row_form(PLAIN, PREFIX))
list_of = ListVariable(TABLE, printer(PLAIN), row_form(PLAIN, PREFIX))
LISTS = {b"": list_of, b",": ListVariable(TABLE, printer(SEPARATED), row_form(SEPARATED, PREFIX))}
"""By what Spark puts between two values."""
map_of = MapVariable(TABLE, MAP, ("where",), printer(MAP), row_form(MAP, PREFIX))


@given(visits=st.dictionaries(GROUPING, st.tuples(st.booleans(), st.integers(0, 9)), max_size=4), other=GROUPING)
def test_a_value_of_either_schema_has_the_newest_columns(
    visits: dict[Grouping, tuple[bool, int]], other: Grouping
) -> None:
    records = {
        plain_key(key): numbered(0, OLD, (count, "old")) if is_old else numbered(3, VALUE, ("new", count))
        for key, (is_old, count) in visits.items()
    }
    for key in {other, *visits}:
        expected = None
        if key in visits:
            is_old, count = visits[key]
            expected = {"found": True, "value": {"note": None if is_old else "new", "visits": count}}
        assert found(value_of, records, encode_key(key)) == expected
    for kept in records:
        assert value_of.key_row(kept) in set(map(encode_key, visits))


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    note=st.text("a,", max_size=50),
    separator=st.sampled_from([*LISTS]),
)
def test_a_list_may_hold_values_of_both_schemas_of_any_length(counts: list[int], note: str, separator: bytes) -> None:
    """44 bytes is a length that begins with a comma, which is a separator only where it is said to be one."""
    old = [numbered(0, OLD, (count, note)) for count in counts]
    new = [numbered(3, VALUE, (note, count)) for count in counts]
    kept = listed(*old, *new, separator=separator)
    said = found(LISTS[separator], {plain_key(("a", 1)): kept}, encode_key(("a", 1)))
    expected = [{"note": None, "visits": count} for count in counts] + [{"note": note, "visits": n} for n in counts]
    assert said == {"found": True, "values": [{"value": each} for each in expected]}


@given(
    st.dictionaries(
        GROUPING, st.dictionaries(st.none() | st.text("ab", max_size=9), st.integers(0, 9), max_size=3), max_size=2
    )
)
def test_a_map_is_given_whole_or_by_one_user_key(maps: dict[Grouping, dict[str | None, int]]) -> None:
    records = {
        part_key(key, numbered(0, USER_PART, ((place,),))): numbered(3, VALUE, (None, number))
        for key, entries in maps.items()
        for place, number in entries.items()
    }
    for key, entries in {("other", 9): {}, **maps}.items():
        whole = found(map_of, records, encode_key(key) + WHOLE_MAP)
        listed_now = [] if whole is None else whole["entries"]
        assert isinstance(listed_now, list)
        assert {each["key"]["where"]: each["value"]["visits"] for each in listed_now} == entries
        for place in {None, "", *entries}:
            one = found(map_of, records, encode_entry((*key, place)))
            value = {"note": None, "visits": entries.get(place)}
            assert one == ({"found": True, "value": value} if place in entries else None)
    for kept in records:
        assert map_of.key_row(kept) in {encode_key(key) + WHOLE_MAP for key in maps}


def test_a_value_with_ttl_says_when_it_ends() -> None:
    finder = ValueVariable(TABLE, printer(EXPIRING), row_form(EXPIRING, PREFIX))
    records = {plain_key(("a", 1)): numbered(0, WITH_TTL, ((None, 2), 4_999))}
    assert found(finder, records, encode_key(("a", 1))) == {
        "found": True,
        "value": {"note": None, "visits": 2},
        "expires_at": "1970-01-01T00:00:04.999000Z",
        "expired": True,
    }


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (numbered(1, VALUE, ("a", 1)), r"schema 1, and the schemas 0, 3 are known .*variable seen.*start it again"),
        (numbered(3, VALUE, ("abc", 1))[:-1], "Avro record"),
        (numbered(3, VALUE, ("abc", 1)) + b"\x00", "bytes after it"),
        (b"\x01" + numbered(3, VALUE, ("abc", 1))[1:], "not encoded as Avro"),
        (b"\x00\x03", "not encoded as Avro"),
        (b"", "not encoded as Avro"),
    ],
)
def test_a_value_that_cannot_be_read_whole_is_no_answer(kept: bytes, says: str) -> None:
    with pytest.raises(CorruptFileError, match=says) as refusal:
        found(value_of, {plain_key(("a", 1)): kept}, encode_key(("a", 1)))
    assert "variable seen" in refusal.value.where


@given(st.tuples(st.integers(-2, 2), st.none() | st.text("ab", max_size=9)), st.integers(0, 3))
def test_the_parts_of_keys_begin_as_the_rows_of_their_grouping_keys_do(key: tuple[int, str | None], more: int) -> None:
    """For a scan that seeks a prefix of some columns (Q6)."""
    columns = StructType((Field("n", LongType()), Field("word", StringType())))
    form = row_form(replace(MAP, key=columns, avro=None), PREFIX)
    row = compile_row_encoder(columns)(key)
    start = row[: 8 + 8 * (more % 3)]
    first, length = form.first(key), form.first_start(start, len(row))
    assert first is not None
    assert length is not None
    assert (struct.pack("<i", len(first)) + first).startswith(length)
    assert form.start(start) == PREFIX + start
    assert row_form(MAP, PREFIX).first_start(start, len(row)) is None, "Avro has no slots"
