"""Keys of one prefix lie together, nothing else lies between them, and Spark's own key can always be had again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint import bytes as spark

from understudy_node.engine.scans import ScanOrder, after_prefix
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.spark.types import DecimalType, Field, IntType, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder, fixed_bytes

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
KEYS = st.tuples(PREFIXES, st.integers(-(2**63), 2**63 - 1))


@given(st.lists(KEYS, unique=True))
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


RECORDS = st.lists(st.tuples(KEYS, st.binary(max_size=12)), max_size=12)


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
