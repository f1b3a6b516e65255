"""Converts dates, times and intervals between Spark's integers and ISO 8601 text, without loss.

Pure. Spark's range exceeds four-digit years: others are written with a sign ("+12345-01-01", "-0044-03-15", and "0000"
is 1 BC), in the proleptic Gregorian calendar. Parsers raise `ValueError` with the reason, and never round.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache

MICROS_PER_DAY = 86_400_000_000
NANOS_PER_DAY = 86_400_000_000_000
_EPOCH_ORDINAL = 719_163  # date(1970, 1, 1).toordinal()
_MAX_DAYS = 2_932_896  # 9999-12-31
_MIN_DAYS = -719_162  # 0001-01-01

_DATE = r"(?P<year>[+-]\d{4,7}|\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?"
_ZONE = r"(?P<zone>Z|z|(?P<sign>[+-])(?P<zone_hour>\d\d)(?::?(?P<zone_minute>\d\d))?)?"
_date_pattern = re.compile(_DATE, re.ASCII)
_time_pattern = re.compile(_TIME, re.ASCII)
_timestamp_pattern = re.compile(f"{_DATE}[Tt ]{_TIME}{_ZONE}", re.ASCII)
_duration_pattern = re.compile(
    r"(?P<sign>[+-])?P(?:(?P<years>[+-]?\d{1,10})Y)?(?:(?P<months>[+-]?\d{1,10})M)?(?:(?P<weeks>[+-]?\d{1,10})W)?"
    r"(?:(?P<days>[+-]?\d{1,10})D)?(?:T(?:(?P<hours>[+-]?\d{1,19})H)?(?:(?P<minutes>[+-]?\d{1,19})M)?"
    r"(?:(?P<seconds>[+-]?\d{1,19})(?:\.(?P<fraction>\d{1,9}))?S)?)?",
    re.ASCII,
)


def date_text(days: int) -> str:
    if _MIN_DAYS <= days <= _MAX_DAYS:
        return date.fromordinal(days + _EPOCH_ORDINAL).isoformat()
    year, month, day = _civil_from_days(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def timestamp_text(micros: int) -> str:
    return f"{timestamp_ntz_text(micros)}Z"


def timestamp_ntz_text(micros: int) -> str:
    minute, rest = divmod(micros, 60_000_000)
    digits = str(rest + 100_000_000)
    return f"{_minute_text(minute)}{digits[1:3]}.{digits[3:]}"


def time_text(nanos: int) -> str:
    """Print a time as ISO 8601 with six digits of fraction, or nine when microseconds are not exact."""
    seconds, fraction = divmod(nanos, 1_000_000_000)
    minutes, second = divmod(seconds, 60)
    digits = f"{fraction:09}"
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}.{digits if fraction % 1000 else digits[:6]}"


def year_month_text(months: int) -> str:
    years, rest = divmod(abs(months), 12)
    text = (f"{years}Y" if years else "") + (f"{rest}M" if rest or not years else "")
    return f"{'-' if months < 0 else ''}P{text}"


def day_time_text(micros: int) -> str:
    days, rest = divmod(abs(micros), MICROS_PER_DAY)
    hours, rest = divmod(rest, 3_600_000_000)
    minutes, rest = divmod(rest, 60_000_000)
    clock = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    clock += _seconds_text(rest) if rest or not micros else ""
    return f"{'-' if micros < 0 else ''}P{f'{days}D' if days else ''}{f'T{clock}' if clock else ''}"


def calendar_interval_text(parts: tuple[int, int, int]) -> str:
    """Print months, days and microseconds, which Spark keeps apart: each with its own sign, without carrying over."""
    months, days, micros = parts
    return f"P{months}M{days}DT{'-' if micros < 0 else ''}{_seconds_text(abs(micros))}"


def parse_date(text: str) -> int:
    found = _date_pattern.fullmatch(text)
    if found is None:
        raise ValueError("it is not an ISO 8601 date")
    return _within(_days_of(found), 31)


@lru_cache(maxsize=4096)
def parse_timestamp(text: str) -> int:
    """Parse a timestamp with an offset, which is required: a reader's time zone must not decide the key.

    Cached, because window bounds are the same few timestamps for all keys.
    """
    found = _match_timestamp(text)
    zone, sign, hours, minutes = found.group("zone", "sign", "zone_hour", "zone_minute")
    if zone is None:
        raise ValueError("it has no offset from UTC")
    micros = _micros_of(found)
    if sign:
        offset_minutes = int(hours) * 60 + int(minutes or 0)
        if offset_minutes > 18 * 60:
            raise ValueError("its offset from UTC is too large")
        micros -= (-offset_minutes if sign == "-" else offset_minutes) * 60_000_000
    return _within(micros, 63)


def parse_timestamp_ntz(text: str) -> int:
    found = _match_timestamp(text)
    if found["zone"] is not None:
        raise ValueError("the column has no time zone, so its values have no offset")
    return _within(_micros_of(found), 63)


def parse_time(text: str) -> int:
    found = _time_pattern.fullmatch(text)
    if found is None:
        raise ValueError("it is not an ISO 8601 time")
    return _nanos_of(found)


def parse_year_month(text: str) -> int:
    months, days, micros = parse_calendar_interval(text)
    if days or micros:
        raise ValueError("the interval holds years and months only")
    return months


def parse_day_time(text: str) -> int:
    found = _match_duration(text)
    if found["years"] or found["months"]:
        raise ValueError("the interval holds days to seconds only")
    days, micros = _days_and_micros(found)
    sign = -1 if found["sign"] == "-" else 1
    return _within(sign * (days * MICROS_PER_DAY + micros), 63)


def parse_calendar_interval(text: str) -> tuple[int, int, int]:
    found = _match_duration(text)
    sign = -1 if found["sign"] == "-" else 1
    months = sign * (int(found["years"] or 0) * 12 + int(found["months"] or 0))
    days, micros = _days_and_micros(found)
    return _within(months, 31), _within(sign * days, 31), _within(sign * micros, 63)


@lru_cache(maxsize=4096)
def _minute_text(minute: int) -> str:
    """Print date and time up to the minute. Cached: a store's timestamps are mostly close, and the calendar is slow."""
    days, minute_of_day = divmod(minute, 1440)
    return f"{date_text(days)}T{minute_of_day // 60:02}:{minute_of_day % 60:02}:"


def _seconds_text(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    return f"{seconds}.{fraction:06}".rstrip("0") + "S" if fraction else f"{seconds}S"


def _match_timestamp(text: str) -> re.Match[str]:
    found = _timestamp_pattern.fullmatch(text)
    if found is None:
        raise ValueError("it is not an ISO 8601 timestamp")
    return found


def _match_duration(text: str) -> re.Match[str]:
    found = _duration_pattern.fullmatch(text)
    if found is None or text[-1] in "PT":
        raise ValueError("it is not an ISO 8601 duration")
    return found


def _days_and_micros(found: re.Match[str]) -> tuple[int, int]:
    days = int(found["weeks"] or 0) * 7 + int(found["days"] or 0)
    whole = found["seconds"] or "0"
    fraction = _nanos_fraction(found["fraction"])
    if fraction % 1000:
        raise ValueError("Spark keeps microseconds")
    micros = int(whole) * 1_000_000 + (-fraction if whole[0] == "-" else fraction) // 1000
    return days, micros + int(found["minutes"] or 0) * 60_000_000 + int(found["hours"] or 0) * 3_600_000_000


def _micros_of(found: re.Match[str]) -> int:
    nanos = _nanos_of(found)
    if nanos % 1000:
        raise ValueError("Spark keeps microseconds")
    return _days_of(found) * MICROS_PER_DAY + nanos // 1000


def _nanos_of(found: re.Match[str]) -> int:
    hour_text, minute_text, second_text, fraction = found.group("hour", "minute", "second", "fraction")
    hour, minute, second = int(hour_text), int(minute_text), int(second_text or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("there is no such time of day")
    return ((hour * 60 + minute) * 60 + second) * 1_000_000_000 + _nanos_fraction(fraction)


def _nanos_fraction(digits: str | None) -> int:
    return int(digits.ljust(9, "0")) if digits else 0


def _days_of(found: re.Match[str]) -> int:
    return _days_from_text(*found.group("year", "month", "day"))


@lru_cache(maxsize=1024)
def _days_from_text(year_text: str, month_text: str, day_text: str) -> int:
    year, month, day = int(year_text), int(month_text), int(day_text)
    days = _days_from_civil(year, month, day)
    if not 1 <= month <= 12 or _civil_from_days(days) != (year, month, day):
        raise ValueError("there is no such day")
    return days


def _within(value: int, bits: int) -> int:
    if not -(1 << bits) <= value < 1 << bits:
        raise ValueError("it is out of Spark's range")
    return value


def _days_from_civil(year: int, month: int, day: int) -> int:
    """Compute the days since the epoch by Howard Hinnant's algorithm
    (https://howardhinnant.github.io/date_algorithms.html): its years begin in March.
    """
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _civil_from_days(days: int) -> tuple[int, int, int]:
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1


def utc_text(moment_us: int | None) -> str | None:
    """Print microseconds since the epoch as text, None as None."""
    return None if moment_us is None else timestamp_text(moment_us)
