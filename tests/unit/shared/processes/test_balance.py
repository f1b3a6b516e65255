"""Which worker process gets the next connection."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.processes.balance import MAX_WAITING, WorkerLoad, choose_worker


def worker(number: int, connections: int = 0, *, waiting: int = 0, hangs: bool = False, last: int = 0) -> WorkerLoad:
    return WorkerLoad(number, connections, waiting, hangs, last)


def test_the_worker_with_the_fewest_connections_gets_it_those_that_wait_for_it_included() -> None:
    assert choose_worker([worker(0, 3), worker(1, 1, waiting=1), worker(2, 3)]) == 1
    assert choose_worker([worker(0, 3), worker(1, 1, waiting=3)]) == 0


def test_of_equal_workers_the_one_that_was_given_one_longest_ago_gets_it() -> None:
    assert choose_worker([worker(0, 2, last=9), worker(1, 2, last=4)]) == 1


def test_a_worker_that_takes_none_gets_none_while_another_one_takes_them() -> None:
    stalled = worker(0, 0, waiting=1, hangs=True)
    assert choose_worker([stalled, worker(1, 500)]) == 1
    assert choose_worker([stalled]) == 0


def test_a_connection_waits_while_every_worker_has_as_many_as_it_may() -> None:
    assert choose_worker([worker(0, waiting=MAX_WAITING), worker(1, waiting=MAX_WAITING)]) is None
    assert choose_worker([]) is None


@given(connections=st.integers(0, 200), workers=st.integers(1, 8), closed=st.lists(st.integers(0, 7), max_size=50))
def test_connections_that_stay_are_spread_to_within_one(connections: int, workers: int, closed: list[int]) -> None:
    open_now, last = [0] * workers, [0] * workers
    for number in closed:  # some were there before
        open_now[number % workers] += 1
    for given_now in range(1, connections + 1):
        chosen = choose_worker(worker(n, open_now[n], last=last[n]) for n in range(workers))
        assert chosen is not None
        assert open_now[chosen] == min(open_now)
        open_now[chosen] += 1
        last[chosen] = given_now
    if not closed:
        assert max(open_now) - min(open_now) <= 1
