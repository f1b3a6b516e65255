"""The parts of an operator that readers can ask for, and how each is read: decided once, when a store is opened.

A part is a store as readers see it: mostly an operator's only store; for a join one of its sides, which takes two. How
it is read follows from the operator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypedDict

import orjson

from understudy_node.checkpoint.description import OperatorDescription, StoreDescription
from understudy_node.checkpoint.logs import Provider
from understudy_node.checkpoint.operators import (
    COUNTS,
    FAMILIES_FORMATS,
    JOIN,
    JOIN_SIDES,
    ROWS,
    SUPPORTED_OPERATORS,
    TIMED_FORMAT,
    TIMED_ROWS,
    UNMATCHED_FORMAT,
    side_table,
)
from understudy_node.checkpoint.schemas import ColumnFamilySchema
from understudy_node.checkpoint.state_variables import TRANSFORM, StateVariable
from understudy_node.engine.scans import ScanOrder
from understudy_node.engine.view import StateTable
from understudy_node.stores.finder import ByVersion, Expiry, MakeFinder, is_watermarked
from understudy_node.stores.operator_state import (
    SEEN,
    ExpiringSet,
    JoinSide,
    SeenSet,
    Sessions,
    SideTables,
    TimedJoinSide,
    either_zero,
    has_timeout,
    row_printer,
    session_order,
    session_printer,
    stored_state,
    with_timeout,
)
from understudy_node.stores.results import ResultPrinter
from understudy_node.stores.row_forms import row_form
from understudy_node.stores.state_variables import ListVariable, MapVariable, Timers, ValueVariable, value_printer
from understudy_shared.base.clock import wall_ms
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import StoreKind
from understudy_shared.bus.messages import MAX_SCHEMAS
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.types import StructType, parse_schema, unique_names

Column = dict[str, str | bool]

MAX_SHOWN_CHARACTERS: Final = 65_536
"""Limit on the names and types of all columns together; the newest schema is shown whole."""


class StoreSchema(TypedDict):
    """A schema as `GET /v1/stores/{store}` shows it."""

    schema_id: int
    from_batch: int | None
    key: list[Column]
    value: list[Column]


def schema_history(store: StoreDescription, family: str) -> tuple[StoreSchema, ...]:
    """Return each schema of a column family, oldest first: its number, its first batch where the file's name has it,
    and the columns that Spark stores: the key of a map has `key` and `userKey`, a value with TTL has `ttlExpirationMs`.
    A long history loses its oldest part; schemas that this release cannot read are left out.
    """
    found: list[tuple[int | None, ColumnFamilySchema]] = []
    for file in store.schema_files:
        schemas = file.family(family)
        if schemas is not None and not (found and _are_equal(found[-1][1], schemas)):
            found.append((file.batch_id, schemas))
    shown = []
    for batch_id, schemas in found[-MAX_SCHEMAS:]:
        with suppress(UnderstudyError, RecursionError):
            shown.append(_shown(batch_id, schemas))
    return tuple(_within_limits(shown))


def _are_equal(one: ColumnFamilySchema, other: ColumnFamilySchema) -> bool:
    return (one.key_schema, one.value_schema_id, one.value_schema) == (
        other.key_schema,
        other.value_schema_id,
        other.value_schema,
    )


def _shown(batch_id: int | None, schemas: ColumnFamilySchema) -> StoreSchema:
    return {
        "schema_id": schemas.value_schema_id,
        "from_batch": batch_id,
        "key": _columns(parse_schema(schemas.key_schema)),
        "value": _columns(parse_schema(schemas.value_schema)),
    }


def _columns(struct: StructType) -> list[Column]:
    return [{"name": each.name, "type": each.type.name, "nullable": each.nullable} for each in struct.fields]


def _within_limits(history: Sequence[StoreSchema]) -> Sequence[StoreSchema]:
    """Return the newest schemas that fit the limits together."""
    characters = 0
    for count, schema in enumerate(reversed(history)):
        columns = (*schema["key"], *schema["value"])
        characters += sum(len(str(each["name"])) + len(str(each["type"])) for each in columns)
        if characters > MAX_SHOWN_CHARACTERS and count:
            return history[-count:]
    return history


_SCANNED = frozenset({StoreKind.MAP, StoreKind.TIMERS})
"""Kinds of state variables that are found by a scan."""

_TIMED_TABLES = frozenset(side_table(side, TIMED_ROWS) for side in JOIN_SIDES)
"""The tables of a join that have its rows by event time."""

_GROUPS = frozenset({"applyInPandasWithState", "flatMapGroupsWithState"})
_TIME_FIRST = {"keyStateEncoderType": "RangeKeyScanStateEncoderSpec", "orderingOrdinals": [0]}
"""The encoder of keys that begin with a time."""

PrintFound = Callable[[bytes], bytes]
"""A function from a stored row to the members of an answer for it, with a comma at the end."""


def _never(row: bytes) -> bytes:
    raise AssertionError("a finder prints what is found")


class Way(NamedTuple):
    """The way to read a part: `print_found` prints what is stored under a key; with `make_finder` a finder reads it."""

    print_found: PrintFound = _never
    make_finder: MakeFinder | None = None


MakeWay = Callable[[tuple[str, ...], tuple[str, ...], ResultPrinter | None], Way]


@dataclass(frozen=True, slots=True)
class OperatorPart:
    """A part of an operator that readers can ask for. `value` are the columns that an answer shows.

    `way` is called with the column names of key and value, and the function that computes results of a printed value.
    `schemas` is the history of its columns. `short_name` is the name of a part if it is unique, else "". In a map's key
    the first `num_group_columns` are the grouping key, and the others the user key.
    """

    default_name: str
    kind: StoreKind
    is_normalised: bool
    store_name: str
    key_json: str
    value: StructType
    way: MakeWay
    schemas: tuple[StoreSchema, ...]
    short_name: str = ""
    num_group_columns: int | None = None
    window_expiry: Expiry | None = None
    """The expiry of a window in the key."""


def parts_of(operator: OperatorDescription, *, may_lag: bool = False) -> Iterator[OperatorPart]:
    """Yield the parts of an operator, in stores that this release reads. `may_lag`: see `Expiry`."""
    support = SUPPORTED_OPERATORS.get(operator.operator_name)
    if support is None:
        return
    if support.kind is StoreKind.JOIN_SIDE:
        describe = _timed_side if operator.state_format == TIMED_FORMAT else _indexed_side
        yield from (describe(operator, side) for side in JOIN_SIDES if operator.served)
        return
    for store in operator.served:
        if operator.operator_name in TRANSFORM:
            yield from (_variable(operator, store, each) for each in operator.variables if each.unsupported is None)
        else:
            yield _part(operator, store, may_lag=may_lag)


def scan_order_of(operator: OperatorDescription, store: StoreDescription, provider: Provider) -> ScanOrder | None:
    """Return the order of a store's keys for readers who scan it; None for a store that is read key by key."""
    support = SUPPORTED_OPERATORS.get(operator.operator_name)
    is_timed = operator.operator_name == JOIN and operator.state_format == TIMED_FORMAT
    if is_timed or any(each.unsupported is None and each.kind in _SCANNED for each in operator.variables):
        return ScanOrder()
    if support is None or support.kind is not StoreKind.SESSION:
        return None
    return session_order(parse_schema(store.column_families[0].key_schema), one_row=provider == "hdfs")


def has_families(operator: OperatorDescription) -> bool:
    """Whether the operator's tables are column families of one store."""
    if operator.operator_name in TRANSFORM:
        return True
    return operator.operator_name == JOIN and operator.state_format in FAMILIES_FORMATS


def _part(operator: OperatorDescription, store: StoreDescription, *, may_lag: bool) -> OperatorPart:
    support, name = SUPPORTED_OPERATORS[operator.operator_name], operator.operator_name
    (family,) = store.column_families
    key, stored = parse_schema(family.key_schema), parse_schema(family.value_schema)
    value = stored
    if support.kind is StoreKind.SET:
        value = StructType()
    elif name in _GROUPS:
        value = stored_state(stored)

    def way(keys: tuple[str, ...], names: tuple[str, ...], print_result: ResultPrinter | None) -> Way:
        match name:
            case "dedupe":
                return Way(lambda row: SEEN, either_zero(partial(SeenSet, store.name), key))
            case "dedupeWithinWatermark":
                expiring = partial(ExpiringSet, store.name, stored, Expiry(may_lag=may_lag))
                return Way(make_finder=either_zero(expiring, key) or expiring)
            case "sessionWindowStateStoreSaveExec":
                expiry = Expiry(is_watermarked(family.value_schema), may_lag)
                print_session = session_printer(stored, names, print_result)
                return Way(make_finder=partial(Sessions, store.name, key, expiry, print_session))
        print_found = _found_printer(value, names, print_result)
        return Way(with_timeout(value, print_found) if name in _GROUPS and has_timeout(value) else print_found)

    return OperatorPart(
        default_name=operator.default_name(store),
        kind=support.kind,
        is_normalised=support.is_normalised,
        store_name=store.name,
        key_json=_without_last(family.key_schema) if support.kind is StoreKind.SESSION else family.key_schema,
        value=value,
        way=way,
        schemas=schema_history(store, family.name),
        window_expiry=Expiry(is_watermarked(family.key_schema), may_lag),
    )


def _found_printer(stored: StructType, names: tuple[str, ...], print_result: ResultPrinter | None) -> PrintFound:
    """Print the value as Spark stored it, and the result where that is known."""
    print_value = compile_json_printer(stored, names)

    def print_found(row: bytes) -> bytes:
        return b'"found":true,"value":%b,' % orjson.dumps(print_value(row))

    def with_result(row: bytes) -> bytes:
        assert print_result is not None, "used only where results are known"
        value = print_value(row)
        return b'"found":true,"value":%b,"result":%b,' % (orjson.dumps(value), orjson.dumps(print_result(value)))

    return print_found if print_result is None else with_result


def _timed_side(operator: OperatorDescription, side: str) -> OperatorPart:
    """Describe one side of a join that stores rows by their event time."""
    support = SUPPORTED_OPERATORS[operator.operator_name]
    (store,) = operator.served
    table = side_table(side, TIMED_ROWS)
    (rows,) = (family for family in store.column_families if family.name == table)
    every_row = [family.value_schema for family in store.column_families if family.name in _TIMED_TABLES]
    expired = None if is_watermarked(*every_row) else False
    stored = parse_schema(rows.value_schema)

    def way(keys: tuple[str, ...], names: tuple[str, ...], print_result: ResultPrinter | None) -> Way:
        print_row = row_printer(stored, names, print_result)
        return Way(make_finder=partial(TimedJoinSide, StateTable(store.name, table), expired, print_row))

    return OperatorPart(
        default_name=f"op{operator.operator_id}.{side}",
        kind=support.kind,
        is_normalised=support.is_normalised,
        store_name=store.name,
        key_json=_without_last(rows.key_schema),
        value=StructType(stored.fields[:-1]),
        way=way,
        schemas=schema_history(store, table),
    )


def _indexed_side(operator: OperatorDescription, side: str) -> OperatorPart:
    """Describe one side of a join that counts and indexes its rows, by its two tables."""
    support = SUPPORTED_OPERATORS[operator.operator_name]
    described = {store.name: store for store in operator.served}
    if has_families(operator):
        (store,) = operator.served
        known = {family.name: (StateTable(store.name, family.name), family) for family in store.column_families}
    else:
        known = {store.name: (StateTable(store.name), store.column_families[0]) for store in operator.served}
    (counts_table, counts), (rows_table, rows) = (known[side_table(side, table)] for table in (COUNTS, ROWS))
    every_row = [known[side_table(each, ROWS)][1].value_schema for each in JOIN_SIDES]
    stored = parse_schema(rows.value_schema)
    tables = SideTables(
        counts_table,
        rows_table,
        parse_schema(counts.key_schema),
        parse_schema(rows.key_schema),
        parse_schema(counts.value_schema),
        None if is_watermarked(*every_row) else False,
    )
    has_matched = operator.state_format != UNMATCHED_FORMAT

    def way(keys: tuple[str, ...], names: tuple[str, ...], print_result: ResultPrinter | None) -> Way:
        print_row = row_printer(stored, names, print_result, has_matched=has_matched)
        return Way(make_finder=partial(JoinSide, tables, print_row))

    return OperatorPart(
        default_name=f"op{operator.operator_id}.{side}",
        kind=support.kind,
        is_normalised=support.is_normalised,
        store_name=counts_table.store,
        key_json=counts.key_schema,
        value=StructType(stored.fields[:-1]) if has_matched else stored,
        way=way,
        schemas=schema_history(described[rows_table.store], rows.name),
    )


def _variable(operator: OperatorDescription, store: StoreDescription, variable: StateVariable) -> OperatorPart:
    """Describe a state variable, or the timers of an operator."""
    table, is_timers = StateTable(store.name, variable.name), variable.kind is StoreKind.TIMERS

    def way(keys: tuple[str, ...], names: tuple[str, ...], print_result: ResultPrinter | None) -> Way:
        if is_timers:
            by_time = _times_of(store, variable)
            return Way(make_finder=lambda prefix: Timers(table, variable.key, row_form(variable, prefix), by_time))
        make = _variable_finder(table, variable, keys, names, print_result)
        if not variable.earlier:
            return Way(make_finder=make)
        shown = {column.name: name for column, name in zip(variable.value.fields, names, strict=True)}
        before = []
        for each in variable.earlier:
            names_then = unique_names([shown.get(column.name, column.name) for column in each.variable.value.fields])
            # Results are of the newest columns; their buffers may be missing here.
            before.append((each.last_version, _variable_finder(table, each.variable, keys, names_then, None)))
        return Way(
            make_finder=lambda prefix: ByVersion(make(prefix), [(last, of_then(prefix)) for last, of_then in before])
        )

    return OperatorPart(
        default_name=operator.variable_name(variable),
        kind=variable.kind,
        is_normalised=SUPPORTED_OPERATORS[operator.operator_name].is_normalised,
        store_name=store.name,
        key_json=variable.key_json,
        value=StructType() if is_timers else variable.value,
        way=way,
        schemas=schema_history(store, variable.name),
        short_name="" if is_timers else variable.name,
        num_group_columns=len(variable.key.fields) if variable.kind is StoreKind.MAP else None,
    )


def _times_of(store: StoreDescription, variable: StateVariable) -> StateTable | None:
    """Return the table of the same timers by time; None if its bytes do not sort by time, as in Avro."""
    name = variable.name.replace("keyToTimestamp", "timestampToKey")
    family = next((each for each in store.column_families if each.name == name), None)
    if variable.avro is not None or family is None:
        return None
    return StateTable(store.name, name) if json.loads(family.key_encoder or "{}") == _TIME_FIRST else None


def _variable_finder(
    table: StateTable,
    variable: StateVariable,
    keys: tuple[str, ...],
    names: tuple[str, ...],
    print_result: ResultPrinter | None,
) -> MakeFinder:
    """Make the finder of a variable's records, by the columns that it has in the version that is read."""
    print_value = value_printer(variable, names, print_result, wall_ms)
    if variable.kind is StoreKind.MAP:
        user_names = keys[len(variable.key.fields) :]
        return lambda prefix: MapVariable(table, variable, user_names, print_value, row_form(variable, prefix))
    finder = ListVariable if variable.kind is StoreKind.LIST else ValueVariable
    return lambda prefix: finder(table, print_value, row_form(variable, prefix))


def _without_last(schema_json: str) -> str:
    schema = json.loads(schema_json)
    return json.dumps({**schema, "fields": schema["fields"][:-1]})
