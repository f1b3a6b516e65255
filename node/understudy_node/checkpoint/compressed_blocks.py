"""Finds the blocks of compressed streams, and decompresses one at a time.

Rule: a block that does not hold exactly what its header says is `CorruptFileError`, with file and byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import cramjam
import xxhash

from understudy_node.checkpoint.compressed import Compressed
from understudy_shared.base.errors import CorruptFileError

LZ4_MAGIC = b"LZ4Block"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SNAPPY_MAGIC = b"\x82SNAPPY\x00"

_LZ4_HEADER = struct.Struct("<8sBiii")
# lz4-java's seed; its Checksum view of the hash keeps 28 of the 32 bits.
_LZ4_SEED = 0x9747B28C
_LZ4_CHECKSUM_BITS = 0x0FFFFFFF
_LZ4_STORED = 0x10
_LZ4_COMPRESSED = 0x20
_SNAPPY_HEADER_BYTES = 16
_ZSTD_MAX_BLOCK_BYTES = 128 << 10
_RECOVERY = "Spark would not read this file either: restore it, or start again from a newer snapshot"


class Block(Protocol):
    """A block whose content takes `raw_bytes`."""

    @property
    def raw_bytes(self) -> int: ...

    def unpack_into(self, target: memoryview, *, name: str) -> None:
        """Decompress into `target`, which has exactly that size."""


def corrupt(what: str, *, name: str, at_byte: int) -> CorruptFileError:
    """Make the error for a damaged file. `what` completes "Corrupt file: ..."; `at_byte` counts compressed bytes."""
    return CorruptFileError(f"Corrupt file: {what}", where=f"{name}, byte {at_byte}", fix=_RECOVERY)


@dataclass(frozen=True, slots=True)
class _Lz4Block:
    start: int
    packed: bytes | memoryview
    raw_bytes: int
    stored: bool
    checksum: int

    def unpack_into(self, target: memoryview, *, name: str) -> None:
        if self.stored:
            target[:] = self.packed
        else:
            self._decompress_into(target, name=name)
        if xxhash.xxh32_intdigest(target, _LZ4_SEED) & _LZ4_CHECKSUM_BITS != self.checksum:
            raise corrupt("an LZ4 block does not match its checksum", name=name, at_byte=self.start)

    def _decompress_into(self, target: memoryview, *, name: str) -> None:
        try:
            written = cramjam.lz4.decompress_block_into(self.packed, target, output_len=len(target))
        except (cramjam.DecompressionError, OSError, ValueError) as error:
            raise corrupt(f"an LZ4 block does not decompress ({error})", name=name, at_byte=self.start) from error
        if written != len(target):
            raise corrupt(f"an LZ4 block holds {written} bytes, not {len(target)}", name=name, at_byte=self.start)


def lz4_blocks(source: Compressed, *, name: str) -> Iterator[Block]:
    """Yield the blocks up to the empty one that ends a stream; another stream may follow, as in Spark's own reader."""
    position, ended = 0, False
    head = source.read(0, _LZ4_HEADER.size)
    while position < source.size:
        if len(head) < _LZ4_HEADER.size:
            raise corrupt("ends inside an LZ4 block header", name=name, at_byte=source.size)
        magic, token, packed_bytes, raw_bytes, checksum = _LZ4_HEADER.unpack(head)
        # The low half of the token is lz4-java's level: a block has at most 2^(10 + level) bytes.
        method, max_raw = token & 0xF0, 1 << (10 + (token & 0x0F))
        stored = method == _LZ4_STORED
        if magic != LZ4_MAGIC or (not stored and method != _LZ4_COMPRESSED):
            raise corrupt("an LZ4 block header is missing", name=name, at_byte=position)
        if (
            not 0 <= raw_bytes <= max_raw
            or packed_bytes < 0
            or (stored and raw_bytes != packed_bytes)
            or (raw_bytes == 0) != (packed_bytes == 0)
        ):
            raise corrupt("an LZ4 block header has impossible lengths", name=name, at_byte=position)
        position += _LZ4_HEADER.size
        if position + packed_bytes > source.size:
            raise corrupt("ends inside an LZ4 block", name=name, at_byte=source.size)
        # One read for a block and the header of the next.
        data = source.read(position, packed_bytes + _LZ4_HEADER.size)
        packed, head = memoryview(data)[:packed_bytes], data[packed_bytes:]
        if len(packed) < packed_bytes:
            raise corrupt("ends inside an LZ4 block", name=name, at_byte=position + len(packed))
        if raw_bytes:
            yield _Lz4Block(position, packed, raw_bytes, stored, checksum)
        position += packed_bytes
        ended = raw_bytes == 0
    if not ended:
        raise corrupt("the LZ4 stream ends without its end block", name=name, at_byte=source.size)


@dataclass(frozen=True, slots=True)
class _SnappyChunk:
    start: int
    packed: bytes | memoryview
    raw_bytes: int

    def unpack_into(self, target: memoryview, *, name: str) -> None:
        try:
            cramjam.snappy.decompress_raw_into(self.packed, target)
        except (cramjam.DecompressionError, OSError, ValueError) as error:
            raise corrupt(f"a snappy chunk does not decompress ({error})", name=name, at_byte=self.start) from error


def snappy_blocks(source: Compressed, *, name: str) -> Iterator[Block]:
    """Yield the chunks of Xerial framing: a 16-byte header, then (int32 BE length, raw snappy). No end mark."""
    size = source.size
    if size < _SNAPPY_HEADER_BYTES:
        raise corrupt("ends inside the snappy header", name=name, at_byte=size)
    position = _SNAPPY_HEADER_BYTES
    while position < size:
        if source.read(position, len(SNAPPY_MAGIC)) == SNAPPY_MAGIC:  # a second stream: snappy-java reads on, too
            position += _SNAPPY_HEADER_BYTES
            continue
        # Unsigned: a negative length counts as one that is too long.
        length = int.from_bytes(source.read(position, 4), "big")
        position += 4
        if position + length > size:
            raise corrupt("ends inside a snappy chunk", name=name, at_byte=size)
        packed = source.read(position, length)
        try:
            raw_bytes = int(cramjam.snappy.decompress_raw_len(packed))
        except (cramjam.DecompressionError, OSError, ValueError) as error:
            raise corrupt(f"a snappy chunk does not decompress ({error})", name=name, at_byte=position) from error
        yield _SnappyChunk(position, packed, raw_bytes)
        position += length


def zstd_most_bytes(source: Compressed, *, name: str) -> int:
    """Return an upper bound of the content in bytes, by the frames (RFC 8878), in whole blocks; raise on truncation."""
    position, most, size = 0, 0, source.size
    while position < size:
        if source.read(position, 4) != ZSTD_MAGIC:
            raise corrupt("a zstd frame is missing", name=name, at_byte=position)
        if position + 5 > size:
            raise corrupt("ends inside a zstd frame header", name=name, at_byte=size)
        descriptor = source.read(position + 4, 1)[0]
        single_segment = descriptor >> 5 & 1
        # RFC 8878, 3.1.1.1: with flag 0 only a single segment has the field, in one byte.
        content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
        position += 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
        last = 0
        while not last:
            if position + 3 > size:
                raise corrupt("ends inside a zstd frame", name=name, at_byte=size)
            header = int.from_bytes(source.read(position, 3), "little")
            last, kind, length = header & 1, header >> 1 & 3, header >> 3
            # A compressed block does not say what it holds; the RFC allows 128 KiB. The other kinds say it.
            most += _ZSTD_MAX_BLOCK_BYTES if kind == 2 else length
            # A run-length block is one byte, however long its run.
            position += 3 + (1 if kind == 1 else length)
        position += 4 if descriptor & 4 else 0
        if position > size:
            raise corrupt("ends inside a zstd frame", name=name, at_byte=size)
    return most
