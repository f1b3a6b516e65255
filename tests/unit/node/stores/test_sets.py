"""A set says until when a key counts, and whether the watermark has passed that, compared as Spark does."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint.shown import shown

from understudy_node.stores.sets import ExpiringSet, is_expired
from understudy_shared.errors import CorruptFileError
from understudy_shared.spark.types import Field, LongType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

EXPIRY = StructType((Field("expiresAtMicros", LongType()),))
encode = compile_row_encoder(EXPIRY)


@given(expires_us=st.integers(-(2**50), 2**50), watermark_ms=st.integers(-(2**40), 2**40))
def test_a_key_is_expired_from_the_very_moment_that_the_watermark_reaches(expires_us: int, watermark_ms: int) -> None:
    assert is_expired(expires_us, watermark_ms) is (watermark_ms * 1000 >= expires_us)
    assert is_expired(watermark_ms * 1000, watermark_ms) is True
    assert is_expired(watermark_ms * 1000 + 1, watermark_ms) is False
    assert is_expired(expires_us, None) is None


@pytest.mark.parametrize(("watermark_ms", "expired"), [(999, False), (1000, True), (None, None)])
@pytest.mark.parametrize("prefix", [b"", b"\x00"], ids=["hdfs", "rocksdb"])
def test_an_expiry_is_told_with_the_watermark_that_its_version_left(
    prefix: bytes, watermark_ms: int | None, expired: bool | None
) -> None:
    view = shown({prefix + b"k": prefix + encode((1_000_000,))}, next_watermark_ms=watermark_ms)
    finder = ExpiringSet("default", EXPIRY, prefix)
    found = finder.find(view, prefix + b"k")
    assert found is not None
    assert json.loads(b"{" + found[:-1] + b"}") == {
        "found": True,
        "expires_at": "1970-01-01T00:00:01.000000Z",
        "expired": expired,
    }
    assert finder.find(view, prefix + b"absent") is None


def test_a_key_without_an_expiry_is_damage_and_no_answer() -> None:
    view = shown({b"k": encode((None,)), b"short": b"x"}, next_watermark_ms=0)
    finder = ExpiringSet("default", EXPIRY, b"")
    with pytest.raises(CorruptFileError, match="no expiry"):
        finder.find(view, b"k")
    with pytest.raises(CorruptFileError):
        finder.find(view, b"short")
