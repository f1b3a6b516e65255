"""Which replicas a poll looks at, and which of them get a step of work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from understudy_node.replica.workers import LOOKS_AT_REST, PREFETCH_FLOOR_MS, WorkSchedule

RETRY_MS = 1000


class Replica:
    """As much of a replica as the schedule looks at. `looks` counts them."""

    view: SimpleNamespace | None = None
    error: str | None = None
    progress = SimpleNamespace(is_limited=False)

    def __init__(self) -> None:
        self.looks = self.prefetches = 0
        self.is_behind = self.has_read_ahead = False

    @property
    def behind(self) -> bool:
        self.looks += 1
        return self.is_behind

    def check_stall(self, retry_ms: float) -> None:
        assert retry_ms == RETRY_MS

    def want_prefetch(self) -> bool:
        self.prefetches += 1
        return not self.has_read_ahead


class Workers:
    def __init__(self) -> None:
        self.submitted: list[Replica] = []

    def submit(self, *replicas: Replica) -> None:
        self.submitted += replicas


class World:
    def __init__(self) -> None:
        self.workers = Workers()
        workers: Any = self.workers
        self.schedule = WorkSchedule(workers, retry_ms=RETRY_MS)

    def poll(self, *replicas: Replica, end: int = 1, batch: bool = False, now_ms: float = 0.0) -> None:
        found: Any = list(replicas)
        history: Any = SimpleNamespace(commit_time_ns=lambda version: None)
        self.schedule.hand_out(found, history, end_version=end, batch_in_progress=batch, now_ms=now_ms)


def test_replicas_are_looked_at_when_the_end_moves_or_they_are_others_and_now_and_then() -> None:
    world, one, two = World(), Replica(), Replica()
    for now_ms in range(10):
        world.poll(one, now_ms=now_ms)
    assert one.looks == 1
    world.poll(one, end=2, now_ms=10)
    world.poll(one, two, end=2, now_ms=11)
    world.poll(one, two, end=2, now_ms=12)
    assert (one.looks, two.looks) == (3, 1)
    world.poll(one, two, end=2, now_ms=RETRY_MS)
    assert (one.looks, two.looks) == (4, 2)


def test_while_every_replica_shows_the_end_they_are_looked_at_more_seldom() -> None:
    world, one, two = World(), Replica(), Replica()
    one.view = two.view = SimpleNamespace(version=1)
    world.poll(one, two)
    world.poll(one, two, now_ms=LOOKS_AT_REST * RETRY_MS - 1)
    assert one.looks == 1
    world.poll(one, two, now_ms=LOOKS_AT_REST * RETRY_MS)
    assert one.looks == 2
    two.view = SimpleNamespace(version=0)
    world.poll(one, two, now_ms=2 * LOOKS_AT_REST * RETRY_MS)
    world.poll(one, two, now_ms=2 * LOOKS_AT_REST * RETRY_MS + RETRY_MS)
    assert one.looks == 4, "one that is not at the end, whatever holds it up, is looked at as often as ever"


def test_a_replica_that_is_behind_gets_work_and_one_that_failed_only_when_it_is_tried_again() -> None:
    world, fine, failed = World(), Replica(), Replica()
    fine.is_behind = failed.is_behind = True
    failed.error = "a damaged file"
    world.poll(fine, failed)  # the first look is a try
    assert world.workers.submitted == [fine, failed]
    world.poll(fine, failed, end=2, now_ms=1)
    assert world.workers.submitted[2:] == [fine]
    world.poll(fine, failed, end=2, now_ms=RETRY_MS)
    assert world.workers.submitted[3:] == [fine, failed]


def test_while_a_batch_runs_all_read_ahead_but_no_more_often_than_the_floor_allows() -> None:
    world, replica = World(), Replica()
    for now_ms in range(int(2 * PREFETCH_FLOOR_MS)):
        world.poll(replica, batch=True, now_ms=now_ms)
    assert replica.prefetches == len(world.workers.submitted) == 2
