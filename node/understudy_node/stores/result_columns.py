"""What a result column is made of, and what makes it: the words that the files of results share (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.spark.types import SparkType

Printed = Mapping[str, object]
"""A value as an answer prints it, by column."""

Compute = Callable[[Printed], object]
"""From a printed value to one printed result."""

Made = tuple[SparkType, Compute]
"""The type of a result, and what computes it."""


class ResultError(UnderstudyError):
    """A result that the stored buffers do not give; `where` is its name."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of one result: names and types of their value columns. `declared` is the type that was said of it."""

    result: str
    columns: tuple[str, ...]
    types: tuple[SparkType, ...]
    declared: SparkType | None


Make = Callable[[Buffers], Made | None]
"""From the buffers of a function to its result; None when the buffers are not those of the function."""


def first_buffer(printed_column: str) -> Compute:
    """The result is a buffer, as it is stored."""
    return lambda printed: printed[printed_column]


def number(printed: object) -> float | None:
    """A double as it was stored: what is not finite is printed as text."""
    return None if printed is None else float(cast("float | str", printed))


def printed_number(value: float) -> float | str:
    """A double as answers print it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
