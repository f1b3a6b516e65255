"""A checkpoint in memory with the stores that a test declares; each commit writes the files of one version."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from understudy_node.checkpoint.memory import MemoryFiles
from understudy_node.in_memory import spark_files
from understudy_shared.base.clock import Clock
from understudy_shared.spark.json_values import RowParser, compile_json_parser
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import StructType
from understudy_shared.spark.unsafe_row import RowEncoder, compile_row_encoder

Change = tuple[object, object]
"""The JSON of a key in exact form, and that of its value: an object by column, or None to delete the key."""


class StoreSchema(NamedTuple):
    """The columns of a store."""

    key: StructType
    value: StructType


class _Writer(NamedTuple):
    """The codecs of one store."""

    schema: StoreSchema
    codec: KeyCodec
    parse_value: RowParser
    encode_value: RowEncoder

    def record(self, change: Change, partitions: int) -> tuple[int, bytes, bytes | None]:
        """Return the partition of a change, and the bytes that Spark would write. Raises BadKeyError."""
        key, value = change
        row = self.codec.parse_json(key)
        stored = None if value is None else self.encode_value(self.parse_value(value))
        return self.codec.partition(row, partitions), self.codec.encode(row), stored


def _writer(schema: StoreSchema) -> _Writer:
    return _Writer(schema, KeyCodec(schema.key), compile_json_parser(schema.value), compile_row_encoder(schema.value))


class MemoryCheckpoint:
    """The checkpoint of a query that groups by each store's key: store N is operator N. One thread commits.

    `committed` is its last version.
    """

    def __init__(self, schemas: Sequence[StoreSchema], *, name: str, partitions: int, clock: Clock) -> None:
        self.files = MemoryFiles(name, clock)
        self.committed = 0
        self._writers = [_writer(each) for each in schemas]
        self._partitions = partitions
        self._clock = clock
        self._watermark_ms = 0
        described = {"metadata": spark_files.metadata_file(str(uuid.uuid4()))}
        for number, each in enumerate(schemas):
            described[f"state/{number}/_metadata/metadata"] = spark_files.operator_file(number, partitions)
            described[f"state/{number}/0/_metadata/schema"] = spark_files.schema_file(each.key, each.value)
        self.files.write(described)

    def commit(self, changes: Mapping[int, Sequence[Change]], watermark_ms: int | None = None) -> int:
        """Write the next version, with the changes of each store by its number, and return it.

        Raises BadKeyError for a key or a value that does not fit; nothing is written then.
        """
        version, batch = self.committed + 1, self.committed
        deltas: dict[str, bytes] = {}
        for number, writer in enumerate(self._writers):
            parts: list[list[tuple[bytes, bytes | None]]] = [[] for _ in range(self._partitions)]
            for change in changes.get(number, ()):
                partition, key, value = writer.record(change, self._partitions)
                parts[partition].append((key, value))
            for partition, records in enumerate(parts):
                deltas[f"state/{number}/{partition}/{version}.delta"] = spark_files.delta_file(records)
        before_ms, self._watermark_ms = self._watermark_ms, self._watermark_ms if watermark_ms is None else watermark_ms
        timestamp_ms = self._clock.wall_us() // 1000
        offsets = spark_files.offsets_file(self._partitions, watermark_ms=before_ms, timestamp_ms=timestamp_ms)
        commit = spark_files.commit_file(self._watermark_ms)
        self.files.write({f"offsets/{batch}": offsets, **deltas, f"commits/{batch}": commit})
        self.committed = version
        return version
