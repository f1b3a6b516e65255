"""Describes a checkpoint: its query, its last commit, its operators and stores with their schemas.

Rule: what cannot be served is named with the reason and what to do; an unsupported operator does not stop the others.
This module reads files through `CheckpointFiles`; the pure modules next to it judge the bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.logs import (
    CONTINUE,
    DEFAULT_STORE,
    MAX_LOG_BYTES,
    Commit,
    OffsetEntry,
    OperatorMetadata,
    StateProperties,
    StoreMetadata,
    batch_ids,
    choose_metadata_batch,
    no_offsets,
    parse_commit,
    parse_offsets,
    parse_operator_metadata,
    parse_query_id,
)
from understudy_node.checkpoint.opening import require_checkpoint
from understudy_node.checkpoint.operators import (
    AVRO,
    FAMILIES_FORMATS,
    JOIN,
    infer_operator,
    join_tables,
    refuse_codec,
    refuse_encoding,
    state_format_of,
    stores_of,
    why_unreadable,
    why_unsupported,
)
from understudy_node.checkpoint.schemas import ColumnFamilySchema, SchemaFile, parse_schema_file
from understudy_node.checkpoint.snapshots import parse_state_files
from understudy_node.checkpoint.state_variables import TIMERS, TRANSFORM, AvroHistory, StateVariable, state_variables
from understudy_shared.base.errors import CorruptFileError, UnsupportedError, VanishedError
from understudy_shared.base.words import Lineage
from understudy_shared.bus.messages import MAX_SCHEMAS
from understudy_shared.spark.types import StructType, VoidType, parse_schema

log = logging.getLogger(__name__)

NONE_NAMED: Final[Mapping[int, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """One store. `index` is its place in the commit log's unique ids. With an `unsupported` reason it is not served."""

    operator_id: int
    name: str
    index: int
    num_cols_prefix_key: int
    column_families: tuple[ColumnFamilySchema, ...]
    unsupported: UnsupportedError | None = None
    schema_files: tuple[SchemaFile, ...] = ()
    """All schema files of the checkpoint, oldest first. Records of Avro state may be written by each of them."""

    def directory(self, partition: int) -> str:
        return store_directory(self.operator_id, partition, self.name)


@dataclass(frozen=True, slots=True)
class OperatorDescription:
    """One stateful operator; with an `unsupported` reason it has no stores here and is not served."""

    operator_id: int
    operator_name: str
    partitions: int
    stores: tuple[StoreDescription, ...]
    unsupported: UnsupportedError | None
    state_format: str | None = None
    """The version of its state layout; None where the offset log does not say it."""
    variables: tuple[StateVariable, ...] = ()
    """State variables of `transformWithState`, as column families of one store."""
    inferred_from: str = ""
    """The reason why this operator was inferred, for state without metadata, which Spark 3.5 and older do not write."""

    @property
    def served(self) -> tuple[StoreDescription, ...]:
        """The stores that this release reads; an unreadable store keeps no other from being served."""
        return tuple(store for store in self.stores if store.unsupported is None)

    def default_name(self, store: StoreDescription) -> str:
        """Return `op{N}`, or `op{N}.{store}` for an operator of several stores."""
        return f"op{self.operator_id}" if len(self.stores) == 1 else f"op{self.operator_id}.{store.name}"

    def variable_name(self, variable: StateVariable) -> str:
        """Return `op{N}.{variable}`; timers are `op{N}.timers`, unless a variable is called so."""
        if variable.name not in TIMERS:
            return f"op{self.operator_id}.{variable.name}"
        is_taken = any(other.name == "timers" for other in self.variables)
        return f"op{self.operator_id}.{'$timers' if is_taken else 'timers'}"

    @property
    def refusals(self) -> tuple[tuple[str, UnsupportedError], ...]:
        """The reasons why it, or a part of it, is not served: the store's name, "" for the operator, and the error."""
        if self.unsupported is not None:
            return (("", self.unsupported),)
        stores = tuple(
            (self.default_name(store), store.unsupported) for store in self.stores if store.unsupported is not None
        )
        return stores or tuple(
            (self.variable_name(each), each.unsupported) for each in self.variables if each.unsupported is not None
        )


@dataclass(frozen=True, slots=True)
class CheckpointDescription:
    """A checkpoint at its last commit.

    Before the first commit `last_commit`, `format_version` and `retained_versions` are `None`, and `operators` may be
    empty. `changelogs` is whether RocksDB wrote changelogs lately (`None`: not RocksDB, or no files yet).
    `retained_versions` are the first and the last version that still have their commit.
    """

    url: str
    query_id: Lineage
    last_commit: Commit | None
    offsets: OffsetEntry | None
    operators: tuple[OperatorDescription, ...]
    format_version: Literal[1, 2] | None
    changelogs: bool | None
    retained_versions: tuple[int, int] | None

    @property
    def properties(self) -> StateProperties | None:
        """Provider, codec, row checksums, ... of the last batch."""
        return None if self.offsets is None else self.offsets.properties


def store_directory(operator_id: int, partition: int, store_name: str) -> str:
    """Return the directory of a store partition's files, relative to the checkpoint."""
    base = f"state/{operator_id}/{partition}"
    return base if store_name == DEFAULT_STORE else f"{base}/{store_name}"


def describe(files: CheckpointFiles, named: Mapping[int, str] = NONE_NAMED) -> CheckpointDescription:
    """Describe a checkpoint; raise `NotACheckpointError`, or `UnsupportedError` when no operator can be served. `named`
    are operators given by the user, by number, for those that cannot be inferred.
    """
    require_checkpoint(files)
    query_id = parse_query_id(files.read("metadata", MAX_LOG_BYTES))
    commits = batch_ids(files.list("commits") or [])
    last_commit = None
    if commits:
        last_commit = parse_commit(files.read(f"commits/{commits[-1]}", MAX_LOG_BYTES), commits[-1])
    offsets = _read_offsets(files, last_commit)
    has_committed = last_commit is not None
    operators = () if offsets is None else _describe_operators(files, offsets, named, has_committed=has_committed)
    if last_commit is not None and not operators:
        raise UnsupportedError(
            "The query keeps no state",
            where=files.url,
            fix="Only stateful queries can be looked up: add an aggregation, or query the sink instead",
        )
    if operators and not any(operator.served for operator in operators):
        raise _refusal_of_all(operators, files.url)
    changelogs = _writes_changelogs(files, offsets, operators)
    if offsets is not None and (offsets.properties.provider == "hdfs" or changelogs):
        refuse_codec(offsets.properties.codec, where=files.url)
    return CheckpointDescription(
        url=files.url,
        query_id=query_id,
        last_commit=last_commit,
        offsets=offsets,
        operators=operators,
        format_version=None if last_commit is None else (1 if last_commit.unique_ids is None else 2),
        changelogs=changelogs,
        retained_versions=(commits[0] + 1, commits[-1] + 1) if commits else None,
    )


def _read_offsets(files: CheckpointFiles, last_commit: Commit | None) -> OffsetEntry | None:
    """Read the committed batch's offsets; before the first commit the running batch's."""
    started = batch_ids(files.list("offsets") or []) if last_commit is None else [last_commit.batch_id]
    if not started:
        return None
    try:
        return parse_offsets(files.read(f"offsets/{started[-1]}", MAX_LOG_BYTES), started[-1])
    except VanishedError as error:
        raise (error if last_commit is None else no_offsets(last_commit.batch_id, files.url)) from None


def _describe_operators(
    files: CheckpointFiles, offsets: OffsetEntry, named: Mapping[int, str], *, has_committed: bool
) -> tuple[OperatorDescription, ...]:
    """Describe the operators; before the first commit only those with metadata: the first batch writes it, or what it
    is inferred from.
    """
    refuse_encoding(offsets.properties.encoding_format, where=files.url)
    return tuple(
        _describe_operator(files, operator_id, offsets, named.get(operator_id))
        for operator_id in batch_ids(files.list("state") or [])
        if has_committed or any(files.stats([_metadata_path(files, operator_id, offsets)]))
    )


def _describe_operator(
    files: CheckpointFiles, operator_id: int, offsets: OffsetEntry, named: str | None
) -> OperatorDescription:
    where = f"{files.url}/state/{operator_id}"
    try:
        metadata = _read_metadata(files, operator_id, offsets, named)
    except UnsupportedError as error:
        return OperatorDescription(operator_id, "unknown", offsets.properties.shuffle_partitions, (), error)
    unsupported = why_unsupported(operator_id, metadata.operator_name, offsets, where=where)
    state_format = state_format_of(metadata.operator_name, offsets.conf)
    variables: tuple[StateVariable, ...] = ()
    is_avro = offsets.properties.encoding_format == AVRO
    stores = (
        tuple(
            _describe_store(files, metadata, state_format, index, store, is_avro=is_avro)
            for index, store in enumerate(metadata.stores)
        )
        if unsupported is None
        else ()
    )
    if metadata.operator_name == JOIN and unsupported is None:
        unsupported = _why_incomplete(stores, state_format, where)
        stores = stores if unsupported is None else ()
    if metadata.operator_name in TRANSFORM and unsupported is None:
        stores, variables = _with_variables(stores, metadata, offsets.properties, where)
    served = [store for store in stores if store.unsupported is None]
    # Without key columns everything is in partition 0, whatever the number of shuffle partitions.
    schemas = [family.key_schema for store in served for family in store.column_families]
    # A limit has one key column, which is always null.
    has_key = any(not isinstance(field.type, VoidType) for text in schemas for field in parse_schema(text).fields)
    return OperatorDescription(
        operator_id=operator_id,
        operator_name=metadata.operator_name,
        partitions=1 if served and not has_key else offsets.properties.shuffle_partitions,
        stores=stores,
        unsupported=unsupported,
        state_format=state_format,
        variables=variables,
        inferred_from=metadata.inferred_from,
    )


def _read_metadata(
    files: CheckpointFiles, operator_id: int, offsets: OffsetEntry, named: str | None
) -> OperatorMetadata:
    path = _metadata_path(files, operator_id, offsets)
    try:
        data = files.read(path, MAX_LOG_BYTES)
    except VanishedError:
        return _infer_metadata(files, operator_id, offsets, named)
    metadata = parse_operator_metadata(data, name=path)
    if metadata.operator_id != operator_id:
        raise CorruptFileError(f"The metadata belongs to operator {metadata.operator_id}", where=f"{files.url}/{path}")
    return metadata


def _metadata_path(files: CheckpointFiles, operator_id: int, offsets: OffsetEntry) -> str:
    base = f"state/{operator_id}/_metadata"
    batch = choose_metadata_batch(files.list(f"{base}/v2") or [], at_most_batch_id=offsets.batch_id)
    return f"{base}/metadata" if batch is None else f"{base}/v2/{batch}"


def _infer_metadata(
    files: CheckpointFiles, operator_id: int, offsets: OffsetEntry, named: str | None
) -> OperatorMetadata:
    """Return what the metadata would say, by the schema files of Spark 3.1 and later."""
    stores: dict[str, tuple[StructType, StructType]] = {}
    for store in stores_of(files.list(f"state/{operator_id}/0") or []):
        path = _schema_path(operator_id, store)
        try:
            (family,) = parse_schema_file(files.read(path, MAX_LOG_BYTES), name=path)
        except VanishedError as error:
            raise UnsupportedError(
                f"Operator {operator_id} has neither metadata nor a schema: Spark 3.0 and older write neither",
                where=f"{files.url}/{path}",
                fix=CONTINUE,
            ) from error
        stores[store] = (parse_schema(family.key_schema), parse_schema(family.value_schema))
    where = f"{files.url}/state/{operator_id}"
    return infer_operator(operator_id, stores, offsets.conf, named=named, where=where)


def _schema_path(operator_id: int, store_name: str) -> str:
    """Return the schema file of a store where the metadata does not name one."""
    return f"{store_directory(operator_id, 0, store_name)}/_metadata/schema"


def _describe_store(
    files: CheckpointFiles,
    operator: OperatorMetadata,
    state_format: str | None,
    index: int,
    store: StoreMetadata,
    *,
    is_avro: bool,
) -> StoreDescription:
    operator_id = operator.operator_id
    if store.schema_file_names:
        path = f"state/{operator_id}/_stateSchema/{store.name}/{store.schema_file_names[-1]}"
    else:
        path = _schema_path(operator_id, store.name)
    families: tuple[ColumnFamilySchema, ...] = ()
    schema_files: tuple[SchemaFile, ...] = ()
    unsupported: UnsupportedError | None
    try:
        families = parse_schema_file(files.read(path, MAX_LOG_BYTES), name=path)
        before = _schemas_before(files, operator_id, store, are_needed=is_avro)
        schema_files = (*before, SchemaFile(path.rpartition("/")[2], families))
        unsupported = why_unreadable(
            families,
            operator.operator_name,
            state_format,
            table=store.name,
            num_cols_prefix_key=store.num_cols_prefix_key,
            where=f"{files.url}/{path}",
        )
    except UnsupportedError as error:
        unsupported = error
    return StoreDescription(
        operator_id, store.name, index, store.num_cols_prefix_key, families, unsupported, schema_files
    )


def _schemas_before(
    files: CheckpointFiles, operator_id: int, store: StoreMetadata, *, are_needed: bool
) -> tuple[SchemaFile, ...]:
    """Read all but the newest file, oldest first. If no record depends on them they are only shown: then the newest
    readable ones suffice.
    """
    found = []
    for name in store.schema_file_names[:-1] if are_needed else store.schema_file_names[-MAX_SCHEMAS:-1]:
        path = f"state/{operator_id}/_stateSchema/{store.name}/{name}"
        try:
            found.append(SchemaFile(name, parse_schema_file(files.read(path, MAX_LOG_BYTES), name=path)))
        except (VanishedError, CorruptFileError, UnsupportedError) as error:
            if not are_needed:
                log.warning(
                    "the history of schemas is shown without a file: %s", error, extra={"action": "schema-unread"}
                )
                continue
            if not isinstance(error, VanishedError):
                raise
            raise UnsupportedError(
                "A schema file is gone, and records may be written by it",
                where=f"{files.url}/{path}",
                fix="Copy it from where the checkpoint was, or start the query on a new one",
            ) from error
    return tuple(found)


def _with_variables(
    stores: tuple[StoreDescription, ...], metadata: OperatorMetadata, properties: StateProperties, where: str
) -> tuple[tuple[StoreDescription, ...], tuple[StateVariable, ...]]:
    """Return the one store of `transformWithState`, and its variables; without any served one, refuse the store."""
    if len(stores) != 1:
        what, fix = f"It has {len(stores)} stores, and one is read", "A newer Spark wrote it: use a newer Understudy"
        reason = UnsupportedError(what, where=where, fix=fix)
        return tuple(replace(store, unsupported=reason) for store in stores), ()
    (store,) = stores
    if store.unsupported is not None:
        return stores, ()
    avro = None
    if properties.encoding_format == AVRO:
        avro = AvroHistory(store.schema_files, where, properties.merge_delimiter)
    variables = state_variables(metadata.properties, store.column_families, where=where, avro=avro)
    reasons = [each.unsupported for each in variables if each.unsupported is not None]
    if len(reasons) < len(variables):
        return stores, variables
    none = UnsupportedError("It has no state variables", where=where, fix="Nothing of it can be looked up")
    return (replace(store, unsupported=reasons[0] if reasons else none),), variables


def _why_incomplete(
    stores: tuple[StoreDescription, ...], state_format: str | None, where: str
) -> UnsupportedError | None:
    """Return why the sides of a join cannot be read: each of them takes two tables."""
    if state_format in FAMILIES_FORMATS:
        found = {family.name for store in stores for family in store.column_families}
    else:
        found = {store.name for store in stores}
    missing = join_tables(state_format) - found
    if missing:
        fix = "A newer Spark wrote it: use a newer Understudy"
        return UnsupportedError(f"The join has no table {min(missing)}", where=where, fix=fix)
    for store in stores:
        if store.unsupported is not None:
            reason = store.unsupported
            return UnsupportedError(
                f"Store {store.name} of the join: {reason.what}", where=reason.where, fix=reason.fix
            )
    return None


def _writes_changelogs(
    files: CheckpointFiles, offsets: OffsetEntry | None, operators: tuple[OperatorDescription, ...]
) -> bool | None:
    """Whether RocksDB writes changelogs, by the newest file of the first store: Spark does not record the setting."""
    if offsets is None or offsets.properties.provider != "rocksdb":
        return None
    for operator in operators:
        for store in operator.stores:
            found = parse_state_files(files.list(store.directory(0)) or [])
            if found:
                return any(file.kind == "changelog" for file in found if file.version == found[-1].version)
    return None


def _refusal_of_all(operators: tuple[OperatorDescription, ...], url: str) -> UnsupportedError:
    reasons = [reason for operator in operators for _, reason in operator.refusals]
    if len(reasons) == 1:
        return reasons[0]
    fixes = dict.fromkeys(reason.fix for reason in reasons)
    return UnsupportedError("; ".join(reason.what for reason in reasons), where=url, fix=". ".join(fixes))
