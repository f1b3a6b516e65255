"""Builds an arena: a snapshot's records as they are, in one file, and a hash index over them in another.

The rule: bounded steps. A generator yields between blocks, so that a worker can share its thread among restores; the
long numpy calls let other threads run. The index is renamed into place last: an arena without it was never finished.

Records are `int32 key length, key, int32 value length, value` (big-endian), ended by a key length of -1.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from understudy_node.engine.arena_format import Header, boot_id, index_path, records_path
from understudy_shared.errors import CorruptFileError

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

_BLOCK_RECORDS: Final = 131_072
# Records of equal size are found by one comparison of a strided view; a shorter run than this is not worth it.
_RUN_MIN: Final = 32
_LOOP_RECORDS: Final = 4_096
_LENGTH: Final = struct.Struct(">i")


def build_arena(directory: Path, chunks: Iterable[bytes]) -> Iterator[int]:
    """Write the decompressed snapshot `chunks` and their index into `directory`; yields the records indexed so far.

    `ArenaBase.open` can open the directory when this is exhausted, also after a restart.
    """
    directory.mkdir(parents=True, exist_ok=True)
    index_path(directory).unlink(missing_ok=True)
    with records_path(directory).open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            yield 0
    if records_path(directory).stat().st_size < _LENGTH.size:
        raise _truncated(directory, 0)
    data: U8 = np.memmap(records_path(directory), np.uint8, "r")
    seed = int.from_bytes(os.urandom(4), "little")
    offset_blocks: list[I64] = []
    hash_blocks: list[U32] = []
    count = 0
    for offsets in _blocks(_record_offsets(data, directory)):
        offset_blocks.append(offsets)
        hash_blocks.append(key_hashes(data, offsets, seed))
        count += len(offsets)
        yield count
    _write_index(
        directory,
        offset_blocks,
        hash_blocks,
        records_bytes=len(data),
        seed=seed,
    )
    yield count


def _write_index(
    directory: Path,
    offset_blocks: list[I64],
    hash_blocks: list[U32],
    *,
    records_bytes: int,
    seed: int,
) -> None:
    count = sum(map(len, offset_blocks))
    width = 4 if records_bytes < 2**32 else 8
    # One to two records per bucket: half as many buckets would save 2 B per key and cost a comparison per lookup.
    bucket_bits = max(count.bit_length() - 1, 0)
    offsets = np.concatenate([*offset_blocks, np.empty(0, np.int64)]).astype(f"<u{width}")
    hashes = np.concatenate([*hash_blocks, np.empty(0, np.uint32)])
    # A shift by the whole width is not defined: without bucket bits there is one bucket.
    buckets = hashes >> np.uint32(32 - bucket_bits) if bucket_bits else np.zeros(count, np.uint32)
    starts = np.zeros(2**bucket_bits + 1, "<u4")
    np.cumsum(np.bincount(buckets, minlength=2**bucket_bits), out=starts[1:])
    header = Header(seed, bucket_bits, width, count, records_bytes, boot_id())
    unfinished = index_path(directory).with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        file.write(header.encoded())
        file.write(starts.data)
        file.write(offsets[np.argsort(buckets)].data)
    unfinished.replace(index_path(directory))


def _blocks(pieces: Iterator[I64]) -> Iterator[I64]:
    """Join pieces until they are large enough for a numpy call."""
    waiting: list[I64] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _BLOCK_RECORDS // 2:
            yield np.concatenate(waiting)
            waiting, size = [], 0
    if waiting:
        yield np.concatenate(waiting)


def _record_offsets(data: U8, directory: Path) -> Iterator[I64]:
    """Where each record starts, in blocks; refuses a file that does not end with its end mark."""
    buffer = data.data
    size = len(buffer)
    at = 0
    while True:
        try:
            (key_bytes,) = _LENGTH.unpack_from(buffer, at)
            if key_bytes == -1:
                if at + _LENGTH.size != size:
                    raise _corrupt(directory, f"the snapshot goes on after its end mark at byte {at}")
                return
            (value_bytes,) = _LENGTH.unpack_from(buffer, at + 4 + key_bytes)
        except struct.error as error:
            raise _truncated(directory, at) from error
        _check_lengths(directory, at, key_bytes, value_bytes)
        run = _equal_run(data, at, key_bytes, value_bytes)
        if run >= _RUN_MIN:
            stride = 8 + key_bytes + value_bytes
            yield at + np.arange(run, dtype=np.int64) * stride
            at += run * stride
        else:
            found: list[int] = []
            at = _loop_offsets(buffer, at, found, directory)
            yield np.array(found, np.int64)
        if at > size:
            raise _truncated(directory, at)


def _equal_run(data: U8, at: int, key_bytes: int, value_bytes: int) -> int:
    """Number of consecutive records from `at` on with exactly these lengths, at most a block."""
    stride = 8 + key_bytes + value_bytes
    most = min((len(data) - at) // stride, _BLOCK_RECORDS)
    count = min(most, _RUN_MIN)
    while True:
        keys = np.ndarray((count,), ">i4", data.data, at, (stride,))
        values = np.ndarray((count,), ">i4", data.data, at + 4 + key_bytes, (stride,))
        differ = (keys != key_bytes) | (values != value_bytes)
        if differ.any():
            return int(differ.argmax())
        if count == most:
            return most
        # Look ahead in growing steps, so that the cost is in proportion to the run found.
        count = min(most, count * 16)


def _loop_offsets(buffer: memoryview, at: int, found: list[int], directory: Path) -> int:
    unpack = _LENGTH.unpack_from
    try:
        while len(found) < _LOOP_RECORDS:
            (key_bytes,) = unpack(buffer, at)
            if key_bytes == -1:
                break
            (value_bytes,) = unpack(buffer, at + 4 + key_bytes)
            if key_bytes < 0 or value_bytes < 0:
                _check_lengths(directory, at, key_bytes, value_bytes)
            found.append(at)
            at += 8 + key_bytes + value_bytes
    except struct.error as error:
        raise _truncated(directory, at) from error
    return at


def _check_lengths(directory: Path, at: int, key_bytes: int, value_bytes: int) -> None:
    if key_bytes < 0 or value_bytes < 0:
        raise _corrupt(directory, f"a record with a key of {key_bytes} and a value of {value_bytes} bytes at byte {at}")


def _truncated(directory: Path, at: int) -> CorruptFileError:
    return _corrupt(directory, f"the snapshot ends inside the record at byte {at}, without its end mark")


def _corrupt(directory: Path, what: str) -> CorruptFileError:
    fix = "Restore this partition again from the checkpoint"
    return CorruptFileError(what, where=str(records_path(directory)), fix=fix)


def key_hashes(data: U8, offsets: I64, seed: int) -> U32:
    """`mmh3.hash(key, seed, signed=False)` of the key of every record, by key length, four bytes at a time."""
    lengths = gathered(data, offsets, ">u4")
    hashes = np.empty(len(offsets), np.uint32)
    for length in np.unique(lengths).tolist():
        members = lengths == length
        hashes[members] = _murmur3(data, offsets[members] + 4, length, seed)
    return hashes


def gathered(data: U8, positions: I64, dtype: str) -> U32:
    """The (unaligned) numbers at `positions`."""
    width = np.dtype(dtype).itemsize
    return np.ndarray((len(data) - width + 1,), dtype, data.data, strides=(1,))[positions]


def _murmur3(data: U8, starts: I64, length: int, seed: int) -> U32:
    h = np.full(len(starts), seed, np.uint32)
    for word in range(length // 4):
        h ^= _mixed(gathered(data, starts + 4 * word, "<u4"))
        h = ((h << np.uint32(13)) | (h >> np.uint32(19))) * np.uint32(5) + np.uint32(0xE6546B64)
    if tail := length % 4:
        last = np.zeros(len(starts), np.uint32)
        for byte in range(tail):
            last |= data[starts + (length - tail + byte)].astype(np.uint32) << np.uint32(8 * byte)
        h ^= _mixed(last)
    h ^= np.uint32(length)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def _mixed(k: U32) -> U32:
    k = k * np.uint32(0xCC9E2D51)
    return ((k << np.uint32(15)) | (k >> np.uint32(17))) * np.uint32(0x1B873593)
