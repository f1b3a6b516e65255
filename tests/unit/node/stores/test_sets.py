"""A set says until when a key counts, and whether the watermark has passed that, compared as Spark does."""

from __future__ import annotations

import json
from functools import partial

import pytest
from tests.support.checkpoint.shown import shown

from understudy_node.stores.finder import Expiry, Found
from understudy_node.stores.operator_state import SEEN, ExpiringSet, SeenSet, either_zero
from understudy_shared.reads.bounds import EVERYTHING, Selection
from understudy_shared.spark.types import DoubleType, Field, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

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
        return finder.find(view, prefix + key((word, d)), EVERYTHING) == Found(SEEN)

    assert all(is_found(word, d) for word, d in [("both", 0.0), ("both", -0.0), ("negative", -0.0), ("zero", 0.0)])
    assert is_found("zero", -0.0), "a row with it would be dropped by Spark 4.3"
    assert not is_found("negative", 0.0)
    assert not is_found("zero", 1.0)
    assert finder.key_row(prefix + kept[0]) == kept[0]
    assert finder.first_bytes(view) == b""
