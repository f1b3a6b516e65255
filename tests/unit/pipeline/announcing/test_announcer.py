"""What `Announced` says and when, against a query and a bus of the test's own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from tests.support.clock import ManualClock
from tests.support.spark.queries import wait_until

from understudy_pipeline.announcing.announcer import MAX_PLANS, REPEAT_MS, RETRY_MS, Announced
from understudy_pipeline.announcing.query_plan import (
    Function,
    Output,
    PlanColumn,
    QueryPlan,
    StatefulAggregate,
    WrittenAggregate,
)
from understudy_pipeline.announcing.spark_query import SparkQuery
from understudy_shared.bus.base import BusError
from understudy_shared.bus.messages import Announcement
from understudy_shared.bus.redis_sync import SyncPublisher

COUNT = PlanColumn(10, "count", "long")
PLAN = QueryPlan(
    (StatefulAggregate(0, 2, (), (COUNT,), (Function("Count", 50, 1),)),),
    (WrittenAggregate((), (Output(61, "n", "long", result_ids=(50,)),), frozenset({50}), (), "all"),),
)
LIMIT_S = 20


class FakeQuery:
    """A query that commits when the test says so."""

    def __init__(self, *, last: int | None = None, plan: QueryPlan | None = PLAN) -> None:
        self.query_id = "q"
        self.last = last
        self.next_plan: QueryPlan | Exception | None = plan
        self.location = "file:/data/q"
        self.plans = 0
        self.listening = False
        self.active = True
        self.commit: Callable[[int], None] = lambda version: None
        self.end: Callable[[], None] = lambda: None

    def checkpoint(self) -> str:
        return self.location

    def last_version(self) -> int | None:
        return self.last

    def plan(self) -> QueryPlan | None:
        self.plans += 1
        if isinstance(self.next_plan, Exception):
            raise self.next_plan
        return self.next_plan

    def is_active(self) -> bool:
        return self.active

    def listen(self, on_commit: Callable[[int], None], on_end: Callable[[], None]) -> Callable[[], None]:
        self.listening, self.commit, self.end = True, on_commit, on_end

        def stop() -> None:
            self.listening = False

        return stop


class FakePublisher:
    """Keeps what was said; `gate` holds it up, `refuses` so many announcements fail."""

    def __init__(self, *, refuses: int = 0) -> None:
        self.hints: list[int] = []
        self.announced: list[Announcement] = []
        self.introduced: list[Announcement] = []
        self.tries = 0
        self.refuses = refuses
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()

    def hint(self, version: int) -> None:
        assert self.gate.wait(LIMIT_S)
        self.hints.append(version)

    def announce(self, announcement: Announcement, *, if_absent: bool = False) -> None:
        if if_absent:
            self.introduced.append(announcement)
            return
        self.tries += 1
        if self.tries <= self.refuses:
            raise BusError("no connection")
        self.announced.append(announcement)

    def close(self) -> None:
        self.closed = True


@contextmanager
def announcing(query: FakeQuery, publisher: FakePublisher, *, clock: ManualClock | None = None) -> Iterator[Announced]:
    spark_query, sender = cast(SparkQuery, query), cast(SyncPublisher, publisher)
    with Announced(
        spark_query, sender, application_id="a", names={}, listen=True, clock=clock or ManualClock()
    ) as announced:
        yield announced


def until(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what=what, limit_s=LIMIT_S)


def test_commits_are_hinted_names_are_sent_once_and_close_ends_both() -> None:
    query, publisher = FakeQuery(), FakePublisher()
    with announcing(query, publisher) as announced:
        query.commit(1)
        until(lambda: announced.is_announced and publisher.hints == [1], "the first commit")
        query.commit(2)
        until(lambda: publisher.hints == [1, 2], "the second commit")
    assert not query.listening
    assert publisher.closed
    (said,) = publisher.announced
    assert (said.application_id, said.query_id, said.checkpoint) == ("a", "q", "file:/data/q")
    assert publisher.introduced == [said.model_copy(update={"stores": []})], "it is found before it has names"
    assert [(store.operator_id, store.name) for store in said.stores] == [(0, "all")]
    announced.close()


def test_what_is_committed_while_redis_hangs_makes_no_queue_and_does_not_hold_up_the_query() -> None:
    query, publisher = FakeQuery(last=1), FakePublisher()
    publisher.gate.clear()
    with announcing(query, publisher):
        for version in range(2, 1000):
            query.commit(version)
        publisher.gate.set()
        until(lambda: publisher.hints[-1:] == [999], "the newest hint")
    assert publisher.hints in ([1, 999], [1, 2, 999])


def test_names_wait_for_a_plan_with_stateful_operators() -> None:
    query, publisher = FakeQuery(plan=None), FakePublisher()
    with announcing(query, publisher) as announced:
        query.commit(1)
        until(lambda: query.plans == 1, "the first look")
        query.next_plan = QueryPlan((), ())
        query.commit(2)
        until(lambda: query.plans == 2, "the second look")
        assert not announced.is_announced
        query.next_plan = PLAN
        query.commit(3)
        until(lambda: announced.is_announced, "the names")
        query.commit(4)
        until(lambda: publisher.hints == [1, 2, 3, 4], "the hints")
        assert query.plans == 3, "the plan was read again"


def test_a_query_without_state_is_not_looked_at_for_ever_and_has_a_location_only() -> None:
    query, publisher = FakeQuery(plan=QueryPlan((), ())), FakePublisher()
    with announcing(query, publisher) as announced:
        for version in range(1, MAX_PLANS + 5):
            query.commit(version)
            until(lambda version=version: publisher.hints[-1:] == [version], "the hint")  # type: ignore[misc]
    assert query.plans <= MAX_PLANS
    assert publisher.announced == publisher.introduced
    assert [each.checkpoint for each in publisher.announced] == ["file:/data/q"]
    assert not announced.is_announced


def test_a_location_with_a_secret_stays_in_the_driver() -> None:
    query, publisher = FakeQuery(), FakePublisher()
    query.location = "s3a://key:secret@bucket/q"
    with announcing(query, publisher) as announced:
        query.commit(1)
        until(lambda: announced.is_announced, "the names")
    assert publisher.introduced == []
    assert [each.checkpoint for each in publisher.announced] == [None]


def test_a_plan_that_cannot_be_read_costs_the_names_and_not_the_hints_or_the_location() -> None:
    query, publisher, clock = FakeQuery(), FakePublisher(), ManualClock()
    query.next_plan = RuntimeError("a plan of Spark 5")
    with announcing(query, publisher, clock=clock) as announced:
        for version in range(1, 4):
            query.commit(version)
            until(lambda version=version: publisher.hints[-1:] == [version], "the hint")  # type: ignore[misc]
        assert not announced.is_announced
        assert len(publisher.introduced) == 1
        clock.advance(REPEAT_MS)
        query.commit(4)
        until(lambda: len(publisher.introduced) == 2, "the location again, which Redis may have lost")


def test_names_that_redis_refused_are_sent_later_and_again_every_minute() -> None:
    query, publisher, clock = FakeQuery(), FakePublisher(refuses=1), ManualClock()
    with announcing(query, publisher, clock=clock) as announced:
        query.commit(1)
        until(lambda: publisher.tries == 1 and publisher.hints == [1], "the refusal")
        clock.advance(RETRY_MS)
        query.commit(2)
        until(lambda: announced.is_announced, "the names")
        clock.advance(REPEAT_MS - 1)
        query.commit(3)
        until(lambda: publisher.hints == [1, 2, 3], "the hint")
        assert len(publisher.announced) == 1
        clock.advance(1)
        query.commit(4)
        until(lambda: len(publisher.announced) == 2, "the names again")


def test_announcing_takes_no_package_that_the_extra_announce_does_not_bring() -> None:
    """Python functions of Spark 3.5 want an older numpy, pandas and pyarrow than the source does."""
    others = "{'confluent_kafka', 'fastavro', 'google.protobuf', 'numpy', 'pandas', 'pyarrow', 'pyspark'}"
    code = f"import sys; from understudy_pipeline import announce; print({others} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
