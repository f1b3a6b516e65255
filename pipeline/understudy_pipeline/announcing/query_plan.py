"""What a query's plan says of its stores: which operator is which, and which buffers make which output column.

Pure: `plan_reader` describes a plan with the values below, `announced_stores` makes the announcement of them. Rule:
nothing is guessed. An aggregate that is not known, whose buffers are not those that were expected, or that the
optimiser has changed into something of another type, is left out; its bytes can still be asked for.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from understudy_shared.messages import AnnouncedStore, ResultColumn
from understudy_shared.spark.names import unique_names

log = logging.getLogger(__name__)

MAX_NAME_CHARS = 256
"""Of a name in a message. Spark makes longer ones of long expressions that nobody named."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a physical plan; `id` is Spark's expression id."""

    id: int
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Function:
    """An aggregate function of a physical plan, by its class; it keeps `buffers` columns."""

    kind: str
    result_id: int
    buffers: int


@dataclass(frozen=True, slots=True)
class StatefulAggregate:
    """An aggregation as it is executed. `saved` are the columns given to the state store: the keys and all buffers.

    `state_format` is the version of the row layout: from 2 on, the keys are not stored again beside the buffers.
    """

    operator_id: int
    state_format: int
    keys: tuple[Column, ...]
    saved: tuple[Column, ...]
    functions: tuple[Function, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """An output column of an aggregation or a projection, as the user named it.

    It shows the column `source` (its own id, or the one that it renames), or the grouping expression at `grouping`, or
    the result of an aggregate function: `result_ids` has that one's id, and those of equal functions beside it.
    """

    id: int
    name: str
    type: str
    source: int | None = None
    grouping: int | None = None
    result_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class WrittenAggregate:
    """An aggregation as the user wrote it. `alias` is that of the DataFrame, `projections` what lies between, lowest
    first; `result_ids` are those of all its functions, also inside of larger expressions.
    """

    grouping_types: tuple[str, ...]
    outputs: tuple[Output, ...]
    result_ids: frozenset[int]
    projections: tuple[tuple[Output, ...], ...] = ()
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The stateful aggregations of a query, as executed and as written."""

    executed: tuple[StatefulAggregate, ...]
    written: tuple[WrittenAggregate, ...]


def announced_stores(plan: QueryPlan, names: Mapping[int, str]) -> list[AnnouncedStore]:
    """Names for every store that the plan or `names` (by operator id) has something to say of, by operator id."""
    written = {operator.operator_id: _as_written(operator, plan.written) for operator in plan.executed}
    chosen = _store_names(written, names)
    stores = [
        _aggregate_store(operator, written[operator.operator_id], chosen.get(operator.operator_id))
        for operator in plan.executed
    ]
    others = chosen.keys() - written.keys()
    stores += [AnnouncedStore(operator_id=operator_id, name=chosen[operator_id]) for operator_id in others]
    return sorted(stores, key=lambda store: store.operator_id)


def _as_written(operator: StatefulAggregate, written: Iterable[WrittenAggregate]) -> WrittenAggregate | None:
    """The aggregation that the user wrote: Spark keeps the result ids of its functions through the whole planning."""
    ids = {function.result_id for function in operator.functions}
    return next((aggregate for aggregate in written if aggregate.result_ids & ids), None)


def _store_names(written: Mapping[int, WrittenAggregate | None], names: Mapping[int, str]) -> dict[int, str]:
    """One name per store. An alias that two operators have names neither of them: store names are unique."""
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
            "aliases that several stores have name none of them: %s", ", ".join(repeated), extra={"action": "names"}
        )
    return {**{key: alias for key, alias in aliases.items() if counts[alias] == 1}, **names}


def _aggregate_store(operator: StatefulAggregate, written: WrittenAggregate | None, name: str | None) -> AnnouncedStore:
    key_ids = {key.id for key in operator.keys}
    buffers = [column for column in operator.saved if column.id not in key_ids]
    stored = buffers if operator.state_format >= 2 else list(operator.saved)
    return AnnouncedStore(
        operator_id=operator.operator_id,
        name=name,
        key=_names_of(_key_names(operator, written)),
        value=_names_of([column.name for column in stored]),
        result=[] if written is None else _results(operator, written, buffers, stored),
    )


def _names_of(names: Sequence[str]) -> list[str] | None:
    return list(unique_names(names)) if all(map(_is_valid_name, names)) else None


def _is_valid_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARS


def _key_names(operator: StatefulAggregate, written: WrittenAggregate | None) -> list[str]:
    """As the user named the columns to group by; Spark's own names where the two cannot be matched by position."""
    spark = [key.name for key in operator.keys]
    if written is None or written.grouping_types != tuple(key.type for key in operator.keys):
        return spark
    shown = _output_names(written)
    told = {output.grouping: shown[output.id] for output in reversed(written.outputs) if output.grouping is not None}
    return [told.get(position, name) for position, name in enumerate(spark)]


def _output_names(written: WrittenAggregate) -> dict[int, str]:
    """The name of each output in the DataFrame that the alias is on: projections below it may rename columns."""
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
    operator: StatefulAggregate, written: WrittenAggregate, buffers: Sequence[Column], stored: Sequence[Column]
) -> list[ResultColumn]:
    if sum(function.buffers for function in operator.functions) != len(buffers):
        return []
    position = {column.id: index for index, column in enumerate(stored)}
    known: dict[int, tuple[str, list[Column]]] = {}
    first = 0
    for function in operator.functions:
        known[function.result_id] = (function.kind, list(buffers[first : first + function.buffers]))
        first += function.buffers
    shown = _output_names(written)
    made = []
    for output in written.outputs:
        kind, columns = next((known[each] for each in output.result_ids if each in known), ("", []))
        function_name = _result_function(kind, tuple(column.type for column in columns), output.type)
        if function_name is not None and _is_valid_name(shown[output.id]):
            made.append((shown[output.id], function_name, [position[column.id] for column in columns], output.type))
    names = unique_names(name for name, *_ in made)
    return [
        ResultColumn(name=name, function=function, buffers=indexes, type=kind)
        for name, (_, function, indexes, kind) in zip(names, made, strict=True)
    ]


ResultFunction = Literal["count", "sum", "avg", "min", "max"]


def _result_function(kind: str, buffers: tuple[str, ...], result: str) -> ResultFunction | None:
    """What is made of the buffers, if that is known exactly. Types are Spark's names of them.

    Short decimals are summed as unscaled longs and averaged as unscaled doubles: their declared type tells.
    """
    decimal = result.startswith("decimal(")
    match kind, buffers:
        case "Count", ("long",) if result == "long":
            return "count"
        case "Min", (only,) if result == only:
            return "min"
        case "Max", (only,) if result == only:
            return "max"
        case "Sum", ("long",) if decimal or result == "long":
            return "sum"
        case "Sum", ("double",) if result == "double":
            return "sum"
        case "Sum", (total, "boolean") if decimal and result == total:
            return "sum"
        case "Average", ("double", "long") if decimal or result == "double":
            return "avg"
        case "Average", (total, "long") if decimal and total.startswith("decimal("):
            return "avg"
        case _:
            return None
