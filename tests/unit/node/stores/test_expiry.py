"""An expiry is told as far as the state tells it, compared as Spark does; what is not known is null."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint.shown import shown

from understudy_node.stores.finder import Expiry, may_stand_behind_join

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
