"""No block of a local arena is believed without its sum: a damaged one is an error, never a wrong answer."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.support.checkpoint.engine_stores import hdfs_snapshot

from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.arena_files import BLOCK_BYTES, BlockSums
from understudy_shared.base.errors import CorruptFileError

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
    ArenaBase.build(tmp_path, [hdfs_snapshot(FEW)]).close()
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
    ArenaBase.build(tmp_path, [hdfs_snapshot(MANY)]).close()
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
    base = ArenaBase.build(tmp_path, [hdfs_snapshot(MANY)])
    while base.has_background_work:
        base.work_in_background()
    assert base.damage is None
    assert all(answers(base, MANY))
    assert dict(base.scan()) == MANY


@pytest.mark.parametrize("name", FILES[:2])
def test_a_file_that_is_cut_off_while_it_is_mapped_is_an_error_and_ends_no_process(tmp_path: Path, name: str) -> None:
    base = ArenaBase.build(tmp_path, [hdfs_snapshot(MANY)])
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
