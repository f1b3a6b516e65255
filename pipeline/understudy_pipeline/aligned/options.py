"""What the source is told, once it is known to be right."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from understudy_pipeline.inputs.protocol import InputConfig
from understudy_pipeline.inputs.timestamps import TimestampRule

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AlignedOptions:
    """Options of `spark.readStream.format("understudy")`; sizes in bytes, times in milliseconds."""

    inputs: tuple[InputConfig, ...]
    """One per server; together they have every topic once."""

    topics: tuple[str, ...]
    """In the order of the option: of two records of one time, that of the earlier topic comes first."""

    kinds: tuple[str, ...] = ()
    """Of each topic's input: `kafka`, `redis` or `files`. Their offsets mean different things."""

    merge: Literal["task", "global"] = "task"
    """`task`: partition p of every topic is merged, each p by itself. `global`: all partitions together."""

    starting: Literal["earliest", "latest"] = "earliest"
    """Where a new checkpoint begins; partitions that appear later are read from their beginning."""

    max_task_idle_ms: int = 0
    """KIP-353/695. -1: never wait for an empty input. 0: only for what is known to exist. More: for new records too."""

    max_poll_records: int = -1
    """KIP-41. Most records of a micro-batch; -1: no bound but memory."""

    input_buffer_max_bytes: int = 512 * MIB
    """KIP-770. Most bytes of records that are fetched and not yet planned, over all tasks; a soft bound."""

    buffered_records_per_partition: int | None = None
    """Deprecated: pauses a partition that holds more records than this. Used when no byte bound was given."""

    timestamp: TimestampRule = field(default_factory=TimestampRule)
    max_timestamp_jump_ms: int | None = None
    """A record further ahead of its partition's time counts as just so far ahead. None: no bound."""

    undecodable: Literal["fail", "skip", "aside"] = "fail"
    """A record whose time cannot be told: end the query, leave it out, or write it to `undecodable_path`."""

    undecodable_path: Path | None = None
    fail_on_data_loss: bool = True
    request_timeout_ms: int = 5_000
    """For one answer of a server; longer is "away"."""

    lag_max_age_ms: int = 5_000
    """An answer about a partition's end that is older says nothing any more: its lag is unknown."""

    reader_tasks: int = 2
    """Most Spark tasks that read a batch."""

    spool: Path | None = None
    """A folder for the records of a planned batch, which local executors map instead of reading them once more."""

    checkpoint: Path | None = None
    """The query's checkpoint, to be locked against a second query."""

    metrics_port: int | None = None
    """Prometheus metrics of the planner are served here; 0: any free port."""

    include_headers: bool = False
