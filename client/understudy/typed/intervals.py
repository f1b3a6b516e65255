"""The intervals of Spark that Python has no type for (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_shared.spark import temporal


@dataclass(frozen=True, slots=True, order=True)
class YearMonthInterval:
    """An interval of whole months, as Spark's `INTERVAL YEAR TO MONTH`."""

    months: int

    def __str__(self) -> str:
        return temporal.year_month_text(self.months)


@dataclass(frozen=True, slots=True)
class CalendarInterval:
    """Spark's `CalendarInterval`: months, days and microseconds, none of which is carried over into another."""

    months: int
    days: int
    microseconds: int

    def __str__(self) -> str:
        return temporal.calendar_interval_text((self.months, self.days, self.microseconds))
