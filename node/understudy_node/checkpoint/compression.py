"""Undoes the stream compression of Spark's state files, whichever codec wrote them.

The codec is sniffed from the first bytes, not taken from the configuration: a restart of the query may change it. Rule:
the whole content or `CorruptFileError` with file and byte, never a part of it. A reader of pieces must show nothing of
them before the last one has come.

An LZ4Block stream, Spark's default, carries an xxhash32 of every block's content, which is verified: a flipped bit that
still decompresses would otherwise be served as a value.

Blocks are found and decompressed one at a time. A block that does not hold exactly what its header says raises
`CorruptFileError`, too.
"""

from __future__ import annotations

import os
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cramjam
import xxhash

from understudy_node.checkpoint.files import storage_error
from understudy_shared.base.errors import CorruptFileError, UnsupportedError

Codec = Literal["lz4", "zstd", "snappy"]

DEFAULT_MAX_BYTES = 8 << 30
"""Limit on the output: far above any state file met so far, below what a damaged length field can ask for."""

DEFAULT_PIECE_BYTES = 1 << 20
"""Size of one piece: a millisecond of work, and small enough to stay in a processor's cache until it is used."""

LZF_MAGIC = b"ZV"
_MAGIC_BYTES = 8
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


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


class CompressedBytes:
    """All bytes in memory; reading does not copy them."""

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self.size = len(data)

    def read(self, position: int, size: int) -> memoryview:
        return self._view[position : position + size]


class CompressedFile:
    """A local file. It is read, not mapped: one that is cut short meanwhile is an error, and does not kill the process.

    `name` stands for the file in messages.
    """

    def __init__(self, path: Path, *, name: str) -> None:
        self._name = name
        self._file = path.open("rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()

    def read(self, position: int, size: int) -> bytes:
        try:
            return os.pread(self._file.fileno(), size, position)
        except OSError as error:
            raise storage_error("Cannot read", self._name, error) from error


Compressed = CompressedBytes | CompressedFile


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
            try:
                written = cramjam.lz4.decompress_block_into(self.packed, target, output_len=len(target))
            except (cramjam.DecompressionError, OSError, ValueError) as error:
                raise corrupt(f"an LZ4 block does not decompress ({error})", name=name, at_byte=self.start) from error
            if written != len(target):
                raise corrupt(f"an LZ4 block holds {written} bytes, not {len(target)}", name=name, at_byte=self.start)
        if xxhash.xxh32_intdigest(target, _LZ4_SEED) & _LZ4_CHECKSUM_BITS != self.checksum:
            raise corrupt("an LZ4 block does not match its checksum", name=name, at_byte=self.start)


def lz4_blocks(source: Compressed, *, name: str) -> Iterator[_Lz4Block]:
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


def snappy_blocks(source: Compressed, *, name: str) -> Iterator[_SnappyChunk]:
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


class _Buffers(threading.local):
    """A buffer for each thread, used again and again: fresh memory pages cost more than decompressing into them."""

    def __init__(self) -> None:
        self._own = memoryview(bytearray(DEFAULT_PIECE_BYTES))

    def of(self, size: int) -> memoryview:
        return self._own if size <= len(self._own) else memoryview(bytearray(size))


_buffers = _Buffers()


def sniff_codec(data: bytes, *, name: str) -> Codec:
    """Return the codec that wrote the file; refuse lzf and unknown codecs by name."""
    if data.startswith(LZ4_MAGIC):
        return "lz4"
    if data.startswith(ZSTD_MAGIC):
        return "zstd"
    if data.startswith(SNAPPY_MAGIC):
        return "snappy"
    # An empty file, or one that was cut this early, is damaged; its codec is not unknown.
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
        f"The compression is unknown (the file starts with {data[:8].hex(' ')})",
        where=name,
        fix="Supported codecs are lz4, zstd and snappy (spark.sql.streaming.stateStore.compression.codec); "
        "encrypted checkpoints are not supported",
    )


def decompress(data: bytes, *, name: str, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """Decompress a file's content. `name` is for messages; more than `max_bytes` of output is refused."""
    codec = sniff_codec(data, name=name)
    if codec != "zstd":
        pieces = _pieces(CompressedBytes(data), codec, name=name, max_bytes=max_bytes, piece_bytes=DEFAULT_PIECE_BYTES)
        return b"".join(map(bytes, pieces))
    # A zstd frame is decompressed in one go, so its size is checked before; the others are counted by block.
    _check_zstd(data, name=name, max_bytes=max_bytes)
    with _blaming_zstd(name):
        return bytes(cramjam.zstd.decompress(data))


def decompressed_pieces(
    path: Path, *, name: str, max_bytes: int = DEFAULT_MAX_BYTES, piece_bytes: int = DEFAULT_PIECE_BYTES
) -> Iterator[memoryview]:
    """Yield the content of the file at `path`, piece by piece; any piece may raise on damage.

    The content is never in memory as a whole. A piece is overwritten by the next one that this thread decompresses: use
    it, or copy it, before anything else.
    """
    with closing(CompressedFile(path, name=name)) as source:
        codec = sniff_codec(source.read(0, _MAGIC_BYTES), name=name)
        if codec == "zstd":
            yield from _zstd_pieces(path, name=name, max_bytes=max_bytes, piece_bytes=piece_bytes)
        else:
            yield from _pieces(source, codec, name=name, max_bytes=max_bytes, piece_bytes=piece_bytes)


def too_large(*, name: str, max_bytes: int) -> CorruptFileError:
    return CorruptFileError(
        f"Decompresses to more than the {max_bytes} bytes allowed",
        where=name,
        fix="Raise the limit if the file is intact",
    )


def _pieces(
    source: Compressed, codec: Literal["lz4", "snappy"], *, name: str, max_bytes: int, piece_bytes: int
) -> Iterator[memoryview]:
    """Decompress neighbouring blocks into pieces of about `piece_bytes`."""
    piece, filled, total = _buffers.of(piece_bytes), 0, 0
    for block in lz4_blocks(source, name=name) if codec == "lz4" else snappy_blocks(source, name=name):
        size = block.raw_bytes
        total += size
        # By the headers, before memory is taken for the block.
        if total > max_bytes:
            raise too_large(name=name, max_bytes=max_bytes)
        if filled and filled + size > piece_bytes:
            yield piece[:filled]
            # Another thread may continue here, and this one may have decompressed another file meanwhile.
            piece, filled = _buffers.of(piece_bytes), 0
        if size > len(piece):
            piece = _buffers.of(size)
        block.unpack_into(piece[filled : filled + size], name=name)
        filled += size
    if filled:
        yield piece[:filled]


def _zstd_pieces(path: Path, *, name: str, max_bytes: int, piece_bytes: int) -> Iterator[memoryview]:
    """Decompress a zstd frame in one go, into a file next to it, so that its content is not in memory."""
    scratch = path.with_name(f"{path.name}.decompressed")
    try:
        data = path.read_bytes()
        _check_zstd(data, name=name, max_bytes=max_bytes)
        with _blaming_zstd(name):
            cramjam.zstd.decompress_into(data, cramjam.File(str(scratch)))
        # The compressed bytes go before the content comes: both together may not fit.
        del data
        with scratch.open("rb", buffering=0) as file:
            while read := file.readinto(piece := _buffers.of(piece_bytes)[:piece_bytes]):
                yield piece[:read]
    finally:
        scratch.unlink(missing_ok=True)


def _check_zstd(data: bytes, *, name: str, max_bytes: int) -> None:
    if zstd_most_bytes(CompressedBytes(data), name=name) > max_bytes:
        raise too_large(name=name, max_bytes=max_bytes)


@contextmanager
def _blaming_zstd(name: str) -> Iterator[None]:
    """Blame failures of zstd on the file `name`, but not failures of the disk that is written to."""
    try:
        yield
    except (cramjam.DecompressionError, OSError, ValueError) as error:
        if found := _OS_ERROR.search(str(error)):
            raise OSError(int(found[1]), str(error)) from error
        raise corrupt(f"the zstd content does not decompress ({error})", name=name, at_byte=0) from error
