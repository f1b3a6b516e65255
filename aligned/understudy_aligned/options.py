"""The options of the source, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from understudy_aligned.inputs.protocol import InputConfig
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.inputs.start_positions import StartPositions
from understudy_aligned.inputs.timestamps import TimestampRules
from understudy_aligned.inputs.topics_pattern import TopicsPattern

MIB = 1 << 20

Undecodable = Literal["keep", "fail", "skip", "aside", "partition-time"]


@dataclass(frozen=True, slots=True)
class AlignedOptions:
    """Options of `spark.readStream.format("understudy")`; sizes in bytes, times in milliseconds."""

    inputs: tuple[InputConfig, ...]
    """One configuration per server. Together they name every topic once."""

    topics: tuple[str, ...]
    """In the order of the option, which breaks ties: of records with equal times, the earlier topic's comes first."""

    kinds: tuple[str, ...] = ()
    """The input of each topic: `kafka` or `redis`. Each kind has its own form of offsets."""

    pattern: TopicsPattern | None = None
    """Kafka topics that are found while the query runs. `topics` and `kinds` are empty then."""

    assigned: frozenset[TopicPartition] | None = None
    """The only partitions of `topics` that are read. None: all of them."""

    merge: Literal["task", "global"] = "task"
    """`task` merges partition p of every topic, for each p. `global` merges all partitions together."""

    starting: Literal["earliest", "latest"] = "earliest"
    """The beginning of a new checkpoint. Partitions that appear later are read from their beginning."""

    start_positions: StartPositions | None = None
    """The beginning of Kafka partitions in a new checkpoint, instead of `starting`."""

    max_task_idle_ms: int = 0
    """KIP-353/695. -1: never wait for an empty input. 0: wait for records that exist. More: wait for new ones too."""

    topic_idle_ms: Mapping[str, int] = field(default_factory=dict)
    """Idle times of topics that have their own."""

    max_drift_ms: int | None = None
    """Flink's watermark alignment. Longest time by which a record may be ahead of the slowest input. None: an empty
    input blocks its task instead.
    """

    max_poll_records: int = -1
    """KIP-41. Most records of a micro-batch; -1: no bound but memory."""

    min_poll_records: int = 1
    """Least records of a micro-batch: one with fewer is put off."""

    max_trigger_delay_ms: int = 900_000
    """Longest time since the last micro-batch for which one with too few records is put off."""

    input_buffer_max_bytes: int = 512 * MIB
    """KIP-770. Most bytes of records that are fetched and in no batch, over all tasks. A soft bound."""

    buffered_records_per_partition: int | None = None
    """Deprecated: pauses a partition that holds more records than this. Used when no byte bound was given."""

    timestamp: TimestampRules = field(default_factory=TimestampRules)
    max_timestamp_jump_ms: int | None = None
    """Largest step by which one record may advance its partition's time. None: no bound."""

    undecodable: Undecodable = "fail"
    """The treatment of a record without a usable timestamp: deliver it without one, end the query, skip it, write it to
    `undecodable_path`, or give it its partition's time.
    """

    topic_undecodable: Mapping[str, Undecodable] = field(default_factory=dict)
    """The treatment in topics that have their own."""

    undecodable_path: Path | None = None
    available_now: Literal["all", "ordered"] = "all"
    """The end of the trigger AvailableNow: the current ends of all inputs, or the point up to which no later record can
    come before a delivered one.
    """

    fail_on_data_loss: bool = True
    request_timeout_ms: int = 5_000
    """Longest wait for one answer. A server that takes longer counts as unreachable."""

    poll_timeout_ms: int = 120_000
    """Time for which a Spark task waits for the next record of a planned batch, over all attempts. Then it fails."""

    lag_max_age_ms: int = 5_000
    """Longest time that an answer about a partition's end is used. After it the lag is unknown."""

    reader_tasks: int = 2
    """Most Spark tasks that read a batch."""

    spool: Path | None = None
    """A folder for the records of the planned batch. Executors on this machine map it instead of reading the input."""

    checkpoint: Path | None = None
    """The query's checkpoint folder, which is locked against a second query."""

    metrics_port: int | None = None
    """Port for the planner's Prometheus metrics. 0: any free port."""

    include_headers: bool = False
    include_stream_time: bool = False

    def undecodable_of(self, topic: str) -> Undecodable:
        """Return the treatment of a topic's records without a usable timestamp."""
        return self.topic_undecodable.get(topic, self.undecodable)

    def partitions(self, counts: Mapping[str, int]) -> list[TopicPartition]:
        """List the partitions that are read of topics that have so many, in the order of `counts`."""
        every = (TopicPartition(topic, number) for topic, count in counts.items() for number in range(count))
        return [tp for tp in every if self.assigned is None or tp in self.assigned]

    @property
    def read_limit(self) -> tuple[Literal["rows", "bytes"], int]:
        """The bound of a batch for Spark: `max_poll_records`, else memory."""
        if self.max_poll_records > 0:
            return "rows", self.max_poll_records
        return "bytes", self.input_buffer_max_bytes

    @property
    def long_offsets(self) -> bool:
        """Whether the column `offset` is a number: every topic is Kafka's."""
        return self.pattern is not None or set(self.kinds) == {"kafka"}
