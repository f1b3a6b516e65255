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

from understudy_node.engine.arena_build import (
    RecordFinder,
    field_chain,
    key_hashes,
)
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


@given(RECORDS, st.integers(-(2**31), -2), st.booleans(), st.lists(st.integers(0, 10_000), max_size=4))
def test_a_length_that_no_snapshot_can_hold_is_refused_and_names_the_byte(
    records: Records, length: int, in_value: bool, cuts: list[int]
) -> None:
    sound = snapshot_of(records)[:-4]
    record = struct.pack(">i1si" if in_value else ">i", *((1, b"k", length) if in_value else (length,)))
    with pytest.raises(CorruptFileError, match=rf"of {length} bytes at byte {len(sound)}"):
        found_in(cut_up(sound + record + bytes(40), cuts))


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
