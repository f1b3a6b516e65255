"""Parses operator metadata: which stateful operators a query has, and which stores each of them keeps.

Spark writes v1 once (`_metadata/metadata` of the operator) and v2 per change (`_metadata/v2/<batch>`). Schema files are
recorded as absolute URIs of the writer; only their base names are kept, so that a moved checkpoint still reads. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from understudy_node.checkpoint.documents import Json, checked, field, parse_document, parse_object
from understudy_node.checkpoint.logs import batch_ids
from understudy_shared.base.errors import CorruptFileError, UnsupportedError

DEFAULT_STORE = "default"
"""The store whose files lie directly in the partition's directory."""


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """One store of an operator. `schema_file_names` are in `_stateSchema`, newest last; empty for metadata v1.

    Its number of partitions is not read: it may be stale after an offline repartition, and the offset log has it.
    """

    name: str
    num_cols_prefix_key: int
    schema_file_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorMetadata:
    """One stateful operator; `stores` are in the order of the unique ids in the commit log."""

    operator_id: int
    operator_name: str
    stores: tuple[StoreMetadata, ...]
    properties: Mapping[str, object]
    inferred_from: str = ""
    """The reason why this operator was inferred, for state without metadata (`inference`)."""


def choose_metadata_batch(names: Iterable[str], *, at_most_batch_id: int) -> int | None:
    """Choose the file of `_metadata/v2` that describes the operator at a batch: the newest one not after it."""
    return max((batch for batch in batch_ids(names) if batch <= at_most_batch_id), default=None)


def parse_operator_metadata(data: bytes, *, name: str) -> OperatorMetadata:
    """Parse a v1 or v2 operator metadata file."""
    body = parse_document(data, name=name, tags=("v1", "v2")).body
    operator = field(body, "operatorInfo", dict, name=name)
    stores = field(body, "stateStoreInfo", list, name=name)
    if not stores:
        raise CorruptFileError("The operator has no stores", where=name)
    properties = checked(body.get("operatorPropertiesJson") or "{}", str, "'operatorPropertiesJson'", name=name)
    return OperatorMetadata(
        operator_id=field(operator, "operatorId", int, name=name),
        operator_name=field(operator, "operatorName", str, name=name),
        stores=tuple(_store(checked(store, dict, "a store", name=name), name=name) for store in stores),
        properties=MappingProxyType(dict(parse_object(properties.encode(), name=name))),
    )


def _store(body: Json, *, name: str) -> StoreMetadata:
    if "stateSchemaFilePath" in body:
        raise UnsupportedError(
            "A preview of Spark 4.0 wrote this metadata, whose schema files have another form than those of releases",
            where=name,
            fix="Start the query on a new checkpoint, with a release of Spark",
        )
    paths = checked(body.get("stateSchemaFilePaths") or [], list, "'stateSchemaFilePaths'", name=name)
    return StoreMetadata(
        name=_directory_name(field(body, "storeName", str, name=name), name=name),
        num_cols_prefix_key=field(body, "numColsPrefixKey", int, name=name),
        schema_file_names=tuple(
            _directory_name(checked(path, str, "a schema path", name=name).rpartition("/")[2], name=name)
            for path in paths
        ),
    )


def _directory_name(text: str, *, name: str) -> str:
    """Check a name that becomes one component of a path."""
    if not text or "/" in text or text in {".", ".."}:
        raise CorruptFileError(f"{text!r} is not a valid name of a store or a file", where=name)
    return text
