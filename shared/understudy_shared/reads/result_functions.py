"""The functions whose result follows exactly from what Spark stores, by the names that alias files and messages use."""

from __future__ import annotations

from typing import Literal, get_args

ResultFunction = Literal[
    "count",
    "sum",
    "try_sum",
    "avg",
    "min",
    "max",
    "first",
    "last",
    "min_by",
    "max_by",
    "bit_and",
    "bit_or",
    "bit_xor",
    "product",
    "var_pop",
    "var_samp",
    "stddev_pop",
    "stddev_samp",
    "skewness",
    "kurtosis",
    "covar_pop",
    "covar_samp",
    "corr",
    "corr_4_2",
    "regr_sxx",
    "regr_sxy",
    "regr_r2",
    "regr_slope",
    "regr_intercept",
    "regr_intercept_4_2",
    "approx_count_distinct",
    "collect_list",
    "collect_set",
]

RESULT_FUNCTIONS: frozenset[str] = frozenset(get_args(ResultFunction))
