"""Arenas: a snapshot comes back record for record, whatever its pieces and order, and damage is seen first."""

from __future__ import annotations

import os
import random
import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import mmh3
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.engine_stores import built_arena, hdfs_snapshot

from understudy_node.engine import arena_base, arena_build
from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.arena_build import (
    EntryList,
    RecordFinder,
    build_arena,
    entries_of,
    field_chain,
    key_hashes,
    write_index,
)
from understudy_node.engine.arena_files import BLOCK_BYTES, HEADER_BYTES, BlockSums, decode_header, index_path
from understudy_shared.base.errors import CorruptFileError

# Long equal beginnings, zeros and every length around a word's end are what the ordering could get wrong.
KEYS = st.lists(st.sampled_from([b"", b"\0", b"\1", b"\xff", bytes(8), b"12345678"]), max_size=5).map(b"".join)
RECORDS = st.dictionaries(KEYS, st.binary(max_size=9), max_size=60)


@settings(deadline=None)
@given(RECORDS)
def test_keys_are_ordered_as_bytes_whatever_their_lengths(
    tmp_path_factory: pytest.TempPathFactory, records: dict[bytes, bytes]
) -> None:
    base = built_arena(tmp_path_factory.mktemp("arena"), [hdfs_snapshot(records)])
    assert list(base.scan()) == sorted(records.items())


def test_keys_are_sorted_once_and_again_where_that_failed_or_their_order_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = {number.to_bytes(3, "little"): b"value" for number in range(1_000)}
    made = built_arena(tmp_path, [hdfs_snapshot(records)])
    assert set(made.some_keys(9)) < records.keys()
    assert made.has_background_work, "some keys are found without sorting"
    while made.has_background_work:
        made.work_in_background()
    order = (tmp_path / "arena.order").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(arena_base, "sort_offsets", None)  # none of these sorts
        assert list(made.scan()) == list(ArenaBase.open(tmp_path).scan()) == sorted(records.items())
    with monkeypatch.context() as patched:
        patched.setattr(arena_base, "read_sealed", Mock(side_effect=MemoryError))
        failing = ArenaBase.open(tmp_path)
        with pytest.raises(MemoryError):
            list(failing.scan())
    assert list(failing.scan()) == sorted(records.items())
    for damaged in (b"", order[:-1], order[:500] + b"\xff" + order[501:], bytes(len(order))):
        (tmp_path / "arena.order").write_bytes(damaged)
        assert list(ArenaBase.open(tmp_path).scan()) == sorted(records.items())
        assert (tmp_path / "arena.order").read_bytes() == order


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 90)), max_size=8))
def test_runs_of_equal_and_of_mixed_sizes_are_all_found(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int, int]]
) -> None:
    records = {
        struct.pack(">ii", run, number) + bytes(8 * key_words): bytes(8 * value_words)
        for run, (key_words, value_words, count) in enumerate(runs)
        for number in range(count)
    }
    base = built_arena(tmp_path_factory.mktemp("arena"), [hdfs_snapshot(records)])
    assert base.count() == len(records)
    assert {key: base.get(key) for key in records} == records
    assert list(base.scan()) == sorted(records.items())


def test_building_takes_bounded_steps_and_the_arena_opens_only_after_the_last(tmp_path: Path) -> None:
    records = {b"%05d" % number: b"value" for number in range(1_000)}
    snapshot = hdfs_snapshot(records)
    steps = []
    for found in build_arena(tmp_path, [snapshot[at : at + 5_000] for at in range(0, len(snapshot), 5_000)]):
        steps.append(found)
        with pytest.raises(CorruptFileError, match="not a finished arena"):
            ArenaBase.open(tmp_path)
    ended = [min(5_000 * piece // 18, 1_000) for piece in (1, 2, 3, 4)]
    assert steps == [*ended, *[1_000] * (len(steps) - 4)]
    assert dict(ArenaBase.open(tmp_path).scan()) == records


def test_a_piece_is_used_up_before_the_next_is_asked_for(tmp_path: Path) -> None:
    snapshot = hdfs_snapshot({b"%05d" % number: b"value" for number in range(1_000)})
    buffer = bytearray(700)

    def pieces() -> Iterator[memoryview]:
        for at in range(0, len(snapshot), len(buffer)):
            piece = snapshot[at : at + len(buffer)]
            buffer[: len(piece)] = piece
            yield memoryview(buffer)[: len(piece)]
            buffer[:] = b"\xee" * len(buffer)

    base = built_arena(tmp_path, pieces())
    assert base.count() == 1_000
    assert base.get(b"00999") == b"value"


def test_a_restart_maps_the_same_arena_again(tmp_path: Path) -> None:
    built = built_arena(tmp_path, [hdfs_snapshot({b"a": b"1", b"b": b""})])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = ArenaBase.open(tmp_path)
    assert (again.get(b"a"), again.get(b"b"), again.get(b"c")) == (b"1", b"", None)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    built.close()
    assert again.get(b"a") == b"1"
    again.close()


def test_an_arena_of_an_earlier_boot_is_refused_because_nothing_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_arena(tmp_path, [hdfs_snapshot({b"a": b"1"})])
    monkeypatch.setattr(arena_base, "boot_id", lambda: b"another boot".ljust(36, b"\0"))
    with pytest.raises(CorruptFileError, match="from before the last boot"):
        ArenaBase.open(tmp_path)


SNAPSHOT = hdfs_snapshot({b"key-%d" % number: b"value" for number in range(100)})


@pytest.mark.parametrize("name", ["arena.records", "arena.index"])
def test_an_arena_whose_files_do_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    built_arena(tmp_path, [SNAPSHOT])
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match="do not fit"):
        ArenaBase.open(tmp_path)


OFFSETS = st.lists(st.integers(0, 2**36 - 1), unique=True, max_size=200)


@settings(deadline=None)
@given(data=st.data(), offsets=OFFSETS, block=st.sampled_from([1, 7, 65_536]), wide=st.booleans())
def test_each_bucket_has_the_records_of_its_hashes(
    data: st.DataObject, offsets: list[int], block: int, wide: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("arena")
    offsets = offsets if wide else [offset % 2**32 for offset in offsets]
    hashes = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=len(offsets), max_size=len(offsets)))
    entries = EntryList()
    entries.add(entries_of(np.array(hashes, np.uint32), np.array(offsets, np.int64)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena_build, "_BLOCK_ENTRIES", block)
        size = 2**36 if wide else 2**32 - 1
        for _ in write_index(directory, entries.sorted(), records_bytes=size, records_sums=array("Q"), seed=7):
            assert not index_path(directory).exists(), "it is there when it is complete"
    raw = index_path(directory).read_bytes()
    header = decode_header(raw)
    assert header is not None
    assert len(raw) == header.index_bytes
    assert (header.seed, header.keys, header.offset_bytes) == (7, len(offsets), 8 if wide else 4)
    starts = np.frombuffer(raw, "<u4", 2**header.bucket_bits + 1, HEADER_BYTES).tolist()
    kept = np.frombuffer(raw, f"<u{header.offset_bytes}", offset=HEADER_BYTES + header.starts_bytes).tolist()
    assert (starts[0], starts[-1]) == (0, len(offsets))
    shift = 32 - header.bucket_bits
    for bucket in range(2**header.bucket_bits):
        of_bucket = [at for at, hashed in zip(offsets, hashes, strict=True) if hashed >> shift == bucket]
        assert sorted(kept[starts[bucket] : starts[bucket + 1]]) == sorted(of_bucket)


Records = list[tuple[bytes, bytes]]
SEED = 0xFFFF_FFFE
WORDS = st.sampled_from([b"\0\0\0\0", b"\0\0\0\4", b"\0\0\0\x10", b"\0\0\x59\x40", b"\xff\xff\xff\xff", b"word"])
"""Four bytes each, most of which look like a length."""
ALIGNED = st.lists(WORDS, max_size=8).map(b"".join)
ROWS = st.one_of(ALIGNED, ALIGNED, ALIGNED, st.binary(max_size=9))
RECORD_LISTS = st.lists(st.tuples(ROWS, ROWS), max_size=40)
"""Keys may repeat: finding records does not compare them."""


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


@given(RECORD_LISTS, st.lists(st.integers(0, 10_000), max_size=12))
def test_records_are_found_wherever_the_pieces_end(records: Records, cuts: list[int]) -> None:
    assert found_in(cut_up(spark.plain(records), cuts)) == expected(records)


@settings(deadline=None)
@given(RECORD_LISTS, st.data())
def test_content_that_is_cut_anywhere_is_refused_and_names_the_record(records: Records, data: st.DataObject) -> None:
    content = spark.plain(records)
    kept = data.draw(st.integers(0, len(content) - 1))
    starts = [entry & (1 << 36) - 1 for entry in expected(records)] + [len(content) - 4]
    begun = max(start for start in starts if start <= kept)
    pieces = cut_up(content[:kept], data.draw(st.lists(st.integers(0, kept + 1), max_size=3)))
    with pytest.raises(CorruptFileError, match=rf"inside the record at byte {begun}, without its end mark"):
        found_in(pieces)


@given(RECORD_LISTS, st.integers(-(2**31), -2), st.booleans(), st.lists(st.integers(0, 10_000), max_size=4))
def test_a_length_that_no_snapshot_can_hold_is_refused_and_names_the_byte(
    records: Records, length: int, in_value: bool, cuts: list[int]
) -> None:
    sound = spark.plain(records)[:-4]
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


FEW = {b"key-%d" % number: b"value-%d" % number for number in range(20)}
MANY = {b"key-%d" % number: b"%07d" % number * (1 + number % 9) for number in range(9_000)}
FILES = ["arena.records", "arena.index", "arena.sums"]


def flip(path: Path, at: int) -> None:
    """Flip a bit of a byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << at % 8
    path.write_bytes(data)


def answers(base: ArenaBase, records: dict[bytes, bytes]) -> list[bool]:
    """Whether each key and each absent one is answered rightly; False is an error. A wrong answer fails."""
    found = []
    for key in (*records, b"absent", b""):
        try:
            assert base.get(key) == records.get(key), key
            found.append(True)
        except CorruptFileError:
            found.append(False)
    return found


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_of_any_file_makes_a_wrong_answer_or_a_false_absent(tmp_path: Path, name: str) -> None:
    built_arena(tmp_path, [hdfs_snapshot(FEW)]).close()
    sound = (tmp_path / name).read_bytes()
    for at in range(len(sound)):
        flip(tmp_path / name, at)
        try:
            base = ArenaBase.open(tmp_path)
        except CorruptFileError:
            pass
        else:
            assert not all(answers(base, FEW)), at
            assert base.damage is not None
            base.close()
        (tmp_path / name).write_bytes(sound)


@pytest.mark.parametrize("name", FILES[:2])
def test_only_what_lies_in_a_damaged_block_is_an_error_and_the_sweep_finds_it_before_any_reader(
    tmp_path: Path, name: str
) -> None:
    built_arena(tmp_path, [hdfs_snapshot(MANY)]).close()
    size = (tmp_path / name).stat().st_size
    assert size > 2 * BLOCK_BYTES
    flip(tmp_path / name, random.Random(7).randrange(BLOCK_BYTES, size))
    read, swept = ArenaBase.open(tmp_path), ArenaBase.open(tmp_path)
    found = answers(read, MANY)
    assert any(found)
    assert not all(found)
    while swept.has_background_work:
        swept.work_in_background()
    assert swept.damage is not None
    with pytest.raises(CorruptFileError):
        list(swept.scan())


def test_a_sound_arena_is_swept_to_its_end_once(tmp_path: Path) -> None:
    base = built_arena(tmp_path, [hdfs_snapshot(MANY)])
    while base.has_background_work:
        base.work_in_background()
    assert base.damage is None
    assert all(answers(base, MANY))
    assert dict(base.scan()) == MANY


@pytest.mark.parametrize("name", FILES[:2])
def test_a_file_that_is_cut_off_while_it_is_mapped_is_an_error_and_ends_no_process(tmp_path: Path, name: str) -> None:
    base = built_arena(tmp_path, [hdfs_snapshot(MANY)])
    os.truncate(tmp_path / name, 4_096)
    base.look_for_damage()
    assert base.damage is not None
    assert not any(answers(base, MANY))
    assert list(base.some_keys(9)) == []
    with pytest.raises(CorruptFileError):
        list(base.scan())


def test_the_sums_of_a_file_do_not_depend_on_the_pieces_it_is_written_in() -> None:
    data = random.Random(1).randbytes(5 * BLOCK_BYTES + 77)
    whole = BlockSums()
    whole.add(memoryview(data))
    pieces, at, sizes = BlockSums(), 0, random.Random(2)
    while at < len(data):
        size = sizes.choice([1, 100, BLOCK_BYTES, 3 * BLOCK_BYTES])
        pieces.add(memoryview(data)[at : at + size])
        at += size
    assert pieces.end() == whole.end()
    assert len(whole.end()) == 6
