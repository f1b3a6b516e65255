"""Compressed state files come out whole, or are refused with file and byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.compression import decompress, decompressed_chunks, sniff_codec
from understudy_shared.errors import CorruptFileError, UnsupportedError

CODECS: dict[str, Callable[[bytes], bytes]] = {
    "lz4": lambda raw: spark.lz4(raw, block_bytes=1 << 10),
    "lz4 stored": lambda raw: spark.lz4(raw, block_bytes=1 << 10, stored=True),
    "zstd": spark.zstd,
    "snappy": lambda raw: spark.snappy(raw, chunk_bytes=1 << 10),
}
codecs = pytest.mark.parametrize("codec", list(CODECS))
contents = st.one_of(st.binary(max_size=300), st.binary(max_size=40).map(lambda part: part * 100))


@codecs
@given(raw=contents)
def test_content_comes_back_whole(codec: str, raw: bytes) -> None:
    compressed = CODECS[codec](raw)
    assert sniff_codec(compressed, name="1.delta") == codec.removesuffix(" stored")
    assert decompress(compressed, name="1.delta") == raw


@codecs
@given(raw=contents)
def test_several_streams_in_a_row_are_one_content(codec: str, raw: bytes) -> None:
    assert decompress(CODECS[codec](raw) * 2, name="1.delta") == raw * 2


@pytest.mark.parametrize("codec", ["lz4", "lz4 stored", "zstd"])
@given(raw=contents, data=st.data())
def test_no_prefix_is_accepted(codec: str, raw: bytes, data: st.DataObject) -> None:
    compressed = CODECS[codec](raw)
    cut = data.draw(st.integers(0, len(compressed) - 1))
    with pytest.raises(CorruptFileError, match=rf"1\.delta, byte {cut}"):
        decompress(compressed[:cut], name="1.delta")


@given(raw=contents, data=st.data())
def test_a_snappy_prefix_is_refused_unless_it_ends_between_two_chunks(raw: bytes, data: st.DataObject) -> None:
    """Its framing has no end mark: what ends between chunks is left to the end mark of the content."""
    compressed = CODECS["snappy"](raw)
    cut = data.draw(st.integers(0, len(compressed) - 1))
    try:
        content = decompress(compressed[:cut], name="1.delta")
    except CorruptFileError:
        return
    assert content == raw[: len(content)]
    assert len(content) % (1 << 10) == 0


@codecs
def test_garbage_after_the_stream_is_refused(codec: str) -> None:
    with pytest.raises(CorruptFileError):
        decompress(CODECS[codec](b"content" * 50) + b"garbage", name="1.delta")


@codecs
def test_output_above_the_cap_is_refused(codec: str) -> None:
    raw = bytes(range(256)) * 2048
    compressed = CODECS[codec](raw)
    assert decompress(compressed, name="1.delta", max_bytes=1 << 20) == raw
    with pytest.raises(CorruptFileError, match="more than the 1000 bytes"):
        decompress(compressed, name="1.delta", max_bytes=1000)


def test_an_lz4_block_shorter_than_recorded_is_refused() -> None:
    compressed = bytearray(spark.lz4(b"abc" * 100))
    compressed[13:17] = (301).to_bytes(4, "little")
    with pytest.raises(CorruptFileError, match="300 bytes, not 301"):
        decompress(bytes(compressed), name="1.delta")


@pytest.mark.parametrize(
    ("data", "what"), [(b"ZV\x01\x00", "lzf"), (b"\x00\x01\x02\x03", "00 01 02 03")], ids=["lzf", "unknown"]
)
def test_other_codecs_are_refused_by_name_with_what_to_set(data: bytes, what: str) -> None:
    with pytest.raises(UnsupportedError, match=what) as refusal:
        decompress(data, name="1.delta")
    assert "compression.codec" in refusal.value.fix


def test_a_flipped_bit_that_still_decompresses_is_refused_by_its_checksum() -> None:
    packed = bytearray(spark.lz4(b"a value that must not be served changed", stored=True))
    at = packed.index(b"value")
    packed[at] ^= 1
    with pytest.raises(CorruptFileError, match="checksum"):
        decompress(bytes(packed), name="1.delta")


@given(st.lists(st.binary(max_size=300), max_size=30), st.integers(1, 500))
def test_the_pieces_of_a_stream_are_its_content(parts: list[bytes], chunk_bytes: int) -> None:
    raw = b"".join(parts)
    packed = spark.lz4(raw, block_bytes=1 << 10)
    assert b"".join(decompressed_chunks(packed, name="x", chunk_bytes=chunk_bytes)) == raw


def test_content_that_is_read_piece_by_piece_is_never_in_memory_whole() -> None:
    raw = bytes(10 << 10)
    pieces = [
        len(piece) for piece in decompressed_chunks(spark.lz4(raw, block_bytes=1 << 10), name="x", chunk_bytes=2048)
    ]
    assert pieces == [2048] * 5
