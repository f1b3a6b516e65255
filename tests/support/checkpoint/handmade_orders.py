"""A checkpoint made by hand whose keys have two columns, tenant and number: something to list, and to keep apart."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import VALUE, HandmadeCheckpoint

from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

BIG = 90071992547409931
CODEC = KeyCodec(StructType((Field("tenant", StringType()), Field("n", LongType()))))
_encode_value = compile_row_encoder(VALUE)


@dataclass(frozen=True, slots=True)
class HandmadeOrders(HandmadeCheckpoint):
    """Numbers of tenant `a`, and 10 of `b`. A count is the number, and one more for each odd version until then."""

    key_columns: tuple[tuple[str, str], ...] = (("tenant", "string"), ("n", "long"))
    of_a: int = 120

    def _records(self, version: int, partition: int) -> list[spark.Record]:
        keys = [*(("a", number) for number in range(self.of_a)), *(("b", number) for number in range(10))]
        return [
            (CODEC.encode(key), _encode_value((key[1] + (version + 1) // 2, BIG)))
            for key in keys
            if CODEC.partition(key, self.partitions) == partition
        ]
