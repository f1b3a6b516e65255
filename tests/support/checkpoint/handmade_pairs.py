"""A checkpoint made by hand with two stores: `op0` by word, and `op1` by word and number, keys of two columns."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import VALUE, HandmadeCheckpoint, schema_json
from tests.support.spark.counting_query import WORDS

from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

NUMBERS = (7, 8)
_CODEC = KeyCodec(StructType((Field("word", StringType()), Field("number", LongType()))))
_encode_value = compile_row_encoder(VALUE)


@dataclass(frozen=True, slots=True)
class HandmadePairs(HandmadeCheckpoint):
    """At version V a word has been counted V times, with number N V * N times. Of the HDFS-backed provider."""

    def create(self) -> HandmadePairs:
        """Write all of a checkpoint but its batches."""
        HandmadeCheckpoint.create(self)
        self.write("state/1/_metadata/metadata", spark.operator_metadata(1))
        key, value = (
            schema_json(("word", "string"), ("number", "long")),
            schema_json(("count", "long"), ("total", "long")),
        )
        self.write("state/1/0/_metadata/schema", spark.utf("v2") + spark.chunked(key) + spark.chunked(value))
        return self

    def write_state(self, version: int) -> None:
        """The state files of a version, and its offsets: everything before the commit."""
        HandmadeCheckpoint.write_state(self, version)
        for partition in range(self.partitions):
            records = [
                (_CODEC.encode((word, number)), _encode_value((version * number, 0)))
                for word in WORDS
                for number in NUMBERS
                if _CODEC.partition((word, number), self.partitions) == partition
            ]
            self.write(f"state/1/{partition}/{version}.delta", spark.lz4(spark.plain(records)))
