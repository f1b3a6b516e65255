"""Checkpoints made by hand, file by file and version by version: damage of every kind without a Spark to wait for.

Their content follows the counting rule of `counting_query`: at version V every word has been counted V times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.checkpoint import bytes as spark
from tests.support.spark.counting_query import WORDS

from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

KEY = StructType((Field("word", StringType()),))
VALUE = StructType((Field("count", LongType()), Field("total", LongType())))
_CODEC = KeyCodec(KEY)
_VALUE_BYTES = compile_row_encoder(VALUE)


def schema_json(*columns: tuple[str, str]) -> str:
    """Spark's JSON of a schema: `(name, type)` pairs."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    return json.dumps({"type": "struct", "fields": fields})


@dataclass(frozen=True, slots=True)
class HandmadeCheckpoint:
    """An aggregation by word. `provider` is the class in the offset log; RocksDB has changelogs only."""

    path: Path
    provider: str = spark.HDFS
    partitions: int = 2
    conf: dict[str, str] = field(default_factory=dict)
    key_columns: tuple[tuple[str, str], ...] = (("word", "string"),)
    watermark_ms: int = 0
    """What each version leaves to the next batch."""

    def create(self) -> HandmadeCheckpoint:
        """Write all of a checkpoint but its batches."""
        self.write("metadata", b'{"id":"11111111-2222-4333-8444-555555555555"}')
        self.write("state/0/_metadata/metadata", spark.operator_metadata(0))
        value = schema_json(("count", "long"), ("total", "long"))
        schema = spark.utf("v2") + spark.chunked(schema_json(*self.key_columns)) + spark.chunked(value)
        self.write("state/0/0/_metadata/schema", schema)
        return self

    def write(self, path: str, data: bytes) -> Path:
        """A file of the checkpoint, replaced as a whole, as Spark does it."""
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.draft")
        draft.write_bytes(data)
        return draft.replace(target)

    def changes(self, version: int, partition: int) -> bytes:
        """The content of a version's changelog of one partition."""
        # Stored, not compressed: a flipped bit then still decodes, and only checksums can tell.
        return spark.lz4(spark.plain(self._records(version, partition)), stored=True)

    def snapshot(self, version: int, partition: int) -> bytes:
        """The content of a snapshot of one partition: the same, because every version changes every word."""
        return self.changes(version, partition)

    def changelog_path(self, version: int, partition: int) -> str:
        kind = "delta" if self.provider == spark.HDFS else "changelog"
        return f"state/0/{partition}/{version}.{kind}"

    def snapshot_path(self, version: int, partition: int) -> str:
        return f"state/0/{partition}/{version}.snapshot"

    def write_state(self, version: int) -> None:
        """The state files of a version, and its offsets: everything before the commit."""
        offsets = spark.offsets(provider=self.provider, partitions=self.partitions, conf=self.conf)
        self.write(f"offsets/{version - 1}", offsets)
        for partition in range(self.partitions):
            self.write(self.changelog_path(version, partition), self.changes(version, partition))

    def commit(self, version: int) -> None:
        """The commit that makes the version final."""
        self.write(f"commits/{version - 1}", spark.commit(self.watermark_ms))

    def add(self, *versions: int) -> HandmadeCheckpoint:
        """Write whole versions and commit them."""
        for version in versions:
            self.write_state(version)
            self.commit(version)
        return self

    def counts(self, version: int) -> dict[str, int]:
        """How often each word was counted at a version."""
        return dict.fromkeys(WORDS, version) | {f"born-{batch}": version - batch for batch in range(version)}

    def _records(self, version: int, partition: int) -> list[spark.Record]:
        prefix = b"" if self.provider == spark.HDFS else b"\x00"
        counts = self.counts(version)
        return [
            (prefix + _CODEC.encode((word,)), prefix + _VALUE_BYTES((count, count * 1_000_000)))
            for word, count in counts.items()
            if _CODEC.partition((word,), self.partitions) == partition
        ]
