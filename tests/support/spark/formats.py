"""The ways in which Spark can write a state store's files, as values that tests are parametrised by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tests.support.spark.session import CHECKPOINT_MANAGER_CONF, QUICK_CHECKPOINT_MANAGER

Provider = Literal["hdfs", "rocksdb"]
Codec = Literal["lz4", "zstd", "snappy"]
Encoding = Literal["unsaferow", "avro"]
CheckpointManager = Literal["default", "filesystem"]

_STATE = "org.apache.spark.sql.execution.streaming.state"
_PROVIDER_CLASS: dict[Provider, str] = {
    "hdfs": f"{_STATE}.HDFSBackedStateStoreProvider",
    "rocksdb": f"{_STATE}.RocksDBStateStoreProvider",
}
_STORE = "spark.sql.streaming.stateStore"


@dataclass(frozen=True, slots=True)
class StateFormat:
    """One combination of settings that decides which bytes a checkpoint is made of."""

    provider: Provider
    changelog: bool = False
    format_version: Literal[1, 2] = 1
    codec: Codec = "lz4"
    row_checksum: bool = False
    checkpoint_manager: CheckpointManager = "filesystem"
    encoding: Encoding = "unsaferow"

    def __post_init__(self) -> None:
        if self.provider == "hdfs" and (self.format_version != 1 or self.changelog):
            raise ValueError("Spark has neither checkpoint format 2 nor a changelog for the HDFS-backed provider")

    @property
    def id(self) -> str:
        """Readable in a test's name: what differs from Spark's defaults."""
        parts = [self.provider, *(["changelog"] if self.changelog else []), f"v{self.format_version}"]
        parts += [] if self.codec == "lz4" else [self.codec]
        parts += ["checksum"] if self.row_checksum else []
        parts += [self.encoding] if self.encoding == "avro" else []
        parts += ["default-manager"] if self.checkpoint_manager == "default" else []
        return "-".join(parts)

    def with_default_manager(self) -> StateFormat:
        """The same with Spark's own checkpoint manager: the one to crash with (tests/support/spark/crash.py)."""
        return replace(self, checkpoint_manager="default")

    def conf(self) -> dict[str, str | None]:
        """Settings of the query; `None` is Spark's default."""
        return {
            f"{_STORE}.providerClass": _PROVIDER_CLASS[self.provider],
            f"{_STORE}.compression.codec": self.codec,
            f"{_STORE}.checkpointFormatVersion": str(self.format_version),
            f"{_STORE}.encodingFormat": self.encoding,
            f"{_STORE}.rowChecksum.enabled": str(self.row_checksum).lower(),
            f"{_STORE}.rocksdb.changelogCheckpointing.enabled": str(self.changelog).lower(),
            CHECKPOINT_MANAGER_CONF: QUICK_CHECKPOINT_MANAGER if self.checkpoint_manager == "filesystem" else None,
        }


HDFS_V1 = StateFormat("hdfs")
ROCKSDB_V1 = StateFormat("rocksdb")
ROCKSDB_CHANGELOG_V1 = StateFormat("rocksdb", changelog=True)
ROCKSDB_V2 = StateFormat("rocksdb", format_version=2)
ROCKSDB_CHANGELOG_V2 = StateFormat("rocksdb", changelog=True, format_version=2)

STATE_FORMATS_CI = (HDFS_V1, ROCKSDB_CHANGELOG_V2)
"""One of each provider: every run checks every shape of state with these. The others differ in which files there are
and how they are called: tests of hazards, restarts and crashes have cases of them."""

STATE_FORMATS_FULL = (
    HDFS_V1,
    replace(HDFS_V1, codec="zstd", row_checksum=True),
    replace(HDFS_V1, codec="snappy").with_default_manager(),
    replace(ROCKSDB_CHANGELOG_V1, row_checksum=True),
    replace(ROCKSDB_CHANGELOG_V1, codec="zstd"),
    replace(ROCKSDB_CHANGELOG_V1, codec="snappy"),
    ROCKSDB_CHANGELOG_V2,
    replace(ROCKSDB_CHANGELOG_V2, codec="zstd").with_default_manager(),
    replace(ROCKSDB_CHANGELOG_V2, codec="snappy", row_checksum=True),
    # RocksDB without changelogs writes snapshots alone, which are ZIP files whatever the codec is.
    ROCKSDB_V1,
    replace(ROCKSDB_V1, row_checksum=True),
    ROCKSDB_V2,
    replace(ROCKSDB_V2, row_checksum=True),
)
"""Every pair of a layout, a codec, and row checksums or none; and Spark's own checkpoint manager. All triples would
prove no more: a checksum is a part of a row, and a codec compresses the stream of rows without knowing one.
"""
