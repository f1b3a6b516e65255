"""Moments are printed in one form; clocks that are moved by hand move like real ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.spark.temporal import utc_text


@given(st.datetimes(min_value=datetime(1000, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 -- hypothesis adds the zone
def test_moments_are_printed_in_utc_with_microseconds(moment: datetime) -> None:
    moment_us = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert utc_text(moment_us) == moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.parametrize(
    ("moment_us", "text"),
    [
        (None, None),
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
        (2**63 - 1, "+294247-01-10T04:00:54.775807Z"),
    ],
)
def test_every_moment_that_a_watermark_can_be_is_printed(moment_us: int | None, text: str | None) -> None:
    assert utc_text(moment_us) == text
