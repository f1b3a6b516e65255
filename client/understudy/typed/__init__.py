"""Typed keys and values: the columns of a store as Python values, plain or in models of their readers."""

from understudy.typed.binding import Binding, bind
from understudy.typed.python_types import CalendarInterval, ModelError, SchemaError, UnfitValueError, YearMonthInterval

__all__ = [
    "Binding",
    "CalendarInterval",
    "ModelError",
    "SchemaError",
    "UnfitValueError",
    "YearMonthInterval",
    "bind",
]
