"""The bytes of a checkpoint's files as Spark writes them, of the HDFS-backed provider (pure)."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import cramjam
import orjson

from understudy_node.checkpoint.logs import PROVIDERS
from understudy_shared.spark.schema_json import schema_json
from understudy_shared.spark.types import StructType

AGGREGATION = "stateStoreSave"
"""The operator of a grouped aggregation: one value for each key."""

_MAX_UTF_BYTES = 65_535
"""Longest text of Java's `writeUTF`; Spark cuts longer schemas."""

_HDFS = next(name for name, provider in PROVIDERS.items() if provider == "hdfs")
_END_OF_RECORDS = struct.pack(">i", -1)

Records = Iterable[tuple[bytes, bytes | None]]
"""Encoded keys and values; without a value the key is deleted."""


def metadata_file(query_id: str) -> bytes:
    """Return the file with the id of the query."""
    return orjson.dumps({"id": query_id})


def offsets_file(partitions: int, *, watermark_ms: int, timestamp_ms: int) -> bytes:
    """Return the entry of the offset log that says how a batch writes its state."""
    conf = {
        "spark.sql.streaming.stateStore.providerClass": _HDFS,
        "spark.sql.streaming.stateStore.compression.codec": "zstd",
        "spark.sql.streaming.aggregation.stateFormatVersion": "2",
        "spark.sql.shuffle.partitions": str(partitions),
    }
    body = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": timestamp_ms, "conf": conf}
    return b"v1\n%b\n{}" % orjson.dumps(body)


def commit_file(watermark_ms: int) -> bytes:
    """Return the entry of the commit log that makes a batch final."""
    return b"v1\n%b" % orjson.dumps({"nextBatchWatermarkMs": watermark_ms})


def operator_file(operator_id: int, partitions: int) -> bytes:
    """Return the metadata of an aggregation."""
    body = {
        "operatorInfo": {"operatorId": operator_id, "operatorName": AGGREGATION},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}],
    }
    return b"v1\n%b" % orjson.dumps(body)


def schema_file(key: StructType, value: StructType) -> bytes:
    """Return the schemas of a store."""
    return _utf(b"v2") + _chunked(schema_json(key)) + _chunked(schema_json(value))


def delta_file(records: Records) -> bytes:
    """Return the changes of a version."""
    sized = b"".join(_sized(key) + _sized(value) for key, value in records)
    return bytes(cramjam.zstd.compress(sized + _END_OF_RECORDS))


def _sized(data: bytes | None) -> bytes:
    return _END_OF_RECORDS if data is None else struct.pack(">i", len(data)) + data


def _chunked(ascii_text: bytes) -> bytes:
    chunks = [ascii_text[at : at + _MAX_UTF_BYTES] for at in range(0, len(ascii_text), _MAX_UTF_BYTES)]
    return struct.pack(">i", len(chunks)) + b"".join(map(_utf, chunks))


def _utf(ascii_text: bytes) -> bytes:
    """Return a text as Java's `writeUTF` does: ASCII is the same in its UTF-8."""
    return struct.pack(">H", len(ascii_text)) + ascii_text
