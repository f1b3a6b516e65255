"""A set says until when a key counts, and whether the watermark has passed that, compared as Spark does."""

from __future__ import annotations

import json

import pytest
from tests.support.checkpoint.shown import shown

from understudy_node.stores.expiry import Expiry
from understudy_node.stores.sets import ExpiringSet
from understudy_shared.errors import CorruptFileError
from understudy_shared.selection import EVERYTHING, Selection
from understudy_shared.spark.types import Field, LongType, StructType
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


def test_a_key_without_an_expiry_is_damage_and_no_answer() -> None:
    view = shown({b"k": encode((None,)), b"short": b"x"}, next_watermark_ms=0)
    finder = ExpiringSet("default", EXPIRY, Expiry(), b"")
    with pytest.raises(CorruptFileError, match="no expiry"):
        finder.find(view, b"k", EVERYTHING)
    with pytest.raises(CorruptFileError):
        finder.find(view, b"short", EVERYTHING)
