"""Parses the checkpoint's own logs: `metadata`, `commits/<batch>`, `offsets/<batch>`, and the metadata of operators.

The commit log is the authority on what is final: batch N's commit makes state version N+1. The offset log carries the
settings under which that batch ran, so both are read per batch: a restart may change any of them. Rule: a field is
present with the required type, or the file is corrupt; nothing is guessed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

import orjson

from understudy_shared.base.errors import CheckpointError, CorruptFileError, UnsupportedError
from understudy_shared.base.words import KeyPlacement, Lineage

Json = Mapping[str, Any]
T = TypeVar("T")


def parse_document(data: bytes, *, name: str, tags: Sequence[str]) -> Json:
    """Parse a line `v<number>`, which is one of `tags`, and the JSON object after it.

    A newer tag is unsupported, anything else is corrupt.
    """
    _refuse_empty(data, name=name)
    try:
        tag, _, remainder = data.decode().partition("\n")
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"Not text: {error.reason}", where=f"{name}, byte {error.start}") from error
    if not re.fullmatch(r"v\d+", tag):
        raise CorruptFileError("Does not start with a version line such as 'v1'", where=name)
    if tag not in tags:
        raise UnsupportedError(
            f"Version {tag} of this file is not supported",
            where=name,
            fix=f"Supported: {', '.join(tags)}. A newer Spark wrote it: use a newer Understudy",
        )
    return parse_object(remainder.partition("\n")[0].encode(), name=name)


def parse_object(data: bytes, *, name: str) -> Json:
    return checked(parse_json(data, name=name), dict, "the JSON text", name=name)


def parse_json(data: bytes, *, name: str) -> object:
    _refuse_empty(data, name=name)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CorruptFileError(f"Not JSON: {error}", where=name) from error


def _refuse_empty(data: bytes, *, name: str) -> None:
    if not data:
        raise CorruptFileError(
            "The file is empty: it has 0 bytes",
            where=name,
            fix="Its write or its copy was cut off: put the file back, or copy the checkpoint again",
        )


def field(body: Json, key: str, kind: type[T], *, name: str) -> T:
    """Return a required field of the given type."""
    return checked(body.get(key), kind, repr(key), name=name)


def checked(value: object, kind: type[T], what: str, *, name: str) -> T:
    """Return `value` if it is a `kind` (a boolean is not an integer), else the file is corrupt."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CorruptFileError(f"{what} should be {kind.__name__}, but is {type(value).__name__}", where=name)
    return value


Provider = Literal["hdfs", "rocksdb"]
UniqueIds = Mapping[int, tuple[tuple[str, ...], ...]]

PROVIDERS: Final[Mapping[str, Provider]] = MappingProxyType(
    {
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider": "hdfs",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider": "rocksdb",
    }
)

_CODEC_CLASSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "org.apache.spark.io.LZ4CompressionCodec": "lz4",
        "org.apache.spark.io.ZStdCompressionCodec": "zstd",
        "org.apache.spark.io.SnappyCompressionCodec": "snappy",
        "org.apache.spark.io.LZFCompressionCodec": "lzf",
    }
)
MAX_LOG_BYTES: Final = 16 << 20
"""Limit on one file of metadata that is read into memory. In format v2 a commit has 40 bytes for each store of each
partition: 10,000 partitions of a join are 1.6 MB.
"""

COPY_AGAIN: Final = (
    "Put it back, or copy the checkpoint again: the folder `commits` first, then all others, or all of it while the "
    "query is stopped"
)

CONTINUE: Final = (
    "Continue the query on Spark 3.1 or later: its first batch on this checkpoint writes the schema of its state"
)
"""The advice for a checkpoint of an earlier Spark."""

UNSAFE_ROW: Final = "unsaferow"
_STORE = "spark.sql.streaming.stateStore."
_BATCH_ID = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of the commit log. `unique_ids[operator][partition][store index]`: format v2 only, else `None`."""

    batch_id: int
    next_watermark_ms: int
    unique_ids: UniqueIds | None


@dataclass(frozen=True, slots=True)
class StateProperties:
    provider: Provider
    codec: str
    encoding_format: str
    row_checksum: bool
    merge_operator_version: int
    shuffle_partitions: int
    placement: KeyPlacement

    @property
    def merge_delimiter(self) -> bytes:
        """The bytes that RocksDB puts between two values merged under one key."""
        return b"," if self.merge_operator_version == 1 else b""


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """One entry of the offset log; `watermark_ms` is the watermark that the batch ran with."""

    batch_id: int
    watermark_ms: int
    conf: Mapping[str, str]
    properties: StateProperties


def batch_ids(names: Iterable[str]) -> list[int]:
    """List the batches in a listing of `commits`, `offsets` or operator metadata, ascending.

    Temporary files, checksums and compacted entries are not batches.
    """
    return sorted(int(name) for name in names if _BATCH_ID.fullmatch(name))


def parse_query_id(data: bytes) -> Lineage:
    """Parse the id of the query: it changes when the checkpoint is created anew."""
    query_id = field(parse_object(data, name="metadata"), "id", str, name="metadata")
    if not query_id:
        raise CorruptFileError("The query's id is empty", where="metadata")
    return Lineage(query_id)


def parse_commit(data: bytes, batch_id: int) -> Commit:
    """Parse `commits/<batch_id>`. Spark 2.3 and older write an empty object."""
    name = f"commits/{batch_id}"
    body = parse_document(data, name=name, tags=("v1", "v2", "v3"))
    return Commit(
        batch_id=batch_id,
        next_watermark_ms=field({"nextBatchWatermarkMs": 0, **body}, "nextBatchWatermarkMs", int, name=name),
        unique_ids=_unique_ids(body, name=name),
    )


def no_offsets(batch_id: int, url: str) -> CheckpointError:
    """Make the error for the newest commit without its offsets, which Spark writes first and removes last."""
    return CheckpointError(
        f"commits/{batch_id} is the newest commit, and offsets/{batch_id} is missing: the checkpoint was copied while "
        "it was written, in the wrong order, or the file was deleted",
        where=url,
        fix=COPY_AGAIN,
    )


def _unique_ids(body: Json, *, name: str) -> UniqueIds | None:
    if not body.get("stateUniqueIds"):  # Spark 4.0 writes an empty object in format v1, too
        return None
    operators: dict[int, tuple[tuple[str, ...], ...]] = {}
    for operator, partitions in field(body, "stateUniqueIds", dict, name=name).items():
        if not _BATCH_ID.fullmatch(operator):
            raise CorruptFileError(f"Operator id {operator!r} in stateUniqueIds is not a number", where=name)
        operators[int(operator)] = tuple(
            tuple(
                checked(unique_id, str, "an id in stateUniqueIds", name=name)
                for unique_id in checked(stores, list, "a partition in stateUniqueIds", name=name)
            )
            for stores in checked(partitions, list, "an operator in stateUniqueIds", name=name)
        )
    return MappingProxyType(operators)


def parse_offsets(data: bytes, batch_id: int) -> OffsetEntry:
    """Parse `offsets/<batch_id>`, but not the sources' own offsets."""
    name = f"offsets/{batch_id}"
    body = parse_document(data, name=name, tags=("v1", "v2"))
    if body.get("conf") is None:
        raise UnsupportedError(
            "The offset log of Spark 2.1 and older has no settings, so the number of partitions is not known",
            where=name,
            fix=CONTINUE,
        )
    conf = {
        key: checked(value, str, repr(key), name=name) for key, value in field(body, "conf", dict, name=name).items()
    }
    return OffsetEntry(
        batch_id=batch_id,
        watermark_ms=field(body, "batchWatermarkMs", int, name=name),
        conf=MappingProxyType(conf),
        properties=_state_properties(conf, name=name),
    )


def _state_properties(conf: Mapping[str, str], *, name: str) -> StateProperties:
    """Read the settings. A missing one has the value that Spark used before it recorded that setting."""
    provider_class = conf.get(_STORE + "providerClass", next(iter(PROVIDERS)))
    if provider_class not in PROVIDERS:
        raise UnsupportedError(
            f"State store provider {provider_class} is not supported",
            where=name,
            fix=f"Supported: {', '.join(PROVIDERS)}. The provider is fixed when a checkpoint is created: start the "
            "query with one of these on a new checkpoint",
        )
    provider = PROVIDERS[provider_class]
    codec = conf.get(_STORE + "compression.codec", "lz4")
    return StateProperties(
        provider=provider,
        # Spark accepts a codec's short name and its class.
        codec=_CODEC_CLASSES.get(codec, codec.lower()),
        # The HDFS-backed provider writes rows, whatever the setting says.
        encoding_format=conf.get(_STORE + "encodingFormat", UNSAFE_ROW).lower()
        if provider == "rocksdb"
        else UNSAFE_ROW,
        row_checksum=_boolean(conf, _STORE + "rowChecksum.enabled", name=name),
        merge_operator_version=_integer(conf, _STORE + "rocksdb.mergeOperatorVersion", "1", name=name),
        shuffle_partitions=_integer(conf, "spark.sql.shuffle.partitions", None, name=name),
        placement=_placement(conf),
    )


def _placement(conf: Mapping[str, str]) -> KeyPlacement:
    """Return how the keys of all state of the query are placed (SPARK-38204).

    Spark before 3.2.2 and 3.3 lacks the setting, and accepted a shuffle by some of the key columns. Later releases keep
    doing so with a checkpoint that lacks it, and write `false`. A query that began with `true` had it from its first
    batch, so the newest entry speaks for all that came before.
    """
    is_strict = conf.get("spark.sql.streaming.statefulOperator.useStrictDistribution", "").strip().lower() == "true"
    return KeyPlacement.BY_HASH if is_strict else KeyPlacement.SCATTERED


def _integer(conf: Mapping[str, str], key: str, default: str | None, *, name: str) -> int:
    text = conf.get(key, default)
    if text is None or not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise CorruptFileError(f"{key} should be a positive number, but is {text!r}", where=name)
    return int(text)


def _boolean(conf: Mapping[str, str], key: str, *, name: str) -> bool:
    text = conf.get(key, "false").lower()
    if text not in {"true", "false"}:
        raise CorruptFileError(f"{key} should be true or false, but is {text!r}", where=name)
    return text == "true"


DEFAULT_STORE = "default"
"""The store with its files directly in the partition's directory."""


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
    """The reason why this operator was inferred."""


def choose_metadata_batch(names: Iterable[str], *, at_most_batch_id: int) -> int | None:
    """Choose the file of `_metadata/v2` that describes the operator at a batch: the newest one not after it."""
    return max((batch for batch in batch_ids(names) if batch <= at_most_batch_id), default=None)


def parse_operator_metadata(data: bytes, *, name: str) -> OperatorMetadata:
    """Parse a v1 or v2 operator metadata file."""
    body = parse_document(data, name=name, tags=("v1", "v2"))
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
            "A preview of Spark 4.0 wrote this metadata; its schema files differ in form from the releases'",
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
