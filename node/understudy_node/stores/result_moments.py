"""Variance, skewness, covariance and other functions of central moments (pure; Spark's `CentralMomentAgg`,
`Covariance`, `PearsonCorrelation`).

The order of the operations is that of Spark, because each of them rounds. Where Spark's own expression divides by zero
the result is null: with ANSI rules the query fails before it puts such a row out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from understudy_node.stores.result_columns import Buffers, Made, Printed, number, printed_number
from understudy_shared.spark.types import DoubleType

Formula = Callable[..., float | None]
"""A function from the doubles of the buffers to the result. It is called for at least one row."""


def variance_pop(n: float, avg: float, m2: float) -> float | None:
    return _divided(m2, n)


def variance_samp(n: float, avg: float, m2: float) -> float | None:
    return _divided(m2, n - 1.0)


def stddev_pop(n: float, avg: float, m2: float) -> float | None:
    return _root(_divided(m2, n))


def stddev_samp(n: float, avg: float, m2: float) -> float | None:
    return _root(_divided(m2, n - 1.0))


def skewness(n: float, avg: float, m2: float, m3: float) -> float | None:
    return None if m2 == 0.0 else _divided(_sqrt(n) * m3, _sqrt(m2 * m2 * m2))


def kurtosis(n: float, avg: float, m2: float, m3: float, m4: float) -> float | None:
    ratio = None if m2 == 0.0 else _divided(n * m4, m2 * m2)
    return None if ratio is None else ratio - 3.0


def covariance_pop(n: float, x_avg: float, y_avg: float, ck: float) -> float | None:
    return _divided(ck, n)


def covariance_samp(n: float, x_avg: float, y_avg: float, ck: float) -> float | None:
    return _divided(ck, n - 1.0)


def correlation(*stored: float) -> float | None:
    """Compute the correlation as Spark does from 4.3 on: nothing correlates with a constant, not even NaN."""
    x_mk, y_mk = stored[4:]
    return None if x_mk == 0.0 or y_mk == 0.0 else correlation_4_2(*stored)


def correlation_4_2(*stored: float) -> float | None:
    """Compute the correlation as Spark does up to 4.2."""
    n, _x_avg, _y_avg, ck, x_mk, y_mk = stored
    return None if n == 1.0 else _divided(ck, _sqrt(x_mk * y_mk))


def regression_sxx(n: float, avg: float, m2: float) -> float | None:
    return m2


def regression_sxy(n: float, x_avg: float, y_avg: float, ck: float) -> float | None:
    return ck


def regression_r2(*stored: float) -> float | None:
    _n, _x_avg, _y_avg, ck, x_mk, y_mk = stored
    if y_mk == 0.0:
        return None
    if x_mk == 0.0:
        return 1.0
    root = _divided(ck, _sqrt(x_mk * y_mk))
    return None if root is None else root * root


def regression_slope(*stored: float) -> float | None:
    """Compute the slope by the buffers of a covariance, and those of the variance of x behind them."""
    _n, _x_avg, _y_avg, ck, _n_x, _avg, m2 = stored
    return _divided(ck, m2)


def regression_intercept(*stored: float) -> float | None:
    x_avg, y_avg, slope = stored[1], stored[2], regression_slope(*stored)
    return None if slope is None else y_avg - slope * x_avg


def regression_intercept_4_2(n: float, x_avg: float, y_avg: float, *others: float) -> float | None:
    """Compute the intercept as Spark does up to 4.2: it merges the buffers with empty ones first.

    That rounds the averages. No other result depends on them.
    """
    return regression_intercept(n, 0.0 + x_avg / n * n, 0.0 + y_avg / n * n, *others)


def moments_of(formula: Formula, count: int) -> Callable[[Buffers], Made | None]:
    """Make the result of a formula over so many doubles, the first of which is the number of rows."""

    def make(buffers: Buffers) -> Made | None:
        if buffers.types != (DoubleType(),) * count:
            return None

        def compute(printed: Printed) -> object:
            stored = [number(printed[column]) for column in buffers.columns]
            # Spark's own buffers are never null; a column that an alias file names for one may be.
            result = None if stored[0] == 0.0 or None in stored else formula(*stored)
            return None if result is None else printed_number(result)

        return DoubleType(), compute

    return make


def _divided(dividend: float, divisor: float) -> float | None:
    """Divide; null by zero, as Spark's `/`. Python's raises for it, and overflows to infinity as Java's."""
    return None if divisor == 0.0 else dividend / divisor


def _sqrt(value: float) -> float:
    """Return the root; NaN for a negative number, as in Java; Python's raises."""
    return math.nan if value < 0.0 else math.sqrt(value)


def _root(value: float | None) -> float | None:
    return None if value is None else _sqrt(value)
