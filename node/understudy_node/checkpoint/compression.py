"""Undoes the stream compression of Spark's state files, whichever codec wrote them.

The codec is sniffed from the first bytes, not taken from the configuration: a restart of the query may change it.
Rule: the whole content or `CorruptFileError` with file and byte, never a part of it. Pure: bytes in, bytes out.

An LZ4Block stream, Spark's default, carries an xxhash32 of every block's content, which is verified: a flipped bit that
still decompresses would otherwise be served as a value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

import cramjam
import xxhash

from understudy_shared.errors import CorruptFileError, UnsupportedError

Codec = Literal["lz4", "zstd", "snappy"]

DEFAULT_MAX_BYTES = 8 << 30
"""Output cap: far above any state file met so far, below what a damaged length field can ask for."""

DEFAULT_CHUNK_BYTES = 4 << 20
"""Size of one piece: a few milliseconds of work; the next piece reuses its memory."""

LZ4_MAGIC = b"LZ4Block"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SNAPPY_MAGIC = b"\x82SNAPPY\x00"
LZF_MAGIC = b"ZV"

_LZ4_HEADER = struct.Struct("<8sBiii")
_LZ4_SEED = 0x9747B28C
_LZ4_CHECKSUM_BITS = 0x0FFFFFFF
_LZ4_STORED = 0x10
_LZ4_COMPRESSED = 0x20
_SNAPPY_HEADER_BYTES = 16
_ZSTD_MAX_BLOCK_BYTES = 128 << 10
_RECOVERY = "Spark would not read this file either: restore it, or start again from a newer snapshot"


class _Lz4Block(NamedTuple):
    start: int
    packed_bytes: int
    raw_bytes: int
    stored: bool
    checksum: int


def sniff_codec(data: bytes, *, name: str) -> Codec:
    """The codec that wrote the file; lzf and anything unknown are refused by name."""
    if data.startswith(LZ4_MAGIC):
        return "lz4"
    if data.startswith(ZSTD_MAGIC):
        return "zstd"
    if data.startswith(SNAPPY_MAGIC):
        return "snappy"
    if any(magic.startswith(data) for magic in (LZ4_MAGIC, ZSTD_MAGIC, SNAPPY_MAGIC)):
        raise corrupt("ends inside the codec's magic number", name=name, at_byte=len(data))
    if data.startswith(LZF_MAGIC):
        raise UnsupportedError(
            "Codec lzf is not supported",
            where=name,
            fix="Set spark.sql.streaming.stateStore.compression.codec to lz4, zstd or snappy and restart the query; "
            "the store can be read from the first snapshot written after that",
        )
    raise UnsupportedError(
        f"Unknown compression (the file starts with {data[:8].hex(' ')})",
        where=name,
        fix="Supported codecs are lz4, zstd and snappy (spark.sql.streaming.stateStore.compression.codec); "
        "encrypted checkpoints are not supported",
    )


def decompress(data: bytes, *, name: str, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """The file's content. `name` is for messages; more than `max_bytes` of output is refused."""
    return b"".join(decompressed_chunks(data, name=name, max_bytes=max_bytes, chunk_bytes=max_bytes))


def decompressed_chunks(
    data: bytes, *, name: str, max_bytes: int = DEFAULT_MAX_BYTES, chunk_bytes: int = DEFAULT_CHUNK_BYTES
) -> Iterator[bytes]:
    """The file's content piece by piece, so that it need not fit in memory; any piece may raise on damage."""
    codec = sniff_codec(data, name=name)
    if codec == "lz4":
        yield from _decompress_lz4(data, name=name, max_bytes=max_bytes, chunk_bytes=chunk_bytes)
    elif codec == "zstd":
        yield _decompress_zstd(data, name=name, max_bytes=max_bytes)
    else:
        yield _decompress_snappy(data, name=name, max_bytes=max_bytes)


def corrupt(what: str, *, name: str, at_byte: int) -> CorruptFileError:
    """The error for a damaged file. `what` completes "Corrupt file: ..."; `at_byte` counts compressed bytes."""
    return CorruptFileError(f"Corrupt file: {what}", where=f"{name}, byte {at_byte}", fix=_RECOVERY)


def too_large(*, name: str, max_bytes: int) -> CorruptFileError:
    """The error for output above the cap."""
    return CorruptFileError(
        f"Decompresses to more than the {max_bytes} bytes allowed",
        where=name,
        fix="Raise the limit if the file is intact",
    )


def _decompress_lz4(data: bytes, *, name: str, max_bytes: int, chunk_bytes: int) -> Iterator[bytes]:
    """Decode the blocks up to the empty one; another stream may follow, as in Spark's own reader."""
    blocks, total, ended = _lz4_blocks(data, name=name)
    if not ended:
        raise corrupt("the LZ4 stream ends without its end block", name=name, at_byte=len(data))
    if total > max_bytes:
        raise too_large(name=name, max_bytes=max_bytes)
    source = memoryview(data)
    for chunk in _chunks(blocks, chunk_bytes):
        output = bytearray(sum(block.raw_bytes for block in chunk))
        target, position = memoryview(output), 0
        for block in chunk:
            content = target[position : position + block.raw_bytes]
            _unpack_lz4(block, source, content, name=name)
            position += block.raw_bytes
        yield bytes(output)


def _chunks(blocks: list[_Lz4Block], chunk_bytes: int) -> Iterator[list[_Lz4Block]]:
    """Group neighbouring blocks into pieces of about `chunk_bytes` of content."""
    chunk: list[_Lz4Block] = []
    size_bytes = 0
    for block in blocks:
        if chunk and size_bytes + block.raw_bytes > chunk_bytes:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(block)
        size_bytes += block.raw_bytes
    if chunk:
        yield chunk


def _unpack_lz4(block: _Lz4Block, source: memoryview, target: memoryview, *, name: str) -> None:
    packed = source[block.start : block.start + block.packed_bytes]
    if block.stored:
        target[:] = packed
    else:
        try:
            written = cramjam.lz4.decompress_block_into(packed, target, output_len=len(target))
        except (cramjam.DecompressionError, OSError, ValueError) as error:
            raise corrupt(f"an LZ4 block does not decompress ({error})", name=name, at_byte=block.start) from error
        if written != len(target):
            raise corrupt(f"an LZ4 block holds {written} bytes, not {len(target)}", name=name, at_byte=block.start)
    if xxhash.xxh32_intdigest(target, _LZ4_SEED) & _LZ4_CHECKSUM_BITS != block.checksum:
        raise corrupt("an LZ4 block does not match its checksum", name=name, at_byte=block.start)


def _lz4_blocks(data: bytes, *, name: str) -> tuple[list[_Lz4Block], int, bool]:
    """All non-empty blocks, their total raw bytes, and whether the last stream has ended."""
    blocks: list[_Lz4Block] = []
    position, total, ended, size = 0, 0, False, len(data)
    while position < size:
        if position + _LZ4_HEADER.size > size:
            raise corrupt("ends inside an LZ4 block header", name=name, at_byte=size)
        magic, token, packed, raw, checksum = _LZ4_HEADER.unpack_from(data, position)
        method, max_raw = token & 0xF0, 1 << (10 + (token & 0x0F))
        stored = method == _LZ4_STORED
        if magic != LZ4_MAGIC or (not stored and method != _LZ4_COMPRESSED):
            raise corrupt("an LZ4 block header is missing", name=name, at_byte=position)
        if not 0 <= raw <= max_raw or packed < 0 or (stored and raw != packed) or (raw == 0) != (packed == 0):
            raise corrupt("impossible lengths in an LZ4 block header", name=name, at_byte=position)
        position += _LZ4_HEADER.size
        if position + packed > size:
            raise corrupt("ends inside an LZ4 block", name=name, at_byte=size)
        if raw:
            blocks.append(_Lz4Block(position, packed, raw, stored, checksum))
        position += packed
        total += raw
        ended = raw == 0
    return blocks, total, ended


def _decompress_zstd(data: bytes, *, name: str, max_bytes: int) -> bytes:
    if _zstd_most_bytes(data, name=name) > max_bytes:
        raise too_large(name=name, max_bytes=max_bytes)
    try:
        return bytes(cramjam.zstd.decompress(data))
    except (cramjam.DecompressionError, OSError, ValueError) as error:
        raise corrupt(f"the zstd content does not decompress ({error})", name=name, at_byte=0) from error


def _zstd_most_bytes(data: bytes, *, name: str) -> int:
    """Upper bound of the content in bytes, by the frames (RFC 8878), in whole blocks; raises on truncation."""
    position, most, size = 0, 0, len(data)
    while position < size:
        if data[position : position + 4] != ZSTD_MAGIC:
            raise corrupt("a zstd frame is missing", name=name, at_byte=position)
        if position + 5 > size:
            raise corrupt("ends inside a zstd frame header", name=name, at_byte=size)
        descriptor = data[position + 4]
        single_segment = descriptor >> 5 & 1
        content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
        position += 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
        last = 0
        while not last:
            if position + 3 > size:
                raise corrupt("ends inside a zstd frame", name=name, at_byte=size)
            header = int.from_bytes(data[position : position + 3], "little")
            last, kind, length = header & 1, header >> 1 & 3, header >> 3
            most += _ZSTD_MAX_BLOCK_BYTES if kind == 2 else length
            position += 3 + (1 if kind == 1 else length)
        position += 4 if descriptor & 4 else 0
        if position > size:
            raise corrupt("ends inside a zstd frame", name=name, at_byte=size)
    return most


def _decompress_snappy(data: bytes, *, name: str, max_bytes: int) -> bytes:
    """Xerial framing: a 16-byte header, then (int32 BE length, raw snappy) chunks. It has no end mark."""
    if len(data) < _SNAPPY_HEADER_BYTES:
        raise corrupt("ends inside the snappy header", name=name, at_byte=len(data))
    parts: list[bytes] = []
    position, total, size = _SNAPPY_HEADER_BYTES, 0, len(data)
    while position < size:
        if data.startswith(SNAPPY_MAGIC, position):  # a second stream: snappy-java reads on, too
            position += _SNAPPY_HEADER_BYTES
            continue
        length = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if position + length > size:
            raise corrupt("ends inside a snappy chunk", name=name, at_byte=size)
        chunk = data[position : position + length]
        try:
            total += int(cramjam.snappy.decompress_raw_len(chunk))
            if total > max_bytes:
                raise too_large(name=name, max_bytes=max_bytes)
            parts.append(bytes(cramjam.snappy.decompress_raw(chunk)))
        except (cramjam.DecompressionError, OSError, ValueError) as error:
            raise corrupt(f"a snappy chunk does not decompress ({error})", name=name, at_byte=position) from error
        position += length
    return b"".join(parts)
