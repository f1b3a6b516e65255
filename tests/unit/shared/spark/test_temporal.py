"""ISO 8601 text of dates, times and intervals: lossless over Spark's whole range, never rounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.spark import temporal
from understudy_shared.spark.temporal import utc_text

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (temporal.timestamp_text(0), "1970-01-01T00:00:00.000000Z"),
        (temporal.timestamp_ntz_text(1_362_096_000_000_001), "2013-03-01T00:00:00.000001"),
        (temporal.timestamp_text(253_402_300_800_000_000), "+10000-01-01T00:00:00.000000Z"),
        (temporal.timestamp_text(-62_135_596_800_000_001), "0000-12-31T23:59:59.999999Z"),
        (temporal.timestamp_text(-(2**63)), "-290308-12-21T19:59:05.224192Z"),
        (temporal.date_text(-(2**31)), "-5877641-06-23"),
        (temporal.time_text(86_399_999_999_000), "23:59:59.999999"),
        (temporal.time_text(1), "00:00:00.000000001"),
        (temporal.year_month_text(14), "P1Y2M"),
        (temporal.year_month_text(-12), "-P1Y"),
        (temporal.day_time_text(-86_400_500_000), "-P1DT0.5S"),
        (temporal.day_time_text(93_784_500_000), "P1DT2H3M4.5S"),
        (temporal.calendar_interval_text((14, -3, -500_000)), "P14M-3DT-0.5S"),
    ],
)
def test_text_is_what_people_write(text: str, expected: str) -> None:
    assert text == expected


@given(INT32)
def test_every_date_reads_back(days: int) -> None:
    assert temporal.parse_date(temporal.date_text(days)) == days


@given(INT64)
def test_every_timestamp_reads_back(micros: int) -> None:
    assert temporal.parse_timestamp(temporal.timestamp_text(micros)) == micros
    assert temporal.parse_timestamp_ntz(temporal.timestamp_ntz_text(micros)) == micros


@given(st.integers(0, temporal.NANOS_PER_DAY - 1))
def test_every_time_reads_back(nanos: int) -> None:
    assert temporal.parse_time(temporal.time_text(nanos)) == nanos


@given(INT32, INT32, INT64)
def test_every_interval_reads_back(months: int, days: int, micros: int) -> None:
    assert temporal.parse_year_month(temporal.year_month_text(months)) == months
    assert temporal.parse_day_time(temporal.day_time_text(micros)) == micros
    parts = (months, days, micros)
    assert temporal.parse_calendar_interval(temporal.calendar_interval_text(parts)) == parts


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2013-03-01T00:00:00Z", 1_362_096_000_000_000),
        ("2013-03-01 00:00Z", 1_362_096_000_000_000),
        ("2013-03-01T05:30:00.5+05:30", 1_362_096_000_500_000),
        ("2013-02-28T20:00:00-0400", 1_362_096_000_000_000),
        ("2013-03-01T01:00:00.000001000+01", 1_362_096_000_000_001),
    ],
)
def test_a_timestamp_may_have_any_offset(text: str, micros: int) -> None:
    assert temporal.parse_timestamp(text) == micros


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2013-03-01T00:00:00", "no offset"),
        ("2013-03-01", "not an ISO"),
        ("2013-02-29T00:00:00Z", "no such day"),
        ("2013-00-10T00:00:00Z", "no such day"),
        ("2013-03-01T24:00:00Z", "no such time"),
        ("2013-03-01T00:00:00.0000001Z", "microseconds"),
        ("2013-03-01T00:00:00+19:00", "offset"),
        ("+999999-01-01T00:00:00Z", "range"),
        ("٢٠١٣-03-01T00:00:00Z", "not an ISO"),
    ],
)
def test_an_invalid_timestamp_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        temporal.parse_timestamp(text)


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1D", "P1S", "PT1D", "P1.5D", "PT0.0000001S", "P1Y"])
def test_what_is_no_day_time_interval_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it is not|holds|keeps"):
        temporal.parse_day_time(text)


@given(st.datetimes(min_value=datetime(1000, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 -- hypothesis adds the zone
def test_moments_are_printed_in_utc_with_microseconds(moment: datetime) -> None:
    moment_us = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert utc_text(moment_us) == moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.parametrize(
    ("moment_us", "text"),
    [
        (None, None),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
        (2**63 - 1, "+294247-01-10T04:00:54.775807Z"),
    ],
)
def test_every_moment_that_a_watermark_can_be_is_printed(moment_us: int | None, text: str | None) -> None:
    assert utc_text(moment_us) == text
