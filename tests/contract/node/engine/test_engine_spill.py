"""Spills: changes that moved to disk say the same as before, whatever is published or killed meanwhile."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from tests.support.checkpoint.engine_stores import write_rocksdb

from understudy_node.engine.rocksdb_base import BlockCache, RocksBase
from understudy_node.engine.view import Spill, View, write_spill
from understudy_shared.base.errors import CorruptFileError

BASE = {b"a": b"base", b"b": b"base", b"c": b"base"}


@pytest.fixture
def cache() -> BlockCache:
    return BlockCache()


@pytest.fixture
def view(tmp_path: Path, cache: BlockCache) -> View:
    base = RocksBase.open(write_rocksdb(tmp_path / "base", BASE), cache=cache, expected_keys=3)
    return View.of(base, 10)


def _spilled(view: View, directory: Path, cache: BlockCache) -> Spill:
    for _ in write_spill(view.tiers, directory, below=view.spill):
        pass
    return Spill.open(directory, cache=cache)


def test_a_spill_empties_the_overlay_and_changes_no_answer(view: View, tmp_path: Path, cache: BlockCache) -> None:
    view = view.with_changes({b"a": None, b"b": b"new", b"d": b""}, 11)
    after = view.with_spill(_spilled(view, tmp_path / "1", cache))
    assert (view.overlay_bytes > 0, after.overlay_bytes, after.tiers) == (True, 0, ())
    expected = {b"b": b"new", b"c": b"base", b"d": b""}
    assert dict(after.scan()) == dict(view.scan()) == expected
    assert after.get_many([b"a", b"b", b"c", b"d", b"e"]) == [None, b"new", b"base", b"", None]


def test_of_several_changes_of_a_key_a_spill_has_the_newest(view: View, tmp_path: Path, cache: BlockCache) -> None:
    many = {bytes([at]): b"11" for at in range(8)}
    view = view.with_changes({b"a": b"11", b"b": b"11", **many}, 11).with_changes({b"a": b"12", b"b": None}, 12)
    assert len(view.tiers) == 2, "a small tier above a large one"
    after = view.with_spill(_spilled(view, tmp_path / "1", cache))
    assert after.get_many([b"a", b"b", b"\0"]) == [b"12", None, b"11"]


def test_versions_published_while_a_spill_is_written_stay_on_top_of_it(
    view: View, tmp_path: Path, cache: BlockCache
) -> None:
    view = view.with_changes({b"a": b"11"}, 11)
    writing = write_spill(view.tiers, tmp_path / "1", below=None)
    next(writing)
    view = view.with_changes({b"a": b"12", b"b": None}, 12)
    for _ in writing:
        pass
    after = view.with_spill(Spill.open(tmp_path / "1", cache=cache))
    assert dict(after.scan()) == {b"a": b"12", b"c": b"base"}
    assert after.version == 12


def test_the_next_spill_continues_the_one_before_which_readers_keep(
    view: View, tmp_path: Path, cache: BlockCache
) -> None:
    for number in range(1, 12):  # more than are kept as files of their own
        view = view.with_changes({b"a": None, b"%03d" % number: b"x" * number, b"count": b"%d" % number}, 10 + number)
        before = view
        spill = _spilled(view, tmp_path / str(number), cache)
        view = view.with_spill(spill)
        if before.spill is not None:
            before.spill.remove_when_unused()
        assert (spill.first_version, spill.last_version) == (11, 10 + number)
        assert spill.open_files <= 8
        assert dict(view.scan()) == dict(before.scan())
    assert view.get(b"count") == b"11"
    assert [len(view.get(b"%03d" % number) or b"") for number in range(1, 12)] == list(range(1, 12))
    del before, spill
    gc.collect()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["11", "base"]


def test_a_base_that_overtook_the_spill_wins(view: View, tmp_path: Path, cache: BlockCache) -> None:
    view = view.with_changes({b"a": b"11"}, 11)
    spill = _spilled(view, tmp_path / "1", cache)
    newer = RocksBase.open(write_rocksdb(tmp_path / "newer", {b"a": b"12"}), cache=cache, expected_keys=1)
    view = view.with_changes({b"a": b"12", b"b": None, b"c": None}, 12)
    swapped = view.with_spill(spill).with_base(newer, 12)
    assert (swapped.spill, dict(swapped.scan())) == (None, {b"a": b"12"})
    assert view.with_base(newer, 12).with_spill(spill).spill is None


def test_a_spill_that_spans_the_new_bases_version_stays_on_top_of_it(
    view: View, tmp_path: Path, cache: BlockCache
) -> None:
    view = view.with_changes({b"a": b"11"}, 11).with_changes({b"b": b"12"}, 12)
    view = view.with_spill(_spilled(view, tmp_path / "1", cache))
    newer = RocksBase.open(write_rocksdb(tmp_path / "newer", {**BASE, b"a": b"11"}), cache=cache, expected_keys=3)
    swapped = view.with_base(newer, 11)
    assert dict(swapped.scan()) == {b"a": b"11", b"b": b"12", b"c": b"base"}


def test_a_spill_killed_while_it_was_written_is_refused_and_a_finished_one_opens_after_a_restart(
    view: View, tmp_path: Path, cache: BlockCache
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
    restarted = View(view.base, version=again.last_version, base_version=10, spill=again)
    assert dict(restarted.scan()) == dict(view.scan())
