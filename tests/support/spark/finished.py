"""A query of every aggregate whose result follows from what Spark stores, over groups that are awkward for one of them.

It imports PySpark alone, so that any release of Spark can run it.
"""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

FINISHED_SCHEMA = (
    "k string, i int, x double, y double, b boolean, s string, f float, small decimal(6,2), mid decimal(10,2), "
    "big decimal(25,3), pair struct<a: int, b: string>, raw binary"
)

AGGREGATES = {
    "n": "count(*)",
    "n_x": "count(x)",
    "n_if": "count_if(b)",
    "n_filtered": "count(*) FILTER (WHERE i > 3)",
    "sum_i": "sum(i)",
    "sum_x": "sum(x)",
    "sum_small": "sum(small)",
    "sum_big": "sum(big)",
    "try_sum_i": "try_sum(i)",
    "try_sum_x": "try_sum(x)",
    "try_sum_small": "try_sum(small)",
    "try_sum_mid": "try_sum(mid)",
    "avg_i": "avg(i)",
    "avg_mid": "avg(mid)",
    "try_avg_i": "try_avg(i)",
    "try_avg_big": "try_avg(big)",
    "min_f": "min(f)",
    "max_pair": "max(pair)",
    "all_b": "every(b)",
    "any_b": "any(b)",
    "and_b": "bool_and(b)",
    "or_b": "bool_or(b)",
    "first_s": "first(s)",
    "first_known": "first(x, true)",
    "last_pair": "last(pair)",
    "last_known": "last(s, true)",
    "some_i": "any_value(i, true)",
    "s_of_max": "max_by(s, x)",
    "x_of_min": "min_by(x, i)",
    "bits_and": "bit_and(i)",
    "bits_or": "bit_or(i)",
    "bits_xor": "bit_xor(i)",
    "var_pop": "var_pop(x)",
    "var_samp": "var_samp(x)",
    "variance_i": "variance(i)",
    "stddev_pop": "stddev_pop(x)",
    "stddev_samp": "stddev(x)",
    "skewness": "skewness(x)",
    "kurtosis": "kurtosis(x)",
    "covar_pop": "covar_pop(x, y)",
    "covar_samp": "covar_samp(x, y)",
    "corr": "corr(x, y)",
    "regr_count": "regr_count(y, x)",
    "regr_avgx": "regr_avgx(y, x)",
    "regr_avgy": "regr_avgy(y, x)",
    "regr_sxx": "regr_sxx(y, x)",
    "regr_syy": "regr_syy(y, x)",
    "regr_sxy": "regr_sxy(y, x)",
    "regr_r2": "regr_r2(y, x)",
    "regr_slope": "regr_slope(y, x)",
    "regr_intercept": "regr_intercept(y, x)",
    "distinct": "approx_count_distinct(s)",
    "distinct_rough": "approx_count_distinct(x, 0.3)",
    "list_i": "collect_list(i)",
    "list_pair": "collect_list(pair)",
    "array_s": "array_agg(s)",
    "set_s": "collect_set(s)",
    "set_x": "collect_set(x)",
    "set_raw": "collect_set(raw)",
    "list_raw": "collect_list(raw)",
    "list_wide": "collect_list(struct(pair, s, raw, big))",
}
"""Result columns, with what makes each in SQL."""

SETS = frozenset({"set_s", "set_x", "set_raw"})
"""Results without an order."""


def build_finished(source: DataFrame) -> DataFrame:
    columns = [F.expr(text).alias(name) for name, text in AGGREGATES.items()]
    return source.groupBy("k").agg(*columns, F.product("y").alias("product"))


def finished_batches() -> list[list[dict[str, object]]]:
    """Two batches; a key is called by what is awkward of it."""
    nothing: dict[str, object] = dict.fromkeys(
        ("k", "i", "x", "y", "b", "s", "f", "small", "mid", "big", "pair", "raw"),
    )

    def row(key: str | None, x: float | None, y: float | None = None, at: int = 0) -> dict[str, object]:
        if x is None:
            return {**nothing, "k": key}
        return {
            "k": key,
            "i": at * 7 - 3,
            "x": x,
            "y": y if y is not None else x / 3,
            "b": at % 2 == 0,
            "s": f"word-{at}",
            "f": at * 0.1,
            "small": Decimal(at * 13).scaleb(-2),
            "mid": Decimal(at * 100_003 - 7).scaleb(-2),
            "big": Decimal(10**20 + at).scaleb(-3),
            "pair": {"a": at, "b": None if at == 1 else f"of {at}"},
            "raw": bytes(range(250, 250 + at % 5)) if at % 3 else b"",
        }

    nan, inf = float("nan"), float("inf")
    groups: dict[str | None, list[tuple[float | None, float | None]]] = {
        None: [(1.5, 2.0), (2.5, 7.0), (-4.0, 0.1)],
        "one row": [(0.1, 0.2)],
        "one value": [(None, None), (0.1, 0.2), (None, None)],
        "nulls": [(None, None), (None, None)],
        "some nulls": [(1.0, 3.0), (None, None), (0.3, -3.0), (None, None), (17.25, 0.7)],
        "nan": [(1.0, 2.0), (nan, 2.0), (3.0, 5.0)],
        "infinite": [(1.0, 2.0), (inf, 2.0), (-inf, 5.0)],
        "negative zero": [(-0.0, -0.0), (-0.0, 0.0)],
        "negative zeros and one": [(-0.0, -1.0), (0.0, 1.0), (1.0, -0.0)],
        "constant": [(0.1, 2.0), (0.1, 2.0), (0.1, 2.0), (0.1, 2.0)],
        "constant beside nan": [(0.1, 2.0), (0.1, nan), (0.1, 3.0)],
        "constant beside infinity": [(inf, 2.0), (1.0, 2.0), (-inf, 2.0)],
        "constant y": [(0.1, 2.0), (0.2, 2.0), (0.7, 2.0)],
        "huge": [(1e308, 1e308), (-1e308, 1e308), (1e308, -1e308)],
        "tiny": [(1e-160, 2e-160), (3e-160, 1e-160), (5e-160, 7e-160), (1e-162, 1e-163)],
        "two": [(1.1, -2.2), (3.3, 0.7)],
        "many": [(((at * 7919) % 1013) / 97.0, ((at * 104_729) % 997) / 89.0) for at in range(160)],
    }
    rows = [row(key, x, y, at) for key, values in groups.items() for at, (x, y) in enumerate(values)]
    return [rows[0::2], rows[1::2]]
