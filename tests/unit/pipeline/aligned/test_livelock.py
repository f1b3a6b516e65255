"""Statement 55: a bound in bytes meets an input that is waited for, and records still come.

Kafka took KIP-770's input half back for this: a task that held more than the bound paused its partitions, waited for an
empty one whose lag was above 0, and looked at the bound again only after it had processed something. It never did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.support.measurements import measured
from tests.support.spark.planned_query import PlannedQuery, Start, started_queries, times
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.records import record_size
from understudy_aligned.options import AlignedOptions
from understudy_aligned.read_ahead import FETCHES_PER_BOUND

VALUE = 1_000
RECORD = record_size("a", None, bytes(VALUE))
BACKLOG = 1_000
STEP = 100
SLOW = (*range(10), *range(STEP, BACKLOG + STEP, STEP))
"""Times of the input that is waited for. Each record comes when nothing else is left to do. The first ones let a single
record of the backlog go, so that the task stays over its bound; the last is behind all."""

IN_VAIN = 2_000
"""Looks of 5 ms without a batch, one after the other: then nothing comes any more."""

COMES_S = 5.0
"""For a record that may come, to be held beside the backlog before anybody plans."""


@pytest.fixture
def start() -> Iterator[Start]:
    with started_queries() as begun:
        yield begun


class Outcome:
    """Times in the order of the batches, and the most bytes that were retained at any look."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.batches = 0
        self.retained = 0


def drained(query: PlannedQuery, records: int, *, let_come: Callable[[], None]) -> Outcome:
    """All records, or as many as come."""
    outcome, in_vain = Outcome(), 0
    while len(outcome.times) < records and in_vain < IN_VAIN:
        batch = query.planner.plan(query.offset, wait_ms=5)
        outcome.retained = max(outcome.retained, query.planner.snapshot().input_buffer_bytes)
        if batch is None:
            in_vain += 1
            let_come()
            continue
        query.offset = batch.end
        outcome.batches += 1
        outcome.times.extend(times(batch))
        in_vain = 0
    return outcome


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("max_task_idle_ms", "max_drift_ms"), [(0, None), (10_000, None), (0, 20)])
def test_statement_55_a_bound_below_one_inputs_backlog_never_stops_a_task_that_waits_for_another(
    start: Start, max_task_idle_ms: int, max_drift_ms: int | None
) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    server.put("a", 0, *range(BACKLOG), size=VALUE)
    server.put("b", 0, *SLOW, size=VALUE)
    server.withhold("b", 0)
    bound = 40 * RECORD
    options = AlignedOptions(
        inputs=(),
        topics=(),
        input_buffer_max_bytes=bound,
        max_task_idle_ms=max_task_idle_ms,
        max_drift_ms=max_drift_ms,
    )
    query = start(server, options=options)

    left = list(SLOW)

    def let_come() -> None:
        if left and query.planner.snapshot().paused and not server.is_coming("b", 0):
            left.pop()
            server.release("b", 0, 1)
            server.wait_until_fetched("b", 0, limit_s=COMES_S)

    records = BACKLOG + len(SLOW) - 1
    outcome = drained(query, records, let_come=let_come)
    one_fetch = bound // FETCHES_PER_BOUND + 2 * RECORD
    measured(
        f"livelock, idle {max_task_idle_ms} ms, drift {max_drift_ms} ms: {len(outcome.times)} of {records} records, "
        f"{outcome.batches} batches, at most {outcome.retained:,} bytes retained of {bound:,} + {one_fetch:,} allowed"
    )
    assert len(outcome.times) >= records
    if max_drift_ms is None:
        assert outcome.times == sorted(outcome.times), "and in order: no wait ran out"
    assert outcome.retained <= bound + one_fetch
    assert outcome.batches >= len(SLOW) - 1


@pytest.mark.timeout(120)
def test_a_bound_below_the_size_of_a_record_lets_records_pass_one_by_one(start: Start) -> None:
    server = ScriptedServer({"a": 1, "b": 1})
    server.put("a", 0, *range(0, 60, 2), size=VALUE)
    server.put("b", 0, *range(1, 60, 2), size=VALUE)
    query = start(server, options=AlignedOptions(inputs=(), topics=(), input_buffer_max_bytes=1))
    outcome = drained(query, 60, let_come=lambda: None)
    assert outcome.times == list(range(60))
    assert outcome.retained <= 2 * RECORD
