"""Every base keeps the same promises: run against RocksDB, with remembered rows too, the arena, a spill under a
view, and the empty base.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.checkpoint.engine_stores import hdfs_snapshot, write_rocksdb

from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.base import Base, CachedBase, EmptyBase, RowCache
from understudy_node.engine.rocksdb_base import BlockCache, RocksBase
from understudy_node.engine.view import Spill, View, write_spill

Records = dict[bytes, bytes]


def _rocksdb(directory: Path, records: Records) -> Base:
    write_rocksdb(directory, records, tables=3)
    return RocksBase.open(directory, cache=BlockCache(), expected_keys=len(records))


def _arena(directory: Path, records: Records) -> Base:
    return ArenaBase.build(directory, [hdfs_snapshot(records)])


def _cached(directory: Path, records: Records) -> Base:
    return CachedBase(_rocksdb(directory, records), RowCache(64 * 1024))


class _Spilled(EmptyBase):
    """A view whose every record was spilled, as a base."""

    def __init__(self, directory: Path, records: Records) -> None:
        view = View.of(EmptyBase(), 0).with_changes(records, 1)
        for _ in write_spill(view.tiers, directory, below=None):
            pass
        spilled = view.with_spill(Spill.open(directory, cache=BlockCache()))
        self.get, self.get_many, self.scan = spilled.get, spilled.get_many, spilled.scan  # type: ignore[method-assign]
        self._keys = len(records)

    def count(self) -> int:
        return self._keys


MAKERS: dict[str, Callable[[Path, Records], Base]] = {
    "rocksdb": _rocksdb,
    "arena": _arena,
    "cached rocksdb": _cached,
    "spilled view": _Spilled,
}


def _records() -> Records:
    """Keys of many lengths, the empty one included, that share long beginnings and hold high bytes and zeros."""
    chosen = random.Random(1)
    keys = {bytes(8) + chosen.randbytes(chosen.choice((0, 1, 7, 8, 9, 24))) for _ in range(500)}
    keys |= {b"", b"\0", b"\0\0", b"\xff" * 20, b"a", b"a\0", b"a\0\0\0\0\0\0\0\0"}
    return {key: chosen.randbytes(chosen.choice((0, 1, 16, 400))) for key in keys}


@pytest.fixture(params=MAKERS, ids=str)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Base, Records]:
    records = _records()
    return MAKERS[request.param](tmp_path / "store", records), records


def test_every_record_is_found_and_nothing_else(made: tuple[Base, Records]) -> None:
    base, records = made
    absent = [b"b", b"\0" * 9 + b"x", b"\xff" * 21]
    assert {key: base.get(key) for key in records} == records
    assert [base.get(key) for key in absent] == [None] * 3
    assert base.get_many([*absent, *records, absent[0]]) == [None, None, None, *records.values(), None]
    assert base.get_many([]) == []
    assert base.count() == len(records)


def test_a_scan_is_ordered_by_bytes_and_leaves_the_end_out(made: tuple[Base, Records]) -> None:
    base, records = made
    ordered = sorted(records)
    assert list(base.scan()) == sorted(records.items())
    bounds = [None, b"", b"\0", ordered[100], ordered[100] + b"\0", ordered[-1], b"\xff" * 30]
    for start in bounds:
        for end in bounds:
            within = [key for key in ordered if (start is None or key >= start) and (end is None or key < end)]
            assert [key for key, _ in base.scan(start, end)] == within, (start, end)


@pytest.mark.parametrize("make", [_rocksdb, _arena])
def test_a_store_without_records_answers_like_the_empty_base(
    make: Callable[[Path, Records], Base], tmp_path: Path
) -> None:
    for base in (make(tmp_path / "store", {}), EmptyBase()):
        assert base.get(b"a") is None
        assert base.get_many([b"a", b"b"]) == [None, None]
        assert list(base.scan()) == []
        assert list(base.scan(b"a", b"b")) == []
        assert base.count() == 0
