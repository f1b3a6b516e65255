"""A planner over scripted servers, and the query that asks it for one batch after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from tests.support.clock import ManualClock
from tests.support.spark.queries import wait_until
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.offset import SourceOffset
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import PlannedBatch, Planner
from understudy_aligned.reading import read_task
from understudy_aligned.stream import AlignedStream, Json

PATIENCE_MS = 30_000

NO_OPTIONS = AlignedOptions(inputs=(), topics=())


class PlannedQuery:
    """Topics in the order of the servers. Commits every batch that it is given; the clock is moved by hand."""

    def __init__(self, *servers: ScriptedServer, options: AlignedOptions = NO_OPTIONS) -> None:
        self.clock = ManualClock()
        self.options = replace(
            options,
            inputs=tuple(server.config for server in servers),
            topics=() if options.pattern else tuple(topic for server in servers for topic in server.topics),
        )
        self.planner = Planner(self.options, self.clock)
        self.offset = self.planner.initial(timeout_ms=1_000)

    def next(self) -> PlannedBatch:
        """The next batch, which is there or comes."""
        batch = self.planner.plan(self.offset, wait_ms=PATIENCE_MS)
        assert batch is not None, f"no batch; {self.planner.snapshot()}"
        self.offset = batch.end
        return batch

    def at_once(self) -> PlannedBatch | None:
        batch = self.planner.plan(self.offset, wait_ms=0)
        if batch is not None:
            self.offset = batch.end
        return batch

    def until(self, records: int) -> list[PlannedBatch]:
        """Take batches until they have so many records together."""
        batches: list[PlannedBatch] = []
        while sum(batch.end.records for batch in batches) < records:
            batches.append(self.next())
        return batches

    def begun_again(self) -> PlannedBatch | None:
        """What another planner makes of the offset at which the query stands."""
        planner = Planner(self.options, self.clock)
        try:
            return planner.plan(self.offset, wait_ms=PATIENCE_MS)
        finally:
            planner.stop()

    def begin(self) -> None:
        """Read ahead; there is no batch yet."""
        assert self.at_once() is None

    def wait_for_records(self, count: int) -> None:
        wait_until(lambda: self.planner.snapshot().input_buffer_records == count, what=f"{count} records", limit_s=30)

    def wait_for_lag(self, lag: int | None, topic: str) -> None:
        wait_until(lambda: self.lag(topic) == lag, what=f"lag {lag}", limit_s=30)

    def lag(self, topic: str, partition: int = 0) -> int | None:
        found = self.planner.current_lag(topic, partition)
        return None if found is None else found.records


Start = Callable[..., PlannedQuery]
"""Servers, and `options=`."""


@contextmanager
def started_queries() -> Iterator[Start]:
    """Starts queries; their planners are stopped at the end."""
    started: list[PlannedQuery] = []

    def start(*servers: ScriptedServer, options: AlignedOptions = NO_OPTIONS) -> PlannedQuery:
        started.append(PlannedQuery(*servers, options=options))
        return started[-1]

    try:
        yield start
    finally:
        for query in started:
            query.planner.stop()


def ordinals(batch: PlannedBatch) -> Mapping[TopicPartition, Sequence[int]]:
    return {
        span.partition: pa.Table.from_batches(list(rows)).column("ordinal").to_pylist() for span, rows in batch.ranges
    }


def times(batch: PlannedBatch) -> Sequence[int]:
    """The times of all records, ascending, without poison records."""
    return sorted(
        time_ms
        for _, rows in batch.ranges
        for time_ms in pa.Table.from_batches(list(rows)).column("timestamp_ms").to_pylist()
        if time_ms is not None
    )


def logged(offset: Json) -> Json:
    """As it comes back from Spark's log."""
    found: Json = json.loads(json.dumps(offset))
    return found


def rows_between(stream: AlignedStream, start: Json, end: Json) -> list[dict[str, Any]]:
    """In merge order."""
    rows = [row for task in stream.tasks(start, end) for batch in read_task(task) for row in batch.to_pylist()]
    return sorted(rows, key=merge_order)


def merge_order(row: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(row["merge_order"].values())


def without_time(offset: SourceOffset) -> Mapping[TopicPartition, str]:
    """The input cursors of an offset, without its event time."""
    return {tp: cursor.offset for tp, cursor in offset.cursors.items()}
