"""Writes `docs/results.md`, the list of aggregates for which Understudy computes results, and of those for which it
does not: `python -m tools.results_document`. A test in tests/contract/ holds the file to this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from understudy_node.stores.results import FUNCTIONS
from understudy_shared.base.words import ResultFunction

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "results.md"

SQL: Mapping[ResultFunction, tuple[str, ...]] = {
    "count": ("count", "count_if", "regr_count"),
    "sum": ("sum", "try_sum of floating point and of decimals above 8 digits"),
    "try_sum": ("try_sum of whole numbers and of decimals up to 8 digits",),
    "avg": ("avg", "mean", "try_avg", "regr_avgx", "regr_avgy"),
    "min": ("min", "every", "bool_and"),
    "max": ("max", "any", "some", "bool_or"),
    "first": ("first", "first_value", "any_value"),
    "last": ("last", "last_value"),
    "min_by": ("min_by",),
    "max_by": ("max_by",),
    "bit_and": ("bit_and",),
    "bit_or": ("bit_or",),
    "bit_xor": ("bit_xor",),
    "product": ("product",),
    "var_pop": ("var_pop",),
    "var_samp": ("var_samp", "variance"),
    "stddev_pop": ("stddev_pop",),
    "stddev_samp": ("stddev_samp", "stddev", "std"),
    "skewness": ("skewness",),
    "kurtosis": ("kurtosis",),
    "covar_pop": ("covar_pop",),
    "covar_samp": ("covar_samp",),
    "corr": ("corr",),
    "corr_4_2": ("corr up to Spark 4.2",),
    "regr_sxx": ("regr_sxx", "regr_syy"),
    "regr_sxy": ("regr_sxy",),
    "regr_r2": ("regr_r2",),
    "regr_slope": ("regr_slope",),
    "regr_intercept": ("regr_intercept",),
    "regr_intercept_4_2": ("regr_intercept up to Spark 4.2",),
    "approx_count_distinct": ("approx_count_distinct",),
    "collect_list": ("collect_list", "array_agg"),
    "collect_set": ("collect_set",),
}
"""Functions of Spark SQL whose result each function computes."""

_OWN_FORM = "the state is in a binary form of Spark"

NOT_FINISHED: Mapping[str, str] = {
    "an expression over aggregates, `sum(x) / count(*)`": "only the plan has the expression",
    "`percentile`, `median`, `mode`, `percentile_approx`": "the state does not say which percentile is wanted",
    "`listagg`, `string_agg`": "the state has no delimiter and no order",
    "`hll_sketch_agg`, `kll_sketch_agg_*`, `theta_sketch_agg`": "the result is the sketch, which `value` has",
    "`histogram_numeric`, `count_min_sketch`, `approx_top_k`, `bitmap_*_agg`": _OWN_FORM,
    "`max_by`, `min_by` with a number of values": _OWN_FORM,
    "sums and averages of intervals": "not yet",
    "aggregates of the user (`Aggregator`, UDAF)": "the state is what the user's code wrote",
    "with `spark.sql.legacy.statisticalAggregate`": "a variance of one row is NaN there, from the same state",
}
"""Aggregates that have no `result`, each with the reason."""

_BEGIN = """\
# Names and results

<!-- `python -m tools.results_document` writes this file. -->

Spark stores aggregation buffers, with generated names: an average is its sum and its count. `value` has them. With
[`announce`](pipeline.md) in the job, or a TOML file (`--aliases`), `result` has exactly what the query outputs:

```toml
[op0]                                  # a store by its default name, as `GET /v1/stores` shows it
name = "flights"                       # everything may be left out
key = ["tailnum"]                      # a name for each column, in order
value = ["n", "delay_sum", "delay_count", "last"]

[op0.result]                           # output column = function of value columns, by name or index
flights = { function = "count", buffers = ["n"] }
delay = { function = "avg", buffers = ["delay_sum", "delay_count"] }
last_seen = { function = "max", buffers = [3], type = "timestamp" }
```

The file wins over the announcement. What of an announcement does not fit is left out, with a `names left out` event in
`/admin/v1/lag`. `type` is needed for lists and sets (`array<...>`), for sums of decimals of up to 8 digits, and for
averages of decimals of up to 11 digits.

## Functions

In brackets: other names in Spark SQL.

| function | its buffers |
|---|---|
"""

_RULES = """
Rules of Spark:

- Of one row, `*_samp` and `corr` are null; so is a division by zero (the correlation with a constant).
- Where one column is constant and the other has NaN or an infinity, `corr` is null and `corr_4_2` NaN. An announcement
  names the functions of the query's Spark.
- A set has the order in which it is stored; Spark may print another.
- `approx_count_distinct` is computed for 4 to 15 bits of precision (a relative deviation down to 0.7 %).

## Without a result

`value` has their buffers. The announcement leaves these out, and an alias file that names one is refused.

| aggregate | why |
|---|---|
"""


def document() -> str:
    """Render the whole file."""
    return f"{_BEGIN}{''.join(_finished())}{_RULES}{''.join(_not_finished())}"


def _finished() -> Iterator[str]:
    by_buffers: dict[str, list[str]] = {}
    for function, (_, takes) in FUNCTIONS.items():
        by_buffers.setdefault(takes, []).append(_named(function))
    for takes, functions in by_buffers.items():
        yield f"| {', '.join(functions)} | {takes.partition(' has ')[2].removeprefix('the buffers ')} |\n"


def _named(function: ResultFunction) -> str:
    """Render a function, and those of Spark SQL with another name whose result it computes."""
    others = ", ".join(_code(name) for name in SQL[function] if name != function)
    return f"`{function}`" + (f" ({others})" if others else "")


def _not_finished() -> Iterator[str]:
    for name, reason in NOT_FINISHED.items():
        yield f"| {name} | {reason} |\n"


def _code(name: str) -> str:
    """Render the first word of a name as code; an explanation may follow it."""
    word, _, rest = name.partition(" ")
    return f"`{word}` {rest}".rstrip()


if __name__ == "__main__":
    DOCUMENT.write_text(document())
