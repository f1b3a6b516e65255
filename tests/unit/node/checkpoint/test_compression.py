"""Compressed state files come out whole, or are refused with file and byte."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.compression import decompress, decompressed_pieces, sniff_codec
from understudy_shared.base.errors import CorruptFileError, UnsupportedError

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
def test_several_streams_in_a_row_are_one_content(codec: str, raw: bytes) -> None:
    assert decompress(CODECS[codec](raw) * 2, name="1.delta") == raw * 2


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


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compressed") / "1.snapshot"


def pieces_of(path: Path, **limits: int) -> Iterator[bytes]:
    """Copies: a piece is overwritten by the next one."""
    return map(bytes, decompressed_pieces(path, name="1.snapshot", **limits))


@codecs
@settings(deadline=None)
@given(parts=st.lists(st.binary(max_size=300), max_size=30), times=st.integers(1, 3), piece_bytes=st.integers(1, 3_000))
def test_content_comes_back_whole_at_once_and_in_pieces(
    codec: str, parts: list[bytes], times: int, piece_bytes: int, file: Path
) -> None:
    raw = b"".join(parts) * times
    compressed = CODECS[codec](raw)
    assert sniff_codec(compressed, name="1.delta") == codec.removesuffix(" stored")
    assert decompress(compressed, name="1.delta") == raw
    file.write_bytes(compressed)
    assert b"".join(pieces_of(file, piece_bytes=piece_bytes)) == raw


@pytest.mark.parametrize("codec", ["lz4", "lz4 stored", "zstd"])
@settings(deadline=None)
@given(raw=contents, data=st.data())
def test_no_prefix_is_read_to_the_end(codec: str, raw: bytes, data: st.DataObject, file: Path) -> None:
    compressed = CODECS[codec](raw)
    cut = data.draw(st.integers(0, len(compressed) - 1))
    with pytest.raises(CorruptFileError, match=rf"1\.delta, byte {cut}"):
        decompress(compressed[:cut], name="1.delta")
    file.write_bytes(compressed[:cut])
    read: list[bytes] = []
    with pytest.raises(CorruptFileError, match=rf"1\.snapshot, byte {cut}"):
        read.extend(pieces_of(file, piece_bytes=256))
    assert raw.startswith(b"".join(read))


@settings(deadline=None)
@given(raw=st.binary(min_size=1, max_size=5_000), stored=st.booleans(), data=st.data())
def test_no_bit_of_a_block_may_flip(raw: bytes, stored: bool, data: st.DataObject, file: Path) -> None:
    compressed = bytearray(spark.lz4(raw, block_bytes=1 << 10, stored=stored))
    flipped = data.draw(st.integers(0, 8 * len(compressed) - 1))
    compressed[flipped // 8] ^= 1 << flipped % 8
    file.write_bytes(compressed)
    try:
        content = b"".join(pieces_of(file))
    except (CorruptFileError, UnsupportedError):
        return
    assert content == raw, "only a bit that says nothing about the content may flip"


@codecs
def test_output_above_the_cap_is_refused(codec: str, tmp_path: Path) -> None:
    path = tmp_path / "1.snapshot"
    path.write_bytes(CODECS[codec](bytes(range(256)) * 2048))
    assert len(decompress(path.read_bytes(), name="1.delta", max_bytes=1 << 20)) == 1 << 19
    with pytest.raises(CorruptFileError, match="more than the 1000 bytes"):
        decompress(path.read_bytes(), name="1.delta", max_bytes=1000)
    with pytest.raises(CorruptFileError, match="more than the 1000 bytes"):
        list(pieces_of(path, max_bytes=1000))


@codecs
def test_a_file_that_is_read_piece_by_piece_is_never_in_memory_whole(codec: str, tmp_path: Path) -> None:
    path = tmp_path / "1.snapshot"
    path.write_bytes(CODECS[codec](bytes(10 << 10)))
    assert [len(piece) for piece in pieces_of(path, piece_bytes=2048)] == [2048] * 5
    assert [name.name for name in tmp_path.iterdir()] == ["1.snapshot"], "what zstd needs meanwhile is gone"


def test_a_block_larger_than_a_piece_is_a_piece(tmp_path: Path) -> None:
    path, raw = tmp_path / "1.snapshot", bytes(range(256)) * (9 << 12)
    path.write_bytes(spark.lz4(raw, block_bytes=1 << 22))
    assert b"".join(pieces_of(path)) == raw


def test_a_piece_belongs_to_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    """Steps of one restore may run on any worker, and each worker's buffer serves all restores."""
    path, other = tmp_path / "1.snapshot", tmp_path / "2.snapshot"
    raw = bytes(range(256)) * 64
    path.write_bytes(spark.lz4(raw, block_bytes=1 << 10))
    other.write_bytes(spark.lz4(b"\xee" * 5_000, block_bytes=1 << 10))
    pieces = decompressed_pieces(path, name="1.snapshot", piece_bytes=2048)
    assert bytes(next(pieces)) == raw[:2048]
    on_another: list[memoryview] = []
    thread = threading.Thread(target=lambda: on_another.append(next(pieces)))
    thread.start()
    thread.join()
    list(pieces_of(other))
    assert bytes(on_another[0]) == raw[2048:4096]
    assert b"".join(map(bytes, pieces)) == raw[4096:]


def test_a_full_disk_is_not_the_snapshot_s_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "1.snapshot"
    path.write_bytes(spark.zstd(bytes(1 << 20)))
    opened = cramjam.File
    monkeypatch.setattr(cramjam, "File", lambda name: opened("/dev/full"))
    with pytest.raises(OSError, match="No space left") as error:
        list(pieces_of(path))
    assert error.value.errno == 28
