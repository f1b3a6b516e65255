"""Which stores have windows, what the key without the window is, and what of it a grant by prefix may name."""

from __future__ import annotations

import pytest

from understudy_shared.base.words import StoreKind
from understudy_shared.questions.lookup.windows import window_key
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, LongType, SparkType, StringType, StructType, TimestampType

SPAN = StructType((Field("start", TimestampType()), Field("end", TimestampType())))


def codec_of(**columns: SparkType) -> KeyCodec:
    return KeyCodec(StructType(tuple(Field(name, each) for name, each in columns.items())))


def test_the_key_of_a_window_of_time_is_the_others_columns() -> None:
    key = window_key(codec_of(site=StringType(), window=SPAN, n=LongType()), StoreKind.VALUE)
    assert (key.at, key.codec.names) == (1, ("site", "n"))
    assert key.without_window(("a", (1, 2), 7)) == ("a", 7)
    assert key.leading({"site": "a", "n": 7}) == {"site": "a"}, "a grant names no column behind the window"
    first = window_key(codec_of(window=SPAN, site=StringType()), StoreKind.VALUE)
    assert first.leading({"site": "a"}) == {}
    alone = window_key(codec_of(window=SPAN), StoreKind.VALUE)
    assert (alone.codec.parse_json([]), alone.codec.names) == ((), ())


def test_the_key_of_sessions_is_that_of_their_store() -> None:
    codec = codec_of(visitor=StringType())
    key = window_key(codec, StoreKind.SESSION)
    assert (key.at, key.codec) == (None, codec)
    assert key.leading({"visitor": "a"}) == {"visitor": "a"}


@pytest.mark.parametrize(
    ("kind", "codec", "says"),
    [
        pytest.param(StoreKind.VALUE, codec_of(site=StringType()), "no window", id="no window"),
        pytest.param(StoreKind.VALUE, codec_of(window=SPAN, other=SPAN), "several windows", id="two windows"),
        pytest.param(StoreKind.SET, codec_of(window=SPAN), "no window", id="a set"),
    ],
)
def test_a_store_without_windows_says_so(kind: StoreKind, codec: KeyCodec, says: str) -> None:
    with pytest.raises(BadBoundError, match=says):
        window_key(codec, kind)
