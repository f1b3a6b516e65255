"""What deduplications and groups have is told with its expiry, as far as the state shows it, compared as Spark does."""

from __future__ import annotations

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint.shown import shown

from understudy_node.stores.finder import Expiry, FoundMembers, may_stand_behind_join
from understudy_node.stores.operator_state import (
    SEEN,
    ExpiringSet,
    SeenSet,
    either_zero,
    has_timeout,
    stored_state,
    with_timeout,
)
from understudy_shared.reads.bounds import EVERYTHING, Selection
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.types import DoubleType, Field, IntType, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

JOIN = "symmetricHashJoin"


@given(expires_us=st.integers(-(2**50), 2**50), watermark_ms=st.integers(-(2**40), 2**40))
def test_a_key_is_expired_from_the_very_moment_that_the_watermark_reaches(expires_us: int, watermark_ms: int) -> None:
    view, expiry = shown({}, next_watermark_ms=watermark_ms), Expiry()
    assert expiry.is_expired(expires_us, view) is (watermark_ms * 1000 >= expires_us)
    assert expiry.is_expired(watermark_ms * 1000, view) is True
    assert expiry.is_expired(watermark_ms * 1000 + 1, view) is False


@pytest.mark.parametrize(
    ("expiry", "watermark_ms", "expired"),
    [
        (Expiry(), None, None),
        (Expiry(is_watermarked=False), 10, False),
        (Expiry(is_watermarked=False), None, False),
        (Expiry(may_lag=True), 10, None),
        (Expiry(may_lag=True), 4, False),
        (Expiry(may_lag=True), None, None),
    ],
)
def test_what_the_state_does_not_tell_is_unknown(
    expiry: Expiry, watermark_ms: int | None, expired: bool | None
) -> None:
    assert expiry.is_expired(5_000, shown({}, next_watermark_ms=watermark_ms)) is expired


@pytest.mark.parametrize(
    ("operators", "lags"),
    [
        ([(0, "dedupeWithinWatermark")], False),
        ([(0, "dedupeWithinWatermark"), (1, JOIN)], True),
        ([(0, JOIN), (1, "dedupeWithinWatermark")], False),
        ([(0, JOIN)], False),
        ([(0, JOIN), (1, JOIN)], True),
    ],
)
def test_only_what_a_join_may_feed_has_a_watermark_that_may_lag(operators: list[tuple[int, str]], lags: bool) -> None:
    """Spark numbers operators from the sink to the sources."""
    asked = next((number for number, name in operators if name != JOIN), 0)
    assert may_stand_behind_join(asked, operators) is lags


EXPIRY = StructType((Field("expiresAtMicros", LongType()),))
encode = compile_row_encoder(EXPIRY)


@pytest.mark.parametrize(("watermark_ms", "expired"), [(999, False), (1000, True), (None, None)])
@pytest.mark.parametrize("prefix", [b"", b"\x00"], ids=["hdfs", "rocksdb"])
def test_an_expiry_is_told_with_the_watermark_that_its_version_left(
    prefix: bytes, watermark_ms: int | None, expired: bool | None
) -> None:
    view = shown({prefix + b"k": prefix + encode((1_000_000,))}, next_watermark_ms=watermark_ms)
    finder = ExpiringSet("default", EXPIRY, Expiry(), prefix)
    for selection in (EVERYTHING, Selection(include_expired=False)):
        found = finder.find(view, prefix + b"k", selection)
        assert found is not None
        is_hidden = expired is True and not selection.include_expired
        assert found.is_hidden is is_hidden
        assert json.loads(b"{" + found.members[:-1] + b"}") == {
            "found": not is_hidden,
            "expires_at": "1970-01-01T00:00:01.000000Z",
            "expired": expired,
        }
        assert finder.find(view, prefix + b"absent", selection) is None


FLOATS = StructType((Field("word", StringType()), Field("d", DoubleType())))
key = compile_row_encoder(FLOATS)


@pytest.mark.parametrize("prefix", [b"", b"\x00"], ids=["hdfs", "rocksdb"])
def test_negative_zero_is_found_as_it_is_kept_and_else_as_zero(prefix: bytes) -> None:
    """Spark 4.1 keeps both, Spark 4.3 keeps zero for both: a checkpoint does not say which wrote a key."""
    kept = [key(("both", 0.0)), key(("both", -0.0)), key(("negative", -0.0)), key(("zero", 0.0))]
    view = shown({prefix + row: prefix for row in kept})
    make = either_zero(partial(SeenSet, "default"), FLOATS)
    assert make is not None
    finder = make(prefix)

    def is_found(word: str, d: float) -> bool:
        return finder.find(view, prefix + key((word, d)), EVERYTHING) == FoundMembers(SEEN)

    assert all(is_found(word, d) for word, d in [("both", 0.0), ("both", -0.0), ("negative", -0.0), ("zero", 0.0)])
    assert is_found("zero", -0.0), "a row with it would be dropped by Spark 4.3"
    assert not is_found("negative", 0.0)
    assert not is_found("zero", 1.0)
    assert finder.key_row(prefix + kept[0]) == kept[0]
    assert finder.first_bytes(view) == b""


DECLARED_V1 = StructType((Field("name", StringType()), Field("timeoutTimestamp", IntType())))
STORED = StructType((Field("name", StringType()), Field("timeoutTimestamp", LongType())))
encode_group = compile_row_encoder(STORED)
print_value = compile_json_printer(STORED)


def printed(row: bytes) -> dict[str, object]:
    """The members of an answer."""
    said = with_timeout(STORED, lambda row: b'"value":%b,' % json.dumps(print_value(row)).encode())(row)
    members: dict[str, object] = json.loads(b"{" + said.removesuffix(b",") + b"}")
    return members


def test_the_timeout_of_format_1_is_the_long_that_spark_writes_not_the_int_that_it_declares() -> None:
    assert stored_state(DECLARED_V1) == STORED
    assert stored_state(STORED) == STORED
    other = StructType((Field("count", IntType()),))
    assert stored_state(other) == other
    assert [has_timeout(each) for each in (DECLARED_V1, STORED, other, StructType())] == [True, True, False, False]


@pytest.mark.parametrize(
    ("timeout_ms", "moment"),
    [(-1, None), (0, "1970-01-01T00:00:00.000000Z"), (1_709_251_200_000, "2024-03-01T00:00:00.000000Z")],
)
def test_a_timeout_is_a_moment_and_none_is_null(timeout_ms: int, moment: str | None) -> None:
    assert printed(encode_group(("a", timeout_ms))) == {
        "value": {"name": "a", "timeoutTimestamp": timeout_ms},
        "timeout_at": moment,
    }
