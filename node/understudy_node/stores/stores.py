"""The queryable stores of an application: names, schemas and codecs, from the checkpoint and an alias file.

Spark's own column names are generated and repeat (`sum`, `sum`); they are made unique by suffix, and an alias file
gives meaningful names:

    [op0]
    name = "aircraft"
    key = ["tailnum"]
    value = ["flights", "last_seen", "delay_sum", "delay_count"]

Spark stores aggregation buffers: an average is its sum and its count. The output of the query is described by name,
function and buffers (names of value columns, or their indexes):

    [op0.result]
    flights = { function = "count", buffers = ["flights"] }
    last_seen = { function = "max", buffers = ["last_seen"] }
    delay = { function = "avg", buffers = ["delay_sum", "delay_count"] }

For names not in the file the pipeline's announcement counts. An announcement never breaks serving: parts of it that do
not fit the checkpoint are left out, with the reason.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pydantic import BaseModel, ConfigDict, ValidationError

from understudy_node.checkpoint.description import CheckpointDescription, OperatorDescription
from understudy_node.stores.finder import Expiry, MakeFinder, may_stand_behind_join
from understudy_node.stores.parts import OperatorPart, PrintFound, StoreSchema, parts_of
from understudy_node.stores.result_functions import ResultError
from understudy_node.stores.results import ResultAlias, compile_results
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.words import RESULT_FUNCTIONS, KeyPlacement, ResultFunction, StoreKind, StoreName
from understudy_shared.bus.messages import AnnouncedStore, Announcement, ResultColumn
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.store_keys import described_key, key_codec
from understudy_shared.spark.types import SparkType, StructType, parse_schema, unique_names


class AliasError(SettingsError):
    """The alias file does not parse, or names something that the checkpoint does not have."""


class StoreAlias(BaseModel):
    """Names for one store; columns that it leaves out keep Spark's names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    key: tuple[str, ...] | None = None
    value: tuple[str, ...] | None = None
    result: dict[str, ResultAlias] | None = None
    """Output columns by name, in the order of the answer."""
    operator: str | None = None
    """Spark's name of the operator, for a store of Spark 3 that several operators fit."""


@dataclass(frozen=True, slots=True)
class ServedStore:
    """One store as readers see it. `codec` turns a key into row bytes, `print_found` a stored row into members of an
    answer. With `make_finder` a finder makes the answer.
    """

    name: StoreName
    operator_id: int
    operator_name: str
    kind: StoreKind
    store_name: str
    codec: KeyCodec
    key_schema: StructType
    key_schema_json: str
    value_schema: StructType
    value_names: tuple[str, ...]
    schemas: tuple[StoreSchema, ...]
    result_types: tuple[tuple[str, SparkType], ...]
    """Name and type of the result columns; empty when the results are not known."""
    unnamed: tuple[str, ...]
    """Value columns that no result is made of, where results are known."""
    print_found: PrintFound
    make_finder: MakeFinder | None
    is_normalised: bool
    window_expiry: Expiry | None

    def described(self) -> dict[str, object]:
        return {
            "store": self.name,
            "operator_id": self.operator_id,
            "operator": self.operator_name,
            "kind": self.kind,
            "placement": self.codec.placement,
            **described_key(self.codec, self.kind),
            "value": self.value_columns(),
            **({"result": self.results} if self.results else {}),
            **({"unnamed": self.unnamed} if self.unnamed else {}),
        }

    @property
    def results(self) -> list[dict[str, str]]:
        return [{"name": name, "type": spark_type.name} for name, spark_type in self.result_types]

    def value_columns(self) -> list[dict[str, str | bool]]:
        return [
            {"name": name, "type": field.type.name, "nullable": field.nullable}
            for name, field in zip(self.value_names, self.value_schema.fields, strict=True)
        ]


def read_aliases(path: Path) -> dict[str, StoreAlias]:
    """Read aliases by default store name, from a TOML file."""
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise AliasError("there is no alias file", where=str(path), fix="Check the path of --aliases") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise AliasError(f"the alias file is not TOML ({error})", where=str(path)) from None
    return {name: _read_alias(path, name, table) for name, table in tables.items()}


def named_operators(aliases: Mapping[str, StoreAlias]) -> dict[int, str]:
    """Return the operators that aliases name, by number."""
    numbered = {name.removeprefix("op"): alias.operator for name, alias in aliases.items()}
    return {int(number): name for number, name in numbered.items() if name and number.isdecimal()}


def _read_alias(path: Path, name: str, table: object) -> StoreAlias:
    try:
        return StoreAlias.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        raise AliasError(
            f"the alias file is wrong: {first['msg']}",
            where=f"{path}: {'.'.join(map(str, (name, *first['loc'])))}",
            fix="A store has name, key, value, result, operator; a result has function, buffers, type",
        ) from None


def served_stores(
    description: CheckpointDescription, aliases: Mapping[str, StoreAlias]
) -> dict[StoreName, ServedStore]:
    """Return every store that can be served, by name. Raises AliasError for aliases that fit no store."""
    stores: dict[StoreName, ServedStore] = {}
    properties = description.properties
    placement = KeyPlacement.BY_HASH if properties is None else properties.placement
    operators = [(operator.operator_id, operator.operator_name) for operator in description.operators]
    parts = [
        (operator, part)
        for operator in description.operators
        for part in parts_of(operator, may_lag=may_stand_behind_join(operator.operator_id, operators))
    ]
    defaults = {part.default_name for _, part in parts}
    for operator in description.operators:
        defaults.update(
            name or f"op{operator.operator_id}" for name, _ in operator.refusals
        )  # a later release serves each of them as its own store
    chosen = Counter(alias.name for alias in aliases.values() if alias.name is not None)
    taken = Counter(part.short_name for _, part in parts) + chosen + Counter(defaults)
    for operator, part in parts:
        own = part.short_name if part.short_name and taken[part.short_name] == 1 else part.default_name
        served = _serve(operator, part, own, aliases.get(part.default_name, StoreAlias()), placement)
        if served.name in stores:
            raise AliasError(f"two stores are named {served.name!r}", fix="Give each store a name of its own")
        stores[served.name] = served
    unknown = sorted(aliases.keys() - defaults)
    if unknown:
        known = ", ".join(sorted(defaults)) or "none"
        raise AliasError(f"there is no store {unknown[0]!r} to give an alias to", fix=f"The checkpoint has: {known}")
    return stores


def _serve(
    operator: OperatorDescription, part: OperatorPart, own_name: str, alias: StoreAlias, placement: KeyPlacement
) -> ServedStore:
    """Return a part under the name of its alias, else under its own. In one partition there is one place for a key."""
    default, key_schema, value_schema = part.default_name, parse_schema(part.key_json), part.value
    key_names = _key_names(part, key_schema, alias.key)
    value_names = _names(default, "value", value_schema, alias.value)
    try:
        results = compile_results(alias.result, value_schema, value_names) if alias.result else None
    except ResultError as error:
        raise AliasError(error.what, where=f"alias of {default}, {error.where}", fix=error.fix) from None
    way = part.way(key_names, value_names, None if results is None else results.print)
    return ServedStore(
        name=StoreName(alias.name or own_name),
        operator_id=operator.operator_id,
        operator_name=operator.operator_name,
        kind=part.kind,
        store_name=part.store_name,
        codec=key_codec(
            key_schema,
            part.kind,
            names=key_names,
            num_hash_columns=part.num_group_columns,
            is_normalised=part.is_normalised,
            placement=placement if operator.partitions > 1 else KeyPlacement.BY_HASH,
        ),
        key_schema=key_schema,
        key_schema_json=part.key_json,
        value_schema=value_schema,
        value_names=value_names,
        schemas=part.schemas,
        result_types=() if results is None else results.types,
        unnamed=() if results is None else results.unused,
        print_found=way.print_found,
        make_finder=way.make_finder,
        is_normalised=part.is_normalised,
        window_expiry=part.window_expiry,
    )


def _key_names(part: OperatorPart, key_schema: StructType, alias: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names of a key's columns. For a map, an alias may name only the grouping key's."""
    if alias is not None and len(alias) == part.num_group_columns:
        own = unique_names([*alias, *(field.name for field in key_schema.fields[len(alias) :])])
        alias = (*alias, *own[len(alias) :])
    return _names(part.default_name, "key", key_schema, alias)


def _names(store: str, part: str, schema: StructType, alias: tuple[str, ...] | None) -> tuple[str, ...]:
    if alias is None:
        return unique_names([field.name for field in schema.fields])
    if len(alias) != len(schema.fields) or len(set(alias)) != len(alias):
        columns = ", ".join(f"{field.name} {field.type.name}" for field in schema.fields) or "none"
        raise AliasError(
            f"{len(alias)} {part} names ({', '.join(alias)}) for {len(schema.fields)} columns",
            where=f"alias of {store}",
            fix=f"Give one distinct name per column; the columns are: {columns}",
        )
    return alias


@dataclass(frozen=True, slots=True)
class Naming:
    """Aliases by default store name; the stores that the announcement names; why parts of it are left out."""

    aliases: Mapping[str, StoreAlias]
    announced: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def naming_of(
    description: CheckpointDescription, file: Mapping[str, StoreAlias], announcement: Announcement | None
) -> Naming:
    """Return the names for a checkpoint. An announcement of another query is ignored.

    Raises AliasError when the alias file itself does not fit.
    """
    served_stores(description, file)
    if announcement is None or announcement.query_id != description.query_id:
        return Naming(dict(file))
    aliases = dict(file)
    fitting: list[str] = []
    left_out: list[str] = []
    for announced in announcement.stores:
        try:
            said = _aliases(description, announced)
            merged = {**aliases, **{name: _merged(file.get(name, StoreAlias()), each) for name, each in said.items()}}
            served_stores(description, merged)
        except Exception as error:  # Stores are served without names that are wrong in any way.
            left_out.append(f"names for operator {announced.operator_id}: {error}")
        else:
            aliases = merged
            fitting += said
            left_out += [
                f"result {column.name} for operator {announced.operator_id}: this release has no {column.function}"
                for column in announced.result
                if not _is_known(column)
            ]
    return Naming(aliases, fitting, left_out)


def _aliases(description: CheckpointDescription, announced: AnnouncedStore) -> dict[str, StoreAlias]:
    """Return an operator's announced names, by default store name: sides of a join, or state variables, share them."""
    parts = {
        operator.operator_id: [part.default_name for part in parts_of(operator)]
        for operator in description.operators
        if len(operator.served) == len(operator.stores)
    }
    names = parts.get(announced.operator_id)
    if not names:
        known = [str(operator_id) for operator_id, found in parts.items() if found]
        raise AliasError(
            f"the query has no operator {announced.operator_id} that is served as a whole",
            fix=f"Operators that are: {', '.join(known) or 'none'}",
        )
    said = _alias(announced)
    if len(names) == 1:
        return {names[0]: said}
    if announced.value is not None or announced.result:
        raise AliasError("its stores have columns of their own", fix="Announce its name and its key")
    # `pairs.left`, for a join that is called `pairs`.
    sides = {name: None if said.name is None else f"{said.name}.{name.rpartition('.')[2]}" for name in names}
    return {name: StoreAlias(name=side, key=said.key) for name, side in sides.items()}


def _alias(announced: AnnouncedStore) -> StoreAlias:
    known = [column for column in announced.result if _is_known(column)]
    results = {
        column.name: ResultAlias(
            function=cast(ResultFunction, column.function), buffers=tuple(column.buffers), type=column.type
        )
        for column in known
    }
    if len(results) != len(known):
        raise AliasError("two result columns have one name", fix="Give each column a name of its own")
    return StoreAlias(
        name=announced.name,
        key=None if announced.key is None else tuple(announced.key),
        value=None if announced.value is None else tuple(announced.value),
        result=results or None,
    )


def _is_known(column: ResultColumn) -> bool:
    """Whether this release computes it: the pipeline may be of a later one."""
    return column.function in RESULT_FUNCTIONS


def _merged(file: StoreAlias, announced: StoreAlias) -> StoreAlias:
    """Take each part from the file, else from the announcement."""
    of_file = {part: getattr(file, part) for part in ("name", "key", "value", "result")}
    return announced.model_copy(update={part: said for part, said in of_file.items() if said is not None})
