"""Typed keys and values: the columns of a store as Python values, plain or in models of their readers."""

from understudy.typed.binding import ModelBinding, bind
from understudy.typed.python_types import CalendarInterval, ModelError, SchemaError, UnfitValueError, YearMonthInterval

__all__ = [
    "CalendarInterval",
    "ModelBinding",
    "ModelError",
    "SchemaError",
    "UnfitValueError",
    "YearMonthInterval",
    "bind",
]
