"""Slices have the records of the view, in its order, wherever it begins and whatever is above its base."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint.engine_stores import hdfs_snapshot, write_rocksdb

from understudy_node.engine import scans as slices_module
from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.base import Base, CachedBase, EmptyBase, RowCache
from understudy_node.engine.rocksdb_base import BlockCache, RocksBase
from understudy_node.engine.scans import slices
from understudy_node.engine.view import View

CACHE = BlockCache(1 << 20)
KEYS = [bytes([first, second]) for first in range(6) for second in range(6)]
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.none() | st.binary(max_size=3), min_size=1)


@pytest.fixture(scope="module", params=["empty", "rocksdb", "cached rocksdb", "arena"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("base")
    records = {key: key * 2 for key in KEYS[::2]}
    match request.param:
        case "empty":
            return EmptyBase()
        case "arena":
            return ArenaBase.build(folder, [hdfs_snapshot(records)])
        case kind:
            rocks = RocksBase.open(write_rocksdb(folder / "base", records), cache=CACHE, expected_keys=None)
            return CachedBase(rocks, RowCache(0)) if kind.startswith("cached") else rocks


@given(versions=st.lists(CHANGES, max_size=3), size=st.integers(1, 5), start=st.none() | st.sampled_from(KEYS))
def test_slices_are_the_records_of_the_view(
    base: Base, versions: list[dict[bytes, bytes | None]], size: int, start: bytes | None
) -> None:
    view = View.of(base, 0)
    for version, changes in enumerate(versions, 1):
        view = view.with_changes(dict(changes), version)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slices_module, "SLICE_RECORDS", size)
        patched.setattr(slices_module, "FIRST_RECORDS", size)
        found = list(slices(view, start))
    assert all(found)
    flat = [piece for records in found for piece in records]
    assert list(zip(flat[::2], flat[1::2], strict=True)) == list(view.scan(start))


def test_long_records_make_short_slices(tmp_path: Path) -> None:
    records = {at.to_bytes(2): bytes(100_000) for at in range(300)}
    base = RocksBase.open(write_rocksdb(tmp_path / "base", records), cache=CACHE, expected_keys=None)
    sizes = [sum(map(len, each)) for each in slices(View.of(base, 0), None)]
    assert max(sizes[1:]) <= slices_module.SLICE_BYTES
