"""A checkpoint of session windows made by hand: at version V each session of each visitor has been counted V times.

So a list whose sessions were counted differently often is a mix of versions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import HandmadeCheckpoint

from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, LongType, StringType, StructType, TimestampType
from understudy_shared.spark.unsafe_row import compile_row_encoder

VISITORS = tuple(f"visitor-{number}" for number in range(6))
SESSIONS = 5
"""How many each visitor has: number N begins at N seconds, and lasts for one."""
SECOND_US = 1_000_000

_SPAN = StructType((Field("start", TimestampType()), Field("end", TimestampType())))
_KEY = StructType((Field("visitor", StringType()), Field("sessionStartTime", TimestampType())))
_VALUE = StructType((Field("visitor", StringType()), Field("session_window", _SPAN), Field("count", LongType())))
_VISITOR = KeyCodec(StructType(_KEY.fields[:1]))
_encode_key, _encode_value = compile_row_encoder(_KEY), compile_row_encoder(_VALUE)


def _json(*columns: tuple[str, object, dict[str, int]]) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": more} for name, kind, more in columns]
    return json.dumps({"type": "struct", "fields": fields})


@dataclass(frozen=True, slots=True)
class HandmadeSessions(HandmadeCheckpoint):
    """Session windows by visitor, of the HDFS-backed provider. `lineage` is the query's id."""

    lineage: str = "11111111-2222-4333-8444-555555555555"

    def create(self) -> HandmadeSessions:
        """Write all of a checkpoint but its batches."""
        self.write("metadata", json.dumps({"id": self.lineage}).encode())
        operator = spark.operator_metadata(0, "sessionWindowStateStoreSaveExec", prefix_columns=1)
        self.write("state/0/_metadata/metadata", operator)
        span = json.loads(_json(("start", "timestamp", {}), ("end", "timestamp", {})))
        value = _json(
            ("visitor", "string", {}), ("session_window", span, {"spark.watermarkDelayMs": 0}), ("count", "long", {})
        )
        key = _json(("visitor", "string", {}), ("sessionStartTime", "timestamp", {}))
        self.write("state/0/0/_metadata/schema", spark.utf("v2") + spark.chunked(key) + spark.chunked(value))
        return self

    def _records(self, version: int, partition: int) -> list[spark.Record]:
        return [
            (
                _encode_key((visitor, number * SECOND_US)),
                _encode_value((visitor, (number * SECOND_US, (number + 1) * SECOND_US), version)),
            )
            for visitor in VISITORS
            if _VISITOR.partition((visitor,), self.partitions) == partition
            for number in range(SESSIONS)
        ]
