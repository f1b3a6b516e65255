"""The source's offset: everything that the next plan depends on, as JSON in Spark's write-ahead log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_pipeline.aligned.records import Cursor, TopicPartition

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Between two batches. Two offsets with the same cursors are the same place."""

    fingerprint: Mapping[str, object]
    """The options that decide the order; a checkpoint is refused when they changed."""

    cursors: Mapping[TopicPartition, Cursor] = field(default_factory=dict)
    """A partition that is not named is read from its beginning."""

    ring: int = 0
    """The task that has its turn first (KIP-41)."""

    batches: int = 0
    records: int = 0
    """Of the batch that ended here."""

    bytes: int = 0
    """Of the batch that ended here, as KIP-770 counts them."""

    enforced: int = 0
    """Records that were taken while an input of their task was empty, since the checkpoint began."""

    undecodable: int = 0
    """Poison records since the checkpoint began."""
