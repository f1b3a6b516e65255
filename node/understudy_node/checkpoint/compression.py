"""Undoes the stream compression of Spark's state files, whichever codec wrote them.

The codec is sniffed from the first bytes, not taken from the configuration: a restart of the query may change it. Rule:
the whole content or `CorruptFileError` with file and byte, never a part of it. A reader of pieces must show nothing of
them before the last one has come.

An LZ4Block stream, Spark's default, carries an xxhash32 of every block's content, which is verified: a flipped bit that
still decompresses would otherwise be served as a value.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import cramjam

from understudy_node.checkpoint.compressed import Compressed, CompressedBytes, CompressedFile
from understudy_node.checkpoint.compressed_blocks import (
    LZ4_MAGIC,
    SNAPPY_MAGIC,
    ZSTD_MAGIC,
    corrupt,
    lz4_blocks,
    snappy_blocks,
    zstd_most_bytes,
)
from understudy_shared.base.errors import CorruptFileError, UnsupportedError

Codec = Literal["lz4", "zstd", "snappy"]

DEFAULT_MAX_BYTES = 8 << 30
"""Limit on the output: far above any state file met so far, below what a damaged length field can ask for."""

DEFAULT_PIECE_BYTES = 1 << 20
"""Size of one piece: a millisecond of work, and small enough to stay in a processor's cache until it is used."""

LZF_MAGIC = b"ZV"
_MAGIC_BYTES = 8
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


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
    with CompressedFile(path, name=name) as source:
        codec = sniff_codec(source.read(0, _MAGIC_BYTES), name=name)
        if codec == "zstd":
            yield from _zstd_pieces(path, name=name, max_bytes=max_bytes, piece_bytes=piece_bytes)
        else:
            yield from _pieces(source, codec, name=name, max_bytes=max_bytes, piece_bytes=piece_bytes)


def too_large(*, name: str, max_bytes: int) -> CorruptFileError:
    """Make the error for output above the limit."""
    return CorruptFileError(
        f"Decompresses to more than the {max_bytes} bytes allowed",
        where=name,
        fix="Raise the limit if the file is intact",
    )


def _pieces(
    source: Compressed, codec: Literal["lz4", "snappy"], *, name: str, max_bytes: int, piece_bytes: int
) -> Iterator[memoryview]:
    """Decompress neighbouring blocks into pieces of about `piece_bytes`."""
    blocks = lz4_blocks(source, name=name) if codec == "lz4" else snappy_blocks(source, name=name)
    piece, filled, total = _buffers.of(piece_bytes), 0, 0
    for block in blocks:
        size = block.raw_bytes
        total += size
        # By the headers, before memory is taken for the block.
        if total > max_bytes:
            raise too_large(name=name, max_bytes=max_bytes)
        if filled and filled + size > piece_bytes:
            yield piece[:filled]
            # Another thread may go on from here, and this one may have decompressed another file meanwhile.
            piece, filled = _buffers.of(piece_bytes), 0
        if size > len(piece):
            piece = _buffers.of(size)
        block.unpack_into(piece[filled : filled + size], name=name)
        filled += size
    if filled:
        yield piece[:filled]


def _zstd_pieces(path: Path, *, name: str, max_bytes: int, piece_bytes: int) -> Iterator[memoryview]:
    """Decompress a zstd frame in one go, into a file beside it, so that its content is not in memory."""
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
