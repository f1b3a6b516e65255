"""Bases and spills: what was stored is found and scanned, whatever holds it, and damage is an error."""

from __future__ import annotations

import gc
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.checkpoint.engine_stores import built_arena, hdfs_snapshot, write_rocksdb

from understudy_node.engine.base import Base, CachedBase, EmptyBase, RowCache
from understudy_node.engine.rocksdb_base import BlockCache, RocksBase
from understudy_node.engine.view import Spill, StateView, write_spill
from understudy_shared.base.errors import CorruptFileError, UnsupportedError

Records = dict[bytes, bytes]


def _rocksdb(directory: Path, records: Records) -> Base:
    write_rocksdb(directory, records, tables=3)
    return RocksBase.open(directory, cache=BlockCache(), expected_keys=len(records))


def _arena(directory: Path, records: Records) -> Base:
    return built_arena(directory, [hdfs_snapshot(records)])


def _cached(directory: Path, records: Records) -> Base:
    return CachedBase(_rocksdb(directory, records), RowCache(64 * 1024))


class _Spilled(EmptyBase):
    """A view whose every record was spilled, as a base."""

    def __init__(self, directory: Path, records: Records) -> None:
        view = StateView.of(EmptyBase(), 0).with_changes(records, 1)
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


RECORDS = {b"key-%06d" % number: os.urandom(500) for number in range(2_000)}
RAW_BYTES = 1_000_000


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rocksdb(tmp_path_factory.mktemp("rocksdb") / "store", RECORDS, tables=4)


@pytest.fixture
def store(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "store")


def _open(store: Path, *, cache: BlockCache | None = None, expected_keys: int | None = len(RECORDS)) -> RocksBase:
    return RocksBase.open(store, cache=cache or BlockCache(), expected_keys=expected_keys)


def _patch_options(store: Path, line: str) -> None:
    for path in store.glob("OPTIONS-*"):
        path.write_text(re.sub(rf"{line.split('=', maxsplit=1)[0]}=.*", line, path.read_text()))


def _read_all(base: RocksBase) -> None:
    assert all(base.get(key) == value for key, value in RECORDS.items())


def test_bases_share_one_block_cache(store: Path, tmp_path: Path) -> None:
    other = shutil.copytree(store, tmp_path / "other")
    cache = BlockCache(RAW_BYTES * 8)
    bases = [_open(store, cache=cache), _open(other, cache=cache)]
    _read_all(bases[0])
    after_one = cache.used_bytes
    assert RAW_BYTES < after_one < RAW_BYTES * 2
    _read_all(bases[0])
    assert cache.used_bytes == after_one
    _read_all(bases[1])
    assert cache.used_bytes >= after_one, "the second base used another cache"
    bounded = BlockCache(RAW_BYTES // 4)
    for base in [_open(store, cache=bounded), _open(other, cache=bounded)]:
        _read_all(base)
    assert bounded.used_bytes <= bounded.capacity_bytes


def test_a_capacity_of_0_disables_the_block_cache(store: Path) -> None:
    cache = BlockCache(0)
    _read_all(_open(store, cache=cache))
    assert cache.used_bytes < 1_000


def test_a_missing_database_is_refused_and_nothing_is_created(tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match="CURRENT is missing"):
        _open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_database_without_options_is_refused_because_keys_would_be_left_out(store: Path) -> None:
    for path in store.glob("OPTIONS-*"):
        path.unlink()
    with pytest.raises(CorruptFileError, match="OPTIONS is missing"):
        _open(store)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("merge_operator=StringAppendOperator", "merge operator"),
        ("merge_operator={id=UInt64AddOperator}", "merge operator"),
        ("comparator=rocksdb.ReverseBytewiseComparator", "key order"),
    ],
)
def test_options_that_would_read_wrongly_are_refused(store: Path, option: str, says: str) -> None:
    _patch_options(store, option)
    with pytest.raises(UnsupportedError, match=says):
        _open(store)


@pytest.mark.parametrize("delimiter", ["", ",", ",;"])
def test_sparks_merge_operators_with_their_delimiter_are_opened(store: Path, delimiter: str) -> None:
    _patch_options(store, f"merge_operator={{id=StringAppendOperator;delimiter={delimiter}}}")
    _read_all(_open(store))


def test_fewer_records_than_expected_keys_are_refused_at_opening(store: Path) -> None:
    with pytest.raises(CorruptFileError, match=r"2000 records for 2001 keys"):
        _open(store, expected_keys=2_001)


def test_a_damaged_block_makes_scans_and_gets_fail_instead_of_ending_early(store: Path) -> None:
    table = sorted(store.glob("*.sst"))[1]
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0xFF
    table.write_bytes(content)
    base = _open(store)
    with pytest.raises(CorruptFileError, match="cannot read"):
        list(base.scan())
    with pytest.raises(CorruptFileError, match="cannot read"):
        list(StateView.of(base, 1).with_changes({b"a": b"1", b"z": b"2"}, 2).scan())
    with pytest.raises(CorruptFileError, match="cannot read"):
        _read_all(base)
    with pytest.raises(CorruptFileError, match="cannot read"):
        base.get_many(list(RECORDS))


def test_opening_changes_none_of_the_files_that_are_linked_into_the_directory(store: Path, tmp_path: Path) -> None:
    linked = shutil.copytree(store, tmp_path / "linked", copy_function=os.link)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in store.glob("*.sst")}
    listing = sorted(path.name for path in store.iterdir())
    base = _open(linked)
    _read_all(base)
    base.close()
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in store.glob("*.sst")} == before
    assert sorted(path.name for path in store.iterdir()) == listing


def test_all_tables_stay_open_so_that_files_may_vanish(store: Path) -> None:
    base = _open(store, cache=BlockCache(0))
    shutil.rmtree(store)
    _read_all(base)
    assert dict(base.scan()) == RECORDS


def test_file_descriptors_are_those_of_the_tables_and_go_with_the_last_reader(store: Path) -> None:
    def tables_open() -> int:
        links = (str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())
        return sum(link.startswith(str(store)) and ".sst" in link for link in links)

    base = _open(store)
    scan = base.scan()
    next(scan)
    assert tables_open() == len(list(store.glob("*.sst"))) == 4
    del base
    gc.collect()
    assert tables_open() == 4, "a reader in flight lost its files"
    assert sum(1 for _ in scan) == len(RECORDS) - 1
    del scan
    gc.collect()
    assert tables_open() == 0


@pytest.mark.parametrize("make", [_rocksdb, _arena])
def test_a_directory_is_removed_when_the_last_reader_is_gone(
    make: Callable[[Path, Records], Base], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    view = StateView.of(make(store, _records()), 1)
    view.base.remove_when_unused()
    scan = view.scan()
    next(scan)
    del view
    gc.collect()
    assert store.exists()
    assert sum(1 for _ in scan) == len(_records()) - 1
    del scan
    gc.collect()
    assert not store.exists()


def test_indexes_and_filters_are_what_a_base_keeps_in_memory(store: Path) -> None:
    base = _open(store)
    assert 1_000 < base.resident_bytes < RAW_BYTES // 10


BASE = {b"a": b"base", b"b": b"base", b"c": b"base"}


@pytest.fixture
def cache() -> BlockCache:
    return BlockCache()


@pytest.fixture
def view(tmp_path: Path, cache: BlockCache) -> StateView:
    base = RocksBase.open(write_rocksdb(tmp_path / "base", BASE), cache=cache, expected_keys=3)
    return StateView.of(base, 10)


def _spilled(view: StateView, directory: Path, cache: BlockCache) -> Spill:
    for _ in write_spill(view.tiers, directory, below=view.spill):
        pass
    return Spill.open(directory, cache=cache)


def test_a_spill_empties_the_overlay_and_changes_no_answer(view: StateView, tmp_path: Path, cache: BlockCache) -> None:
    view = view.with_changes({b"a": None, b"b": b"new", b"d": b""}, 11)
    after = view.with_spill(_spilled(view, tmp_path / "1", cache))
    assert (view.overlay_bytes > 0, after.overlay_bytes, after.tiers) == (True, 0, ())
    expected = {b"b": b"new", b"c": b"base", b"d": b""}
    assert dict(after.scan()) == dict(view.scan()) == expected
    assert after.get_many([b"a", b"b", b"c", b"d", b"e"]) == [None, b"new", b"base", b"", None]


def test_of_several_changes_of_a_key_a_spill_has_the_newest(view: StateView, tmp_path: Path, cache: BlockCache) -> None:
    many = {bytes([at]): b"11" for at in range(8)}
    view = view.with_changes({b"a": b"11", b"b": b"11", **many}, 11).with_changes({b"a": b"12", b"b": None}, 12)
    assert len(view.tiers) == 2, "a small tier above a large one"
    after = view.with_spill(_spilled(view, tmp_path / "1", cache))
    assert after.get_many([b"a", b"b", b"\0"]) == [b"12", None, b"11"]


def test_the_next_spill_continues_the_one_before_which_readers_keep(
    view: StateView, tmp_path: Path, cache: BlockCache
) -> None:
    for number in range(1, 12):  # more than are kept as files of their own
        view = view.with_changes({b"a": None, b"%03d" % number: b"x" * number, b"count": b"%d" % number}, 10 + number)
        before = view
        spill = _spilled(view, tmp_path / str(number), cache)
        view = view.with_spill(spill)
        if before.spill is not None:
            before.spill.remove_when_unused()
        assert (spill.first_version, spill.last_version) == (11, 10 + number)
        assert len(list(spill.directory.glob("*.sst"))) <= 8
        assert dict(view.scan()) == dict(before.scan())
    assert view.get(b"count") == b"11"
    assert [len(view.get(b"%03d" % number) or b"") for number in range(1, 12)] == list(range(1, 12))
    del before, spill
    gc.collect()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["11", "base"]


def test_a_spill_killed_while_it_was_written_is_refused_and_a_finished_one_opens_after_a_restart(
    view: StateView, tmp_path: Path, cache: BlockCache
) -> None:
    view = view.with_changes({b"%05d" % number: b"v" for number in range(2_500)}, 11)
    killed = write_spill(view.tiers, tmp_path / "1", below=None)
    assert [next(killed), next(killed)] == [1_000, 2_000]
    killed.close()  # type: ignore[attr-defined]  # a generator in fact
    with pytest.raises(CorruptFileError, match="never finished"):
        Spill.open(tmp_path / "1", cache=cache)
    finished = _spilled(view, tmp_path / "1", cache)
    finished.close()
    again = Spill.open(tmp_path / "1", cache=cache)
    restarted = StateView(view.base, version=again.last_version, base_version=10, spill=again)
    assert dict(restarted.scan()) == dict(view.scan())
