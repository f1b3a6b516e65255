"""The types that the files of results share: buffers, and functions that compute results of them (pure)."""

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
"""A function from a printed value to one printed result."""

Made = tuple[SparkType, Compute]
"""The type of a result, and the function that computes it."""


class ResultError(UnderstudyError):
    """The stored buffers do not give this result; `where` is its name."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of one result: names and types of their value columns. `declared` is its announced type."""

    result: str
    columns: tuple[str, ...]
    types: tuple[SparkType, ...]
    declared: SparkType | None


Make = Callable[[Buffers], Made | None]
"""A function from the buffers of a result to its type and computation; None when they are not those of the function."""


def first_buffer(printed_column: str) -> Compute:
    """Return a function for a result that is a buffer, as it is stored."""
    return lambda printed: printed[printed_column]


def number(printed: object) -> float | None:
    """Parse a double as it was stored: non-finite values are printed as text."""
    return None if printed is None else float(cast("float | str", printed))


def printed_number(value: float) -> float | str:
    """Print a double as answers do."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
