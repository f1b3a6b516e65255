"""Finding records in pieces: whatever their sizes and wherever the pieces end, what a loop over all of it finds."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise

import mmh3
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.checkpoint.engine_stores import hdfs_snapshot

from understudy_node.engine.arena_chain import field_chain
from understudy_node.engine.arena_hash import evenly_spaced_key_hashes, key_hashes
from understudy_node.engine.arena_records import RecordFinder, entries_of
from understudy_shared.base.errors import CorruptFileError

Records = list[tuple[bytes, bytes]]

SEED = 0xFFFF_FFFE
WORDS = st.sampled_from([b"\0\0\0\0", b"\0\0\0\4", b"\0\0\0\x10", b"\0\0\x59\x40", b"\xff\xff\xff\xff", b"word"])
"""Four bytes each, most of which look like a length."""
ALIGNED = st.lists(WORDS, max_size=8).map(b"".join)
ROWS = st.one_of(ALIGNED, ALIGNED, ALIGNED, st.binary(max_size=9))
RECORDS = st.lists(st.tuples(ROWS, ROWS), max_size=40)
"""Keys may repeat: finding records does not compare them."""


@st.composite
def long_snapshots(draw: st.DrawFn) -> Records:
    """Some kinds of records, thousands of them: in long runs of one size, or mixed one by one."""
    kinds = draw(st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=4))
    runs = draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 40, 300, 1_500])), min_size=1, max_size=6))
    chosen = [kinds[kind % len(kinds)] for kind, count in runs for _ in range(count)]
    return chosen * draw(st.sampled_from([1, 3]))


def snapshot_of(records: Iterable[tuple[bytes, bytes]]) -> bytes:
    framed = (struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value for key, value in records)
    return b"".join([*framed, struct.pack(">i", -1)])


def cut_up(content: bytes, cuts: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    return [content[start:end] for start, end in pairwise(bounds)]


def found_in(pieces: Iterable[bytes]) -> list[int]:
    finder = RecordFinder(SEED, where="a.snapshot")
    entries = [entry for piece in pieces for found in finder.entries(memoryview(piece)) for entry in found.tolist()]
    finder.end()
    return entries


def expected(records: Records) -> list[int]:
    """An entry per record, by a loop and the library's hash."""
    entries, at = [], 0
    for key, value in records:
        entries.append(mmh3.hash(key, SEED, signed=False) >> 4 << 36 | at)
        at += 8 + len(key) + len(value)
    return entries


@given(RECORDS, st.lists(st.integers(0, 10_000), max_size=12))
def test_records_are_found_wherever_the_pieces_end(records: Records, cuts: list[int]) -> None:
    assert found_in(cut_up(snapshot_of(records), cuts)) == expected(records)


@given(RECORDS)
def test_records_are_found_in_pieces_of_one_byte(records: Records) -> None:
    content = snapshot_of(records)
    assert found_in(content[at : at + 1] for at in range(len(content))) == expected(records)


@settings(deadline=None, max_examples=60)
@given(long_snapshots(), st.lists(st.integers(0, 10**6), max_size=4))
@example([(b"k" * 32, b"v" * 56)] * 3_000, [100_000, 200_001])
@example([(b"k" * 8 * (1 + number % 3), b"v" * 16) for number in range(3_000)], [40_003])
@example([(b"k" * 8, bytes(4) + b"\0\0\x59\x40") for _ in range(2_000)] + [(b"", b"")] + [(b"k", b"v")] * 5_000, [])
def test_thousands_of_records_of_few_or_many_sizes_are_found(records: Records, cuts: list[int]) -> None:
    assert found_in(cut_up(snapshot_of(records), cuts)) == expected(records)


@settings(deadline=None)
@given(RECORDS, st.data())
def test_content_that_is_cut_anywhere_is_refused_and_names_the_record(records: Records, data: st.DataObject) -> None:
    content = snapshot_of(records)
    kept = data.draw(st.integers(0, len(content) - 1))
    starts = [entry & (1 << 36) - 1 for entry in expected(records)] + [len(content) - 4]
    begun = max(start for start in starts if start <= kept)
    pieces = cut_up(content[:kept], data.draw(st.lists(st.integers(0, kept + 1), max_size=3)))
    with pytest.raises(CorruptFileError, match=rf"inside the record at byte {begun}, without its end mark"):
        found_in(pieces)


@given(RECORDS, st.binary(min_size=1, max_size=9), st.lists(st.integers(0, 10_000), max_size=4))
def test_anything_after_the_end_mark_is_refused(records: Records, more: bytes, cuts: list[int]) -> None:
    content = snapshot_of(records)
    with pytest.raises(CorruptFileError, match=rf"end mark at byte {len(content) - 4}"):
        found_in(cut_up(content + more, cuts))


@given(RECORDS, st.integers(-(2**31), -2), st.booleans(), st.lists(st.integers(0, 10_000), max_size=4))
def test_a_length_that_no_snapshot_can_hold_is_refused_and_names_the_byte(
    records: Records, length: int, in_value: bool, cuts: list[int]
) -> None:
    sound = snapshot_of(records)[:-4]
    record = struct.pack(">i1si" if in_value else ">i", *((1, b"k", length) if in_value else (length,)))
    with pytest.raises(CorruptFileError, match=rf"of {length} bytes at byte {len(sound)}"):
        found_in(cut_up(sound + record + bytes(40), cuts))


def test_a_deleted_key_is_no_part_of_a_snapshot() -> None:
    with pytest.raises(CorruptFileError, match="a value of -1 bytes at byte 0"):
        found_in([struct.pack(">i1si", 1, b"k", -1) + snapshot_of([])])


def test_a_record_of_many_pieces_is_not_kept() -> None:
    """A length of two billion that a damaged file states must not take two gigabytes of memory to find out."""
    finder = RecordFinder(SEED, where="a.snapshot")
    assert [len(found) for found in finder.entries(memoryview(struct.pack(">i", 2**31 - 1)))] == [0]
    piece = memoryview(bytes(1 << 16))
    for _ in range(64):
        assert sum(len(found) for found in finder.entries(piece)) == 0
    cut = finder._cut
    assert cut is not None
    assert not any(isinstance(value, bytes) and len(value) > 4 for value in vars(cut).values())
    with pytest.raises(CorruptFileError, match="inside the record at byte 0"):
        finder.end()


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 4, 7, 8, 16, 24, 32, 33, 400]), max_size=700), st.integers(0, 2**32 - 1), st.data()
)
def test_the_vectorised_hash_is_the_one_that_lookups_use(lengths: list[int], seed: int, data: st.DataObject) -> None:
    content = data.draw(st.randoms(use_true_random=False)).randbytes(sum(lengths) + 3)
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[:-1].astype(np.int64)
    keys = [content[start : start + length] for start, length in zip(starts.tolist(), lengths, strict=True)]
    hashes = key_hashes(memoryview(content), starts, np.array(lengths, np.int64), seed)
    assert hashes.tolist() == [mmh3.hash(key, seed, signed=False) for key in keys]


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 9), st.integers(0, 600), st.integers(0, 5), st.randoms(use_true_random=False))
def test_keys_at_equal_distances_are_hashed_alike(
    length: int, gap: int, count: int, first: int, chance: object
) -> None:
    stride = length + gap or 1
    content = chance.randbytes(first + count * stride)  # type: ignore[attr-defined]
    starts = range(first, first + count * stride, stride)
    hashes = evenly_spaced_key_hashes(memoryview(content), starts, length, SEED)
    assert hashes.tolist() == [mmh3.hash(content[at : at + length], SEED, signed=False) for at in starts]


@given(st.lists(ROWS, max_size=60), ROWS)
@example([b"word"], b"\0\0\0\4")
@example([b"word"], b"\0\0\0\x08word")
def test_a_chain_is_right_as_far_as_it_goes(fields: list[bytes], rest: bytes) -> None:
    content = b"".join(struct.pack(">i", len(field)) + field for field in fields) + rest
    starts, lengths = field_chain(memoryview(content))
    at = 0
    for number, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        assert start == at
        assert length == int.from_bytes(content[at : at + 4], "big")
        if number < len(fields):
            assert length == len(fields[number])
        at += 4 + length
        assert at <= len(content)


def test_a_chain_goes_on_to_the_end_though_much_in_it_looks_like_lengths() -> None:
    """Every field holds words that look like lengths, some of which lead to a true field."""
    fields = [b"\0\0\x59\x40" * (1 + number % 5) + b"\0\0\0\x08\0\0\0\x04" for number in range(2_000)]
    content = b"".join(struct.pack(">i", len(field)) + field for field in fields)
    _, lengths = field_chain(memoryview(content))
    assert lengths.tolist() == [len(field) for field in fields]


def test_the_entries_of_a_snapshot_are_those_of_its_records_whole() -> None:
    records = {b"%032d" % number: bytes(56) for number in range(5_000)}
    assert found_in([hdfs_snapshot(records)]) == expected(list(records.items()))


def test_an_entry_keeps_the_whole_offset_and_the_upper_bits_of_the_hash() -> None:
    entries = entries_of(np.array([0xFFFF_FFFF, 0], np.uint32), np.array([2**36 - 1, 2**36 - 1], np.int64))
    assert entries.tolist() == [2**64 - 1, 2**36 - 1]
