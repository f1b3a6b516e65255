"""The records of a view in the order of scans: slices lose and repeat none, and a prefix lies together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.engine_stores import built_arena, hdfs_snapshot, write_rocksdb

from understudy_node.engine import scans as slices_module
from understudy_node.engine.base import Base, CachedBase, EmptyBase, RowCache
from understudy_node.engine.rocksdb_base import BlockCache, RocksBase
from understudy_node.engine.scans import ScanOrder, after_prefix, slices
from understudy_node.engine.view import StateView
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.spark.types import DecimalType, Field, IntType, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder, fixed_bytes

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
            return built_arena(folder, [hdfs_snapshot(records)])
        case kind:
            rocks = RocksBase.open(write_rocksdb(folder / "base", records), cache=CACHE, expected_keys=None)
            return CachedBase(rocks, RowCache(0)) if kind.startswith("cached") else rocks


@given(versions=st.lists(CHANGES, max_size=3), size=st.integers(1, 5), start=st.none() | st.sampled_from(KEYS))
def test_slices_are_the_records_of_the_view(
    base: Base, versions: list[dict[bytes, bytes | None]], size: int, start: bytes | None
) -> None:
    view = StateView.of(base, 0)
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
    sizes = [sum(map(len, each)) for each in slices(StateView.of(base, 0), None)]
    assert max(sizes[1:]) <= slices_module.SLICE_BYTES


KEY = StructType(
    (
        Field("name", StringType()),
        Field("number", IntType()),
        Field("price", DecimalType(30, 2)),
        Field("start", LongType()),
    )
)
encode = compile_row_encoder(KEY)
ORDER = ScanOrder(fixed_bytes(KEY) - 8)
PREFIXES = st.tuples(
    st.none() | st.text("ab", max_size=10),
    st.none() | st.integers(-3, 3),
    st.none() | st.decimals(-9, 9, places=2, allow_nan=False, allow_infinity=False),
)
PREFIXED_KEYS = st.tuples(PREFIXES, st.integers(-(2**63), 2**63 - 1))


@given(st.lists(PREFIXED_KEYS, unique=True))
def test_a_scan_of_a_prefix_finds_the_keys_that_have_it_and_no_others(
    keys: list[tuple[tuple[object, ...], int]],
) -> None:
    stored = {encode((*prefix, start)): (prefix, start) for prefix, start in keys}
    kept = sorted(map(ORDER.kept, stored))
    for prefix in {prefix for prefix, _ in keys}:
        begin = ORDER.kept(encode((*prefix, 0)))[:-8]
        end = after_prefix(begin)
        found = [stored[ORDER.original(key)] for key in kept if begin <= key and (end is None or key < end)]
        assert sorted(found, key=repr) == sorted([key for key in keys if key[0] == prefix], key=repr)


RECORDS = st.lists(st.tuples(PREFIXED_KEYS, st.binary(max_size=12)), max_size=12)


@given(records=RECORDS, size=st.integers(1, 90))
def test_a_snapshot_in_pieces_of_any_size_is_the_same_with_its_keys_as_they_are_kept(
    records: list[tuple[tuple[tuple[object, ...], int], bytes]], size: int
) -> None:
    rows = [(encode((*prefix, start)), value) for (prefix, start), value in records]
    content = spark.plain(rows)
    pieces = (content[at : at + size] for at in range(0, len(content), size))
    wanted = spark.plain([(ORDER.kept(key), value) for key, value in rows])
    assert b"".join(ORDER.pieces(pieces, where="here")) == wanted


def test_a_record_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_node.engine.scans.MAX_RECORD_BYTES", 1_000)
    taken = 0

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        yield b"\x7f\xff\xff\xff"
        while True:
            taken += 1
            yield bytes(400)

    with pytest.raises(CorruptFileError, match="a record has more than"):
        list(ORDER.pieces(pieces(), where="here"))
    assert taken < 5
