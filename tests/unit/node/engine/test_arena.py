"""The arena: the records of a snapshot under an index, refused unless whole, and the same again after a restart."""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.checkpoint.engine_stores import hdfs_snapshot

from understudy_node.engine import arena_base
from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.arena_build import build_arena
from understudy_shared.base.errors import CorruptFileError

# Long equal beginnings, zeros and every length around a word's end are what the ordering could get wrong.
KEYS = st.lists(st.sampled_from([b"", b"\0", b"\1", b"\xff", bytes(8), b"12345678"]), max_size=5).map(b"".join)
RECORDS = st.dictionaries(KEYS, st.binary(max_size=9), max_size=60)


@settings(deadline=None)
@given(RECORDS)
def test_keys_are_ordered_as_bytes_whatever_their_lengths(
    tmp_path_factory: pytest.TempPathFactory, records: dict[bytes, bytes]
) -> None:
    base = ArenaBase.build(tmp_path_factory.mktemp("arena"), [hdfs_snapshot(records)])
    assert list(base.scan()) == sorted(records.items())


def test_keys_are_sorted_once_and_again_where_that_failed_or_their_order_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = {number.to_bytes(3, "little"): b"value" for number in range(1_000)}
    made = ArenaBase.build(tmp_path, [hdfs_snapshot(records)])
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
    base = ArenaBase.build(tmp_path_factory.mktemp("arena"), [hdfs_snapshot(records)])
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

    base = ArenaBase.build(tmp_path, pieces())
    assert base.count() == 1_000
    assert base.get(b"00999") == b"value"


def test_a_restart_maps_the_same_arena_again(tmp_path: Path) -> None:
    built = ArenaBase.build(tmp_path, [hdfs_snapshot({b"a": b"1", b"b": b""})])
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
    ArenaBase.build(tmp_path, [hdfs_snapshot({b"a": b"1"})])
    monkeypatch.setattr(arena_base, "boot_id", lambda: b"another boot".ljust(36, b"\0"))
    with pytest.raises(CorruptFileError, match="from before the last boot"):
        ArenaBase.open(tmp_path)


SNAPSHOT = hdfs_snapshot({b"key-%d" % number: b"value" for number in range(100)})


@pytest.mark.parametrize("name", ["arena.records", "arena.index"])
def test_an_arena_whose_files_do_not_fit_is_refused(tmp_path: Path, name: str) -> None:
    ArenaBase.build(tmp_path, [SNAPSHOT])
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match="do not fit"):
        ArenaBase.open(tmp_path)


def test_the_directory_is_removed_when_the_last_reader_is_gone(tmp_path: Path) -> None:
    base = ArenaBase.build(tmp_path / "arena", [SNAPSHOT])
    base.remove_when_unused()
    scan = base.scan()
    next(scan)
    del base
    gc.collect()
    assert (tmp_path / "arena").exists()
    assert sum(1 for _ in scan) == 99
    del scan
    gc.collect()
    assert not (tmp_path / "arena").exists()
