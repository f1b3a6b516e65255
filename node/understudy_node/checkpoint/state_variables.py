"""The state variables of `transformWithState`: kinds, column families, and the Avro schemas of their records.

Operator metadata names the variables, the schema file has a column family for each; families with a "$" in front are
Spark's own. Rule: a variable with unexpected columns for its kind is refused by name; the others are served.

Spark writes a schema file when a query starts with other columns, and never changes one. Each Avro record has the
number of the schema that it was written with; values are shown by the newest. Keys never change their columns. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from understudy_node.checkpoint.avro import compile_avro_decoder, compile_avro_encoder, is_written_alike
from understudy_node.checkpoint.logs import checked, field, parse_object
from understudy_node.checkpoint.schemas import ColumnFamilySchema, SchemaFile
from understudy_shared.base.errors import UnsupportedError
from understudy_shared.base.words import StoreKind
from understudy_shared.spark.key_codec import COLLATION_FIX
from understudy_shared.spark.types import LongType, StructType, collated_columns, parse_schema

_START_ANEW: Final = "Start the query on a new checkpoint, or use a newer Understudy"


@dataclass(frozen=True, slots=True)
class AvroHistory:
    """All schema files of a store, oldest first. `separator` is between two records of a list."""

    files: tuple[SchemaFile, ...]
    where: str
    separator: bytes


@dataclass(frozen=True, slots=True)
class AvroRows:
    """The encoding of a variable's records.

    `first` are the columns of a key, or of its part that a scan begins with; `rest` the columns after it. `written` has
    the columns of values by the number of their schema. `separator` is between two records of a list.
    """

    first: StructType
    rest: StructType
    key_schema_id: int
    written: Mapping[int, StructType]
    separator: bytes


def avro_rows(history: AvroHistory, name: str, key: StructType, *, is_prefixed: bool, has_values: bool) -> AvroRows:
    """Return how the variable's records are encoded. Raises UnsupportedError if some would be doubtful."""
    families = [family for file in history.files for family in file.families if family.name == name]
    split = 1 if is_prefixed else len(key.fields)
    first, rest = StructType(key.fields[:split]), StructType(key.fields[split:])
    try:
        _require_one_key(families, key)
        for part in (first, rest) if is_prefixed else (first,):
            # Compiled only to refuse here, by name, what no lookup could read; readers compile their own.
            compile_avro_encoder(part)
            compile_avro_decoder(part, part)
        written = _written(families) if has_values else {}
    except UnsupportedError as error:
        raise UnsupportedError(
            f"State variable {name} cannot be read: {error.what}, {error.where}", where=history.where, fix=error.fix
        ) from None
    return AvroRows(first, rest, families[-1].key_schema_id, MappingProxyType(written), history.separator)


def _require_one_key(families: Sequence[ColumnFamilySchema], key: StructType) -> None:
    """Require that all schemas encode a key as the same bytes: a lookup finds keys by them."""
    for family in families:
        is_other = family.key_schema_id != families[-1].key_schema_id
        if is_other or not is_written_alike(parse_schema(family.key_schema), key):
            raise UnsupportedError("its keys have changed", where=f"key schema {family.key_schema_id}", fix=_START_ANEW)


def _written(families: Sequence[ColumnFamilySchema]) -> dict[int, StructType]:
    """Return the columns by the number of their schema, each readable as the newest."""
    shown = parse_schema(families[-1].value_schema)
    written: dict[int, StructType] = {}
    for family in families:
        columns = parse_schema(family.value_schema)
        known = written.setdefault(family.value_schema_id, columns)
        if known != columns or not is_written_alike(known, columns):
            raise UnsupportedError(
                "two schemas have one number", where=f"schema {family.value_schema_id}", fix=_START_ANEW
            )
        # To know now, and not at the first such record, whether it can be read.
        compile_avro_decoder(columns, shown)
    return written


TRANSFORM: Final[Mapping[str, str]] = MappingProxyType(
    {
        "transformWithStateExec": "transformWithState",
        "transformWithStateInPySparkExec": "transformWithState in Python",
        "transformWithStateInPandasExec": "transformWithStateInPandas",
    }
)
"""Spark's names of the operator, and its names for users."""

BY_PANDAS: Final = frozenset({"transformWithStateInPySparkExec", "transformWithStateInPandasExec"})
"""Operators with keys that may have come from pandas."""

TIMERS: Final = frozenset({"$procTimers_keyToTimestamp", "$eventTimers_keyToTimestamp"})
"""The variables that hold the timers of a key, by the time that they wait for."""
TTL_EXPIRATION: Final = "ttlExpirationMs"
"""The last column of a value with TTL; the first is the value."""

_KINDS: Final[Mapping[str, StoreKind]] = MappingProxyType(
    {
        "ValueState": StoreKind.VALUE,
        "ListState": StoreKind.LIST,
        "MapState": StoreKind.MAP,
        "TimerState": StoreKind.TIMERS,
    }
)
_PLAIN_KEYS: Final[Mapping[str, object]] = {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}
_PREFIXED_KEYS: Final[Mapping[str, object]] = {
    "keyStateEncoderType": "PrefixKeyScanStateEncoderSpec",
    "numColsPrefixKey": 1,
}
_SECOND_COLUMNS: Final = {StoreKind.MAP: ("userKey", StructType), StoreKind.TIMERS: ("expiryTimestampMs", LongType)}
"""The column after the grouping key in keys of these kinds."""
_NONE: Final = StructType()
_FIX: Final = "A newer Spark wrote it: use a newer Understudy"


@dataclass(frozen=True, slots=True)
class StateVariable:
    """A state variable, or the timers of an operator. One with an `unsupported` reason is not served.

    `key` are the columns of the grouping key, `user_key` a map's key columns, and `key_json` is Spark's JSON of both.
    `stored` is the struct of a stored value, `value` of what the query put there: they differ if there is a TTL. `avro`
    is how its records are encoded; None if they are rows.
    """

    name: str
    kind: StoreKind = StoreKind.VALUE
    has_ttl: bool = False
    key_json: str = ""
    key: StructType = _NONE
    user_key: StructType = _NONE
    stored: StructType = _NONE
    value: StructType = _NONE
    avro: AvroRows | None = None
    unsupported: UnsupportedError | None = None
    earlier: tuple[EarlierVariable, ...] = ()
    """The variable before changes of its columns, oldest first."""


@dataclass(frozen=True, slots=True)
class EarlierVariable:
    """A state variable as it was up to a version, which is the last with these columns."""

    last_version: int
    variable: StateVariable


def state_variables(
    properties: Mapping[str, object],
    families: Sequence[ColumnFamilySchema],
    *,
    where: str,
    avro: AvroHistory | None = None,
) -> tuple[StateVariable, ...]:
    """Return the variables that an operator's properties name, by the schemas of its column families. `avro`: all
    schemas so far, if records are encoded by them.
    """
    by_name = {family.name: family for family in families}
    said = checked(properties.get("stateVariables"), list, "'stateVariables'", name=where)
    found = []
    for each in said:
        body = checked(each, dict, "a state variable", name=where)
        name, kind = (field(body, part, str, name=where) for part in ("stateName", "stateVariableType"))
        has_ttl = field(body, "ttlEnabled", bool, name=where)
        try:
            variable = _variable(name, kind, by_name.get(name), has_ttl=has_ttl, where=where, avro=avro)
            earlier = () if avro is None else _earlier(variable, kind, avro)
            found.append(replace(variable, earlier=earlier))
        except UnsupportedError as error:
            # One variable that cannot be read must not take the others with it.
            found.append(StateVariable(name, unsupported=error))
    return tuple(sorted(found, key=lambda variable: variable.name))


def _fits(kind: StoreKind, name: str, key: StructType, encoder: Mapping[str, object]) -> bool:
    """Whether these are the key columns of a variable of that kind, and encoded as its keys are."""
    if kind is StoreKind.TIMERS and name not in TIMERS:
        return False
    if kind in _SECOND_COLUMNS:
        return encoder == _PREFIXED_KEYS and _is_grouping_and(_SECOND_COLUMNS[kind], key)
    return encoder == _PLAIN_KEYS and bool(key.fields)


def _variable(
    name: str,
    kind_name: str,
    family: ColumnFamilySchema | None,
    *,
    has_ttl: bool,
    where: str,
    avro: AvroHistory | None,
) -> StateVariable:
    kind = _KINDS.get(kind_name)
    if kind is None:
        known = ", ".join(_KINDS)
        raise UnsupportedError(
            f"State variable {name} is of the unknown kind {kind_name}", where=where, fix=f"Known: {known}. {_FIX}"
        )
    if family is None:
        raise UnsupportedError(f"State variable {name} has no column family", where=where, fix=_FIX)
    key, stored = _parsed(name, family.key_schema, where), _parsed(name, family.value_schema, where)
    encoder = dict(parse_object((family.key_encoder or "{}").encode(), name=where))
    if not _fits(kind, name, key, encoder) or (has_ttl and not _expires(stored)):
        raise UnsupportedError(
            f"The columns of state variable {name} do not fit a {kind_name}: "
            f"key {key.name:.200}, value {stored.name:.200}, keys encoded by {encoder!s:.200}",
            where=where,
            fix=_FIX,
        )
    grouping, user_key = _parts(key) if kind in _SECOND_COLUMNS else (key, StructType())
    # With a TTL, Spark stores a struct of the value and its expiry time.
    value = stored.fields[0].type if has_ttl else stored
    assert isinstance(value, StructType), "as _expires found"
    collated = [*collated_columns(grouping), *collated_columns(user_key)]
    if collated:
        raise UnsupportedError(
            f"Keys of state variable {name} have columns with a collation: {', '.join(collated)}",
            where=where,
            fix=COLLATION_FIX,
        )
    key_json = _flat_json(family.key_schema, kind) if kind in _SECOND_COLUMNS else family.key_schema
    rows = None
    if avro is not None:
        rows = avro_rows(avro, name, key, is_prefixed=kind in _SECOND_COLUMNS, has_values=kind is not StoreKind.TIMERS)
    return StateVariable(name, kind, has_ttl, key_json, grouping, user_key, stored, value, rows)


def _earlier(variable: StateVariable, kind_name: str, avro: AvroHistory) -> tuple[EarlierVariable, ...]:
    """Return the variable by each earlier file after which its columns changed. A file that cannot be read so is
    skipped: its versions are shown like later ones.
    """
    found = []
    for count, (file, following) in enumerate(pairwise(avro.files), 1):
        was, then, last_version = file.family(variable.name), following.family(variable.name), following.batch_id
        if was is None or then is None or last_version is None or was.value_schema == then.value_schema:
            continue
        # As if the later files did not exist yet: records of that time were written without them.
        history = replace(avro, files=avro.files[:count])
        with suppress(UnsupportedError):
            before = _variable(variable.name, kind_name, was, has_ttl=variable.has_ttl, where=avro.where, avro=history)
            found.append(EarlierVariable(last_version, before))
    return tuple(found)


def _parsed(name: str, schema: str, where: str) -> StructType:
    try:
        return parse_schema(schema)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"State variable {name} has a {error.where}: {error.what}", where=where, fix=error.fix
        ) from None


def _is_grouping_and(second: tuple[str, type], key: StructType) -> bool:
    columns = [(column.name, type(column.type)) for column in key.fields]
    return columns == [("key", StructType), second] and bool(_parts(key)[0].fields)


def _parts(key: StructType) -> tuple[StructType, StructType]:
    """Return the grouping key and the user key of a key that has both."""
    grouping, second = (column.type for column in key.fields)
    assert isinstance(grouping, StructType), "as _is_grouping_and found"
    return grouping, second if isinstance(second, StructType) else StructType()


def _flat_json(key_schema: str, kind: StoreKind) -> str:
    """Return the JSON of the columns of a key that has two structs, or one and a time."""
    # Users know the columns, and not the structs that Spark wraps around them.
    schema = json.loads(key_schema)
    structs = schema["fields"] if kind is StoreKind.MAP else schema["fields"][:1]
    return json.dumps({**schema, "fields": [column for each in structs for column in each["type"]["fields"]]})


def _expires(stored: StructType) -> bool:
    columns = [(column.name, type(column.type)) for column in stored.fields]
    return columns == [("value", StructType), (TTL_EXPIRATION, LongType)]
