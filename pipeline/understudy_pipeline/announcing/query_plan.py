"""Derives store names and result columns from a query's plan: which operator and which buffers make which output.

Pure: `plan_reader` describes a plan with the classes below, and `announced_stores` makes an announcement of it. Rule:
nothing is guessed. An aggregate is left out if it is unknown, if its buffers are not the expected ones, or if the
optimiser changed its type. Its stored bytes can still be looked up.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from understudy_shared.base.words import ResultFunction
from understudy_shared.bus.messages import MAX_COLUMNS, MAX_TYPE_CHARACTERS, AnnouncedStore, ResultColumn
from understudy_shared.spark.types import unique_names

log = logging.getLogger(__name__)

MAX_NAME_CHARS = 256
"""Longest name in a message. Spark makes longer names for long expressions without an alias."""

ARRAY_JSON = '{"type":"array"'
"""The beginning of an array's type. The plan writes it as JSON, and all other types by name."""


@dataclass(frozen=True, slots=True)
class PlanColumn:
    """A column of a physical plan. `id` is Spark's expression id."""

    id: int
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Function:
    """An aggregate function of a physical plan. `kind` is its class, `buffers` its number of buffer columns."""

    kind: str
    result_id: int
    buffers: int


@dataclass(frozen=True, slots=True)
class StatefulAggregate:
    """An aggregation as executed. `saved` are the columns that go to the state store: the keys and all buffers.

    `state_format` is the version of the row layout: from 2 on, the keys are not repeated next to the buffers. With a
    `session` window whole rows are, and `keys` are without it.
    """

    operator_id: int
    state_format: int
    keys: tuple[PlanColumn, ...]
    saved: tuple[PlanColumn, ...]
    functions: tuple[Function, ...]
    session: PlanColumn | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """An output column of an aggregation or a projection, as the user named it.

    It shows the column `source` (its own id, or the renamed column's), or the grouping expression at index
    `grouping`, or the result of an aggregate function: `result_ids` has its id, then those of equal functions.
    """

    id: int
    name: str
    type: str
    source: int | None = None
    grouping: int | None = None
    result_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenAggregate:
    """An aggregation as the user wrote it. `alias` is the alias of the DataFrame, `projections` are those between alias
    and aggregation, lowest first. `result_ids` has the ids of all its functions, also inside larger expressions.
    """

    grouping_types: tuple[str, ...]
    outputs: tuple[Output, ...]
    result_ids: frozenset[int]
    projections: tuple[tuple[Output, ...], ...] = ()
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class StatefulJoin:
    """A stream-stream join as executed: the names of the equal columns, None for any other expression."""

    operator_id: int
    left: tuple[str | None, ...]
    right: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The stateful aggregations of a query, as executed and as written, and its joins."""

    executed: tuple[StatefulAggregate, ...]
    written: tuple[WrittenAggregate, ...]
    joins: tuple[StatefulJoin, ...] = ()


def announced_stores(plan: QueryPlan, names: Mapping[int, str]) -> list[AnnouncedStore]:
    """Return the stores that the plan or `names` (by operator id) describes, sorted by operator id."""
    written = {operator.operator_id: _as_written(operator, plan.written) for operator in plan.executed}
    chosen = _store_names(written, names)
    stores = [
        _aggregate_store(operator, written[operator.operator_id], chosen.get(operator.operator_id))
        for operator in plan.executed
    ]
    keys = {join.operator_id: key for join in plan.joins if (key := _join_key(join)) is not None}
    others = (chosen.keys() | keys.keys()) - written.keys()
    stores += [AnnouncedStore(operator_id=each, name=chosen.get(each), key=keys.get(each)) for each in others]
    return sorted(stores, key=lambda store: store.operator_id)


def _as_written(operator: StatefulAggregate, written: Iterable[WrittenAggregate]) -> WrittenAggregate | None:
    """Find the aggregation as the user wrote it. Spark keeps the result ids of functions through all of planning."""
    ids = {function.result_id for function in operator.functions}
    return next((aggregate for aggregate in written if aggregate.result_ids & ids), None)


def _store_names(written: Mapping[int, WrittenAggregate | None], names: Mapping[int, str]) -> dict[int, str]:
    """Choose one name per store. Store names are unique, so an alias that two operators share names neither of them."""
    aliases = {
        operator_id: aggregate.alias
        for operator_id, aggregate in written.items()
        if aggregate is not None
        and aggregate.alias is not None
        and operator_id not in names
        and _is_valid_name(aggregate.alias)
    }
    counts = Counter([*aliases.values(), *names.values()])
    repeated = sorted({alias for alias in aliases.values() if counts[alias] > 1})
    if repeated:
        log.warning(
            "several stores share an alias, which names none of them: %s",
            ", ".join(repeated),
            extra={"action": "names"},
        )
    return {**{key: alias for key, alias in aliases.items() if counts[alias] == 1}, **names}


def _aggregate_store(operator: StatefulAggregate, written: WrittenAggregate | None, name: str | None) -> AnnouncedStore:
    session = operator.session
    key_ids = {key.id for key in (*operator.keys, *(() if session is None else (session,)))}
    buffers = [column for column in operator.saved if column.id not in key_ids]
    stored = buffers if operator.state_format >= 2 and session is None else list(operator.saved)
    return AnnouncedStore(
        operator_id=operator.operator_id,
        name=name,
        key=_names_of(_key_names(operator, written)),
        value=_names_of([column.name for column in stored]),
        result=[] if written is None else _results(operator, written, buffers, stored),
    )


def _join_key(join: StatefulJoin) -> list[str] | None:
    """Return the names of a join's keys: the left side's, else the right's, else Spark's; None if all are Spark's."""
    pairs = list(zip(join.left, join.right, strict=True))
    if not any(left or right for left, right in pairs):
        return None
    return _names_of([left or right or f"field{index}" for index, (left, right) in enumerate(pairs)])


def _names_of(names: Sequence[str]) -> list[str] | None:
    is_sayable = len(names) <= MAX_COLUMNS and all(map(_is_valid_name, names))
    return list(unique_names(names)) if is_sayable else None


def _is_valid_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARS


def _is_sayable(output: Output, columns: Sequence[PlanColumn]) -> bool:
    """Whether a message has room for the output: for its columns and its type."""
    return len(columns) <= MAX_COLUMNS and 0 < len(output.type) <= MAX_TYPE_CHARACTERS


def _key_names(operator: StatefulAggregate, written: WrittenAggregate | None) -> list[str]:
    """Return the grouping columns as the user named them, or Spark's names if the two cannot be matched by position."""
    spark = [key.name for key in operator.keys]
    positions = None if written is None else _key_positions(operator, written.grouping_types)
    if written is None or positions is None:
        return spark
    shown = _output_names(written)
    named = {output.grouping: shown[output.id] for output in reversed(written.outputs) if output.grouping is not None}
    return [named.get(position, name) for position, name in zip(positions, spark, strict=True)]


def _key_positions(operator: StatefulAggregate, grouping_types: Sequence[str]) -> list[int] | None:
    """Return which of the grouping columns the keys are; None if that is not certain."""
    positions = list(range(len(grouping_types)))
    if operator.session is not None:
        windows = [position for position in positions if grouping_types[position] == operator.session.type]
        if len(windows) != 1:
            return None
        positions.remove(windows[0])
    types = [grouping_types[position] for position in positions]
    return positions if types == [key.type for key in operator.keys] else None


def _output_names(written: WrittenAggregate) -> dict[int, str]:
    """Return the outputs' names in the DataFrame with the alias: projections below it may rename columns."""
    names = {output.id: output.name for output in written.outputs}
    origin = {output.id: output.id for output in written.outputs}
    for projection in written.projections if written.alias is not None else ():
        above: dict[int, int] = {}
        for column in projection:
            if column.source in origin and column.id not in above:
                above[column.id] = origin[column.source]
                names[origin[column.source]] = column.name
        origin = above
    return names


def _results(
    operator: StatefulAggregate, written: WrittenAggregate, buffers: Sequence[PlanColumn], stored: Sequence[PlanColumn]
) -> list[ResultColumn]:
    if sum(function.buffers for function in operator.functions) != len(buffers):
        return []
    position = {column.id: index for index, column in enumerate(stored)}
    left = iter(buffers)
    known = {each.result_id: (each.kind, list(islice(left, each.buffers))) for each in operator.functions}
    shown = _output_names(written)
    made = []
    for output in written.outputs:
        kind, columns = next((known[each] for each in output.result_ids if each in known), ("", []))
        function_name = _result_function(kind, tuple(column.type for column in columns), output.type)
        if function_name is not None and _is_valid_name(shown[output.id]) and _is_sayable(output, columns):
            made.append((shown[output.id], function_name, [position[column.id] for column in columns], output.type))
    names = unique_names(name for name, *_ in made)
    return [
        ResultColumn(name=name, function=function, buffers=indexes, type=kind)
        for name, (_, function, indexes, kind) in zip(names, made, strict=True)
    ]


_STORED: Mapping[str, tuple[ResultFunction, int]] = {
    "Min": ("min", 1),
    "Max": ("max", 1),
    "First": ("first", 2),
    "Last": ("last", 2),
    "MinBy": ("min_by", 2),
    "MaxBy": ("max_by", 2),
    "BitAndAgg": ("bit_and", 1),
    "BitOrAgg": ("bit_or", 1),
    "BitXorAgg": ("bit_xor", 1),
    "Product": ("product", 1),
}
"""Functions whose result is their first buffer as stored, with the number of their buffers."""

_MOMENTS: Mapping[str, tuple[ResultFunction, int]] = {
    "VariancePop": ("var_pop", 3),
    "VarianceSamp": ("var_samp", 3),
    "StddevPop": ("stddev_pop", 3),
    "StddevSamp": ("stddev_samp", 3),
    "Skewness": ("skewness", 4),
    "Kurtosis": ("kurtosis", 5),
    "CovPopulation": ("covar_pop", 4),
    "CovSample": ("covar_samp", 4),
    "Corr": ("corr", 6),
    "Corr42": ("corr_4_2", 6),
    "RegrReplacement": ("regr_sxx", 3),
    "RegrSXY": ("regr_sxy", 4),
    "RegrR2": ("regr_r2", 6),
    "RegrSlope": ("regr_slope", 7),
    "RegrIntercept": ("regr_intercept", 7),
    "RegrIntercept42": ("regr_intercept_4_2", 7),
}
"""Functions over doubles, with the number of their buffers."""

_COLLECTING: Mapping[str, ResultFunction] = {"CollectList": "collect_list", "CollectSet": "collect_set"}


def _result_function(kind: str, buffers: tuple[str, ...], result: str) -> ResultFunction | None:
    """Return how the result is computed from the buffers, if that is known exactly. Types are Spark's type names.

    Spark sums short decimals as unscaled longs and averages them as unscaled doubles. The declared type shows that.
    """
    match kind, buffers:
        case _, ():
            return None
        case "Count", ("long",) if result == "long":
            return "count"
        case "Sum", _:
            return _sum_function(buffers, result)
        case "Average", _:
            return _average_function(buffers, result)
        case "HyperLogLogPlusPlus", ("long", *_) if result == "long" and set(buffers) == {"long"}:
            return "approx_count_distinct"
        case (("CollectList" | "CollectSet"), ("binary",)) if result.startswith(ARRAY_JSON):
            return _COLLECTING[kind]
        case _ if kind in _STORED and (len(buffers), buffers[0]) == (_STORED[kind][1], result):
            return _STORED[kind][0]
        case _ if kind in _MOMENTS and buffers == ("double",) * _MOMENTS[kind][1] and result == "double":
            return _MOMENTS[kind][0]
        case _:
            return None


def _sum_function(buffers: tuple[str, ...], result: str) -> ResultFunction | None:
    decimal = result.startswith("decimal(")
    match buffers:
        case ("long",) if decimal or result == "long":
            return "sum"
        case ("double",) if result == "double":
            return "sum"
        case (total, "boolean") if decimal and result == total:
            return "sum"
        case ("long", "boolean") if decimal or result == "long":
            return "try_sum"
    return None


def _average_function(buffers: tuple[str, ...], result: str) -> ResultFunction | None:
    decimal = result.startswith("decimal(")
    match buffers:
        case ("double", "long") if decimal or result == "double":
            return "avg"
        case (total, "long") if decimal and total.startswith("decimal("):
            return "avg"
    return None
