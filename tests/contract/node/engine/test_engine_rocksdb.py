"""What RocksDB and its binding would do silently, and what a base makes of it."""

from __future__ import annotations

import gc
import os
import re
import shutil
from pathlib import Path

import pytest
from tests.support.checkpoint.engine_stores import write_rocksdb

from understudy_node.engine.rocksdb_base import BlockCache, RocksBase
from understudy_node.engine.view import View
from understudy_shared.base.errors import CorruptFileError, UnsupportedError

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


def test_the_block_cache_is_bounded_and_counts_what_is_read(store: Path) -> None:
    cache = BlockCache(RAW_BYTES // 4)
    base = _open(store, cache=cache)
    assert cache.used_bytes < cache.capacity_bytes // 10
    _read_all(base)
    assert cache.capacity_bytes // 2 < cache.used_bytes <= cache.capacity_bytes


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


@pytest.mark.parametrize("operator", ["StringAppendOperator", "{id=UInt64AddOperator}"])
def test_a_merge_operator_that_would_merge_wrongly_is_refused(store: Path, operator: str) -> None:
    _patch_options(store, f"merge_operator={operator}")
    with pytest.raises(UnsupportedError, match="merge operator"):
        _open(store)


@pytest.mark.parametrize("delimiter", ["", ",", ",;"])
def test_sparks_merge_operators_with_their_delimiter_are_opened(store: Path, delimiter: str) -> None:
    _patch_options(store, f"merge_operator={{id=StringAppendOperator;delimiter={delimiter}}}")
    _read_all(_open(store))


def test_another_key_order_is_refused(store: Path) -> None:
    _patch_options(store, "comparator=rocksdb.ReverseBytewiseComparator")
    with pytest.raises(UnsupportedError, match="key order"):
        _open(store)


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
        list(View.of(base, 1).with_changes({b"a": b"1", b"z": b"2"}, 2).scan())
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
    assert base.open_files == 4
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
    assert tables_open() == base.open_files
    del base
    gc.collect()
    assert tables_open() == 4, "a reader in flight lost its files"
    assert sum(1 for _ in scan) == len(RECORDS) - 1
    del scan
    gc.collect()
    assert tables_open() == 0


def test_a_directory_is_removed_when_the_last_reader_is_gone(store: Path) -> None:
    base = _open(store)
    base.remove_when_unused()
    view = View.of(base, 1)
    scan = view.scan()
    next(scan)
    del base, view
    gc.collect()
    assert store.exists()
    scan.close()  # type: ignore[attr-defined]  # a generator in fact
    del scan
    gc.collect()
    assert not store.exists()


def test_indexes_and_filters_are_what_a_base_keeps_in_memory(store: Path) -> None:
    base = _open(store)
    assert 1_000 < base.resident_bytes < RAW_BYTES // 10
