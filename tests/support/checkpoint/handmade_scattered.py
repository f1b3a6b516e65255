"""A checkpoint whose keys do not lie where the hash says, as one that Spark 3.2.1 began."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import KEY, VALUE, HandmadeCheckpoint

from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.unsafe_row import compile_row_encoder

TWICE: Final = "twice"
"""A word that the first and the last partition have, of other counts."""
LOST: Final = "lost"
"""A word that is there for one version."""
NOT_STRICT: Final = {"spark.sql.streaming.statefulOperator.useStrictDistribution": "false"}

_CODEC = KeyCodec(KEY)
_VALUE_BYTES = compile_row_encoder(VALUE)


@dataclass(frozen=True, slots=True)
class ScatteredCheckpoint(HandmadeCheckpoint):
    """A word of `counts` lies in the partition behind that of its hash. LOST is in the partitions `lost_in` at version
    3 alone.
    """

    lost_in: set[int] = field(default_factory=set)

    def partition_of(self, word: str) -> int:
        return (_CODEC.partition((word,), self.partitions) + 1) % self.partitions

    def _records(self, version: int, partition: int) -> list[spark.Record]:
        counts = [(word, count) for word, count in self.counts(version).items() if self.partition_of(word) == partition]
        if partition in {0, self.partitions - 1}:
            counts.append((TWICE, version + partition))
        records: list[spark.Record] = [
            (_CODEC.encode((word,)), _VALUE_BYTES((count, count * 1_000_000))) for word, count in counts
        ]
        if partition in self.lost_in and version in {3, 4}:
            records.append((_CODEC.encode((LOST,)), _VALUE_BYTES((1, 1)) if version == 3 else None))
        return records


def scattered_checkpoint(path: Path, *, partitions: int = 4) -> ScatteredCheckpoint:
    """Begin one."""
    checkpoint = ScatteredCheckpoint(path, partitions=partitions, conf=NOT_STRICT)
    checkpoint.create()
    return checkpoint
