"""Changelogs and deltas decode to exactly what was written, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from itertools import starmap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.changelog import (
    Changelog,
    ChangelogOperation,
    Form,
    LineageItem,
    iter_changelog_slices,
    parse_header,
)
from understudy_shared.base.errors import CorruptFileError, UnsupportedError

PUT, DELETE, MERGE, DELETE_RANGE = 0x01, 0x10, 0x11, 0x20
LINEAGE = [(3, "a" * 36), (4, "b" * 36)]

keys = st.binary(max_size=9)
# Few sizes, so that runs of equal records (another path of the decoder) and breaks of such runs both occur.
values = st.one_of(st.none(), st.sampled_from([b"", b"v" * 8, b"w" * 8, b"x" * 16]))
records = st.one_of(
    st.lists(st.tuples(keys, values), max_size=20),
    st.lists(st.tuples(st.binary(min_size=2, max_size=2), values), max_size=120),
    st.lists(st.tuples(st.binary(min_size=2, max_size=2), st.binary(min_size=4, max_size=4)), min_size=8, max_size=120),
)


def decode_changelog(raw: bytes, *, name: str, form: Form, row_checksum: bool = False) -> Changelog:
    """Decode the whole file at once."""
    slices = list(iter_changelog_slices(raw, name=name, form=form, row_checksum=row_checksum, max_records=len(raw) + 1))
    assert len(slices) == 1, "a record takes more than one byte"
    return slices[0]


def tagged(records: list[spark.Record]) -> bytes:
    return spark.tagged([(DELETE if value is None else PUT, key, value) for key, value in records])


ENCODERS: dict[str, tuple[Form, Callable[[list[spark.Record]], bytes]]] = {
    "delta": ("delta", spark.plain),
    "v1": ("changelog", spark.plain),
    "v2": ("changelog", lambda records: spark.utf("v2") + tagged(records)),
    "v3": ("changelog", lambda records: spark.utf("v3") + spark.lineage(LINEAGE) + spark.plain(records)),
    "v4": ("changelog", lambda records: spark.utf("v4") + spark.lineage(LINEAGE) + tagged(records)),
}
formats = pytest.mark.parametrize("version", list(ENCODERS))


def applied(slices: list[Changelog]) -> dict[bytes, bytes | None]:
    merged: dict[bytes, bytes | None] = {}
    for part in slices:
        merged.update(part.changes)
    return merged


@formats
@given(written=records)
def test_every_record_is_read_back_and_the_last_one_of_a_key_wins(version: str, written: list[spark.Record]) -> None:
    form, encode = ENCODERS[version]
    read = decode_changelog(encode(written), name="7.x", form=form)
    assert read.changes == dict(written)
    assert read.record_count == len(written)
    assert read.operations == ()


@formats
@given(written=records, max_records=st.integers(1, 40))
def test_slices_are_bounded_and_together_are_the_file(
    version: str, written: list[spark.Record], max_records: int
) -> None:
    form, encode = ENCODERS[version]
    slices = list(iter_changelog_slices(encode(written), name="7.x", form=form, max_records=max_records))
    assert applied(slices) == dict(written)
    assert all(part.record_count <= max_records for part in slices)
    assert sum(part.record_count for part in slices) == len(written)


@formats
@given(written=records, data=st.data())
def test_no_prefix_of_a_file_is_accepted(version: str, written: list[spark.Record], data: st.DataObject) -> None:
    form, encode = ENCODERS[version]
    raw = encode(written)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(CorruptFileError, match=r"7\.x, byte \d+"):
        decode_changelog(raw[:cut], name="7.x", form=form)


@formats
@given(written=records, rest=st.binary(min_size=1, max_size=9))
def test_bytes_after_the_end_mark_are_refused(version: str, written: list[spark.Record], rest: bytes) -> None:
    form, encode = ENCODERS[version]
    with pytest.raises(CorruptFileError):
        decode_changelog(encode(written) + rest, name="7.x", form=form)
    with pytest.raises(CorruptFileError, match="after the end mark"):
        decode_changelog(
            encode(written) + (b"\xff\xff\xff\xff" if version in "delta v1 v3" else b"\0"), name="7.x", form=form
        )


@pytest.mark.parametrize("odd", [(b"k", b"v"), (b"kk", b"vv"), (b"kk", None), (b"k", b"vv")])
@pytest.mark.parametrize("before", [0, 7, 8, 9, 10, 40, 41, 42, 330])
def test_a_run_of_equal_sizes_ends_exactly_where_a_size_changes(before: int, odd: spark.Record) -> None:
    def run(first: int, count: int) -> list[spark.Record]:
        return [(number.to_bytes(2, "big"), b"v") for number in range(first, first + count)]

    written = [*run(0, before), odd, *run(1000, 50), odd]
    assert decode_changelog(spark.plain(written), name="7.delta", form="delta").changes == dict(written)


def test_a_truncated_file_is_refused_before_its_first_slice_is_handed_out() -> None:
    raw = spark.plain([(b"k%d" % i, b"v") for i in range(100)])
    with pytest.raises(CorruptFileError, match="truncated"):
        next(iter_changelog_slices(raw[:-4], name="7.delta", form="delta", max_records=1))


@pytest.mark.parametrize("position", [0, 6], ids=["key length", "value length"])
def test_an_impossible_length_is_refused_and_names_byte_and_record(position: int) -> None:
    raw = bytearray(spark.plain([(b"k1", b"v"), (b"k2", b"v")]))
    start = 11 + position
    raw[start : start + 4] = b"\x7f\xff\xff\xff"
    with pytest.raises(CorruptFileError, match=rf"7\.delta, byte {start} of its content, record 2"):
        decode_changelog(bytes(raw), name="7.delta", form="delta")


@pytest.mark.parametrize("tag", ["v3", "v4"])
def test_the_lineage_is_read_without_decoding_the_records(tag: str) -> None:
    end = spark.END_OF_PLAIN if tag == "v3" else spark.END_OF_TAGGED
    raw = spark.utf(tag) + spark.lineage(LINEAGE) + end
    expected = tuple(LineageItem(version, unique_id) for version, unique_id in LINEAGE)
    assert parse_header(raw, name="5_x.changelog", form="changelog").lineage == expected
    assert decode_changelog(raw, name="5_x.changelog", form="changelog").lineage == expected


def test_an_empty_lineage_is_not_a_missing_one() -> None:
    raw = spark.utf("v3") + spark.lineage([]) + spark.plain([])
    assert decode_changelog(raw, name="1_x.changelog", form="changelog").lineage == ()
    assert decode_changelog(spark.plain([]), name="1.changelog", form="changelog").lineage is None


def test_a_newer_changelog_version_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="v9"):
        decode_changelog(spark.utf("v9") + spark.plain([]), name="1.changelog", form="changelog")


def test_a_delta_is_never_taken_for_a_versioned_changelog() -> None:
    key = b"k" * 0x027632  # this length spells the header of a v2 changelog
    raw = spark.plain([(key, b"")])
    assert raw[:4] == spark.utf("v2")
    assert decode_changelog(raw, name="1.delta", form="delta").changes == {key: b""}


@pytest.mark.parametrize("max_records", [1, 2, 100])
def test_everything_from_the_first_merge_on_keeps_its_order(max_records: int) -> None:
    raw = spark.utf("v2") + spark.tagged(
        [(PUT, b"a", b"1"), (DELETE, b"b", None), (MERGE, b"a", b"2"), (PUT, b"c", b"3"), (DELETE_RANGE, b"a", b"b")]
    )
    slices = list(iter_changelog_slices(raw, name="1.changelog", form="changelog", max_records=max_records))
    assert applied(slices) == {b"a": b"1", b"b": None}
    assert [operation for part in slices for operation in part.operations] == [
        ChangelogOperation("merge", b"a", b"2"),
        ChangelogOperation("put", b"c", b"3"),
        ChangelogOperation("delete-range", b"a", b"b"),
    ]


@pytest.mark.parametrize("record", [(0x02, b"k", b"v"), (PUT, b"k", None), (DELETE, b"k", b"v"), (MERGE, b"k", None)])
def test_an_impossible_record_type_is_refused(record: spark.TypedRecord) -> None:
    with pytest.raises(CorruptFileError, match="record 1"):
        decode_changelog(spark.utf("v2") + spark.tagged([record]), name="1.changelog", form="changelog")


def protected(version: str, written: list[spark.Record]) -> list[spark.Record]:
    """The records with their checksums."""
    return list(starmap(spark.hdfs_checked if version == "delta" else spark.rocksdb_checked, written))


@formats
@given(written=records, max_records=st.integers(1, 40))
def test_row_checksums_are_stripped(version: str, written: list[spark.Record], max_records: int) -> None:
    form, encode = ENCODERS[version]
    raw = encode(protected(version, written))
    slices = list(iter_changelog_slices(raw, name="7.x", form=form, row_checksum=True, max_records=max_records))
    assert applied(slices) == dict(written)
    assert sum(part.record_count for part in slices) == len(written)


@formats
@pytest.mark.parametrize("victim", [0, 1], ids=["put", "delete"])
def test_a_flipped_bit_under_a_row_checksum_names_the_record(version: str, victim: int) -> None:
    form, encode = ENCODERS[version]
    written = protected(version, [(b"key1", b"value1"), (b"key2", None)])
    key, value = written[victim]
    written[victim] = (key, value[:-1] + b"X") if value is not None else (key[:-1] + b"X", None)
    with pytest.raises(CorruptFileError, match=rf"checksum.*record {victim + 1}"):
        decode_changelog(encode(written), name="7.x", form=form, row_checksum=True)
    assert decode_changelog(encode(written), name="7.x", form=form).record_count == 2
