"""An arena's index: what a lookup reads of it is where the records of a bucket begin, whatever steps it was made in."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_node.engine import arena_build
from understudy_node.engine.arena_build import EntryList, entries_of, write_index
from understudy_node.engine.arena_files import HEADER_BYTES, decode_header, index_path

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
