"""Typed keys and values: the columns of a store as Python values, plain or in models of their readers."""

from understudy.typed.binding import Binding, bind
from understudy.typed.errors import ModelError, SchemaError, UnfitValueError
from understudy.typed.intervals import CalendarInterval, YearMonthInterval

__all__ = [
    "Binding",
    "CalendarInterval",
    "ModelError",
    "SchemaError",
    "UnfitValueError",
    "YearMonthInterval",
    "bind",
]
