"""Small stores in the formats that the engine opens, made without Spark."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict

from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.arena_build import build_arena


def write_rocksdb(directory: Path, records: Mapping[bytes, bytes], *, tables: int = 1) -> Path:
    """A RocksDB as Spark lays it out (LZ4, 4 KiB blocks, bloom filter), in about `tables` files."""
    table = BlockBasedOptions()
    table.set_bloom_filter(10, block_based=False)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_disable_auto_compactions(True)
    database = Rdict(str(directory), options)
    for part in range(tables):
        for number, (key, value) in enumerate(records.items()):
            if number % tables == part:
                database[key] = value
        database.flush()
    database.close()
    return directory


def hdfs_snapshot(records: Mapping[bytes, bytes]) -> bytes:
    """The decompressed bytes of an HDFS-backed provider's `.snapshot`."""
    framed = (
        struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value for key, value in records.items()
    )
    return b"".join([*framed, struct.pack(">i", -1)])


def built_arena(directory: Path, pieces: Iterable[bytes | memoryview]) -> ArenaBase:
    """Build an arena in one go, and open it."""
    for _ in build_arena(directory, pieces):
        pass
    return ArenaBase.open(directory)
