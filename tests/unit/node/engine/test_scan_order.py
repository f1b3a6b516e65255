"""Keys of one prefix lie together, nothing else lies between them, and Spark's own key can always be had again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint import bytes as spark

from understudy_node.engine.scan_order import ScanOrder, after_prefix
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.spark.layout import fixed_bytes
from understudy_shared.spark.types import DecimalType, Field, IntType, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

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


@given(st.binary(min_size=fixed_bytes(KEY), max_size=80))
def test_the_original_of_a_kept_key_is_the_key(key: bytes) -> None:
    assert ORDER.original(ORDER.kept(key)) == key
    assert len(ORDER.kept(key)) == len(key)
    assert ScanOrder().kept(key) == ScanOrder().original(key) == key


@given(prefix=st.binary(max_size=3), rest=st.binary(max_size=2), other=st.binary(max_size=4))
def test_the_end_of_a_prefix_is_behind_all_that_begin_with_it(prefix: bytes, rest: bytes, other: bytes) -> None:
    end = after_prefix(prefix)
    assert end is None or prefix + rest < end
    begins = other.startswith(prefix)
    assert begins is (prefix <= other and (end is None or other < end))


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


def test_content_that_ends_within_a_record_is_passed_on_for_its_reader_to_judge() -> None:
    whole, cut = spark.sized(encode(("a", 1, None, 2))) + spark.sized(b"v"), b"\0\0\0\x30torn"
    passed = b"".join(ORDER.pieces([whole + cut], where="here"))
    assert passed.endswith(cut)
    damaged = b"\x80\0\0\0 not a length"
    assert b"".join(ORDER.pieces([damaged], where="here")) == damaged


def test_a_record_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_node.engine.scan_order.MAX_RECORD_BYTES", 1_000)
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


def test_changes_are_in_the_order_of_their_kept_keys() -> None:
    rows = [encode((name, 0, None, start)) for name in ("b", "a", None) for start in (9, -1, 3)]
    found = ORDER.changes({row: None if index % 2 else b"v" for index, row in enumerate(rows)})
    assert list(found) == sorted(map(ORDER.kept, rows))
    assert {ORDER.original(key) for key in found} == set(rows)
