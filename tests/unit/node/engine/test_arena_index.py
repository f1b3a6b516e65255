"""An arena's index: what a lookup reads of it is where the records of a bucket begin, whatever steps it was made in."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_node.engine import arena_index
from understudy_node.engine.arena_format import HEADER_BYTES, decode_header, index_path
from understudy_node.engine.arena_index import EntryList, write_index
from understudy_node.engine.arena_records import entries_of

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
        patch.setattr(arena_index, "_BLOCK_ENTRIES", block)
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


@given(st.lists(st.integers(0, 3_000), max_size=12))
def test_entries_are_kept_while_their_memory_grows(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena_index, "_FIRST_BYTES", 4096)
        entries = EntryList()
        added: list[int] = []
        for size in sizes:
            part = np.arange(len(added) + size, len(added), -1, dtype=np.uint64)
            entries.add(part)
            added += part.tolist()
    assert len(entries) == len(added)
    assert entries.sorted().tolist() == sorted(added)


def test_a_kernel_without_huge_pages_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_index, "MADV_HUGEPAGE", 9_999)  # EINVAL, as such a kernel says
    entries = EntryList()
    entries.add(np.array([2, 1], np.uint64))
    assert entries.sorted().tolist() == [1, 2]
