"""Writes `docs/results.md`, the list of aggregates for which Understudy computes results, and of those for which it
does not: `python -m tools.results_document`. A test in tests/contract/ holds the file to this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from understudy_node.stores.results import FUNCTIONS
from understudy_shared.reads.result_functions import ResultFunction

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
    "product": ("product (DataFrame API)",),
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

_OWN_FORM = "the state is in a binary form of Spark's own"

NOT_FINISHED: Mapping[str, str] = {
    "an expression over aggregates, `sum(x) / count(*)`": "the state has the aggregates; what is made of them has only "
    "the plan",
    "`percentile`, `median`, `mode`": "the state has every value with its count, not which percentile is wanted",
    "`percentile_approx`": "the state is a digest, and does not say which percentile is wanted",
    "`listagg`, `string_agg`": "the state has no delimiter and no order",
    "`hll_sketch_agg`, `kll_sketch_agg_*`, `theta_sketch_agg`": "what the query puts out is the sketch, which `value` "
    "has; another function makes its estimate",
    "`histogram_numeric`, `count_min_sketch`, `approx_top_k`, `bitmap_*_agg`": _OWN_FORM,
    "`max_by`, `min_by` with a number of values": _OWN_FORM,
    "sums and averages of intervals": "not yet",
    "aggregates of the user (`Aggregator`, UDAF)": "the state is what the user's code wrote",
    "with `spark.sql.legacy.statisticalAggregate`": "a variance of one row is NaN there and null by default; the state "
    "is the same",
}
"""Aggregates that have no `result`, each with the reason."""

_BEGIN = """\
# Finished values

`python -m tools.results_document` writes this file.

Spark stores the buffers of an aggregate; `result` is what the query puts out, where that follows exactly from them
([names and results](api.md#names-and-results)). `tests/integration/node/stores/test_finished_values.py` compares every
function below with the rows that Spark itself put out.

| function | of Spark SQL | its buffers |
|---|---|---|
"""

_RULES = """
Rules that are Spark's own:

- A variance, covariance or correlation of one row has nothing to divide by: `*_samp` and `corr` are null.
- Where the expression divides by zero (the correlation with a constant) `result` is null, as Spark says without ANSI
  rules.
- Where one column is constant and the other has NaN or an infinity, a correlation is null from Spark 4.3 on, and NaN up
  to 4.2: `corr` and `corr_4_2`. An intercept may differ in its last digit between the two: `regr_intercept` and
  `regr_intercept_4_2`. The announcement names those of the query's Spark.
- `collect_set` over binary is printed as binary, though Spark stores each element as an array of numbers.
- A set has the order in which it is stored. Spark promises none, and may print another.
- `approx_count_distinct` is the estimate of HyperLogLog++ with the tables of its paper, for 4 to 15 bits of precision
  (a relative deviation down to 0.7 %).

## Without a result

`value` has their buffers. A result is never guessed: the announcement leaves these out, and an alias file that names
one is refused.

| aggregate | why |
|---|---|
"""


def document() -> str:
    """Render the whole file."""
    return f"{_BEGIN}{''.join(_finished())}{_RULES}{''.join(_not_finished())}"


def _finished() -> Iterator[str]:
    for function, (_, takes) in FUNCTIONS.items():
        names = ", ".join(_code(name) for name in SQL[function])
        yield f"| `{function}` | {names} | {takes} |\n"


def _not_finished() -> Iterator[str]:
    for name, reason in NOT_FINISHED.items():
        yield f"| {name} | {reason} |\n"


def _code(name: str) -> str:
    """Render the first word of a name as code; an explanation may follow it."""
    word, _, rest = name.partition(" ")
    return f"`{word}` {rest}".rstrip()


if __name__ == "__main__":
    DOCUMENT.write_text(document())
