"""Many values under one key are read to their end, with a separator or without; what is no such list is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.stores.row_forms import split_records, split_values
from understudy_shared.base.errors import CorruptFileError

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
