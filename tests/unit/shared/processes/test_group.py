"""The readiness of several processes as one service's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.processes.group import WORKERS, Status, merged_status

READY = Status()


def test_it_is_ready_when_every_worker_is() -> None:
    assert merged_status({0: READY, 1: READY}, {}, {}) == READY


def test_what_every_worker_says_is_said_once_and_what_one_says_with_its_number() -> None:
    away = {"bus-away": "the bus is away"}
    merged = merged_status({0: Status(("no catalogue",), away), 1: Status(("no catalogue", "stopping"), away)}, {}, {})
    assert merged.reasons == ("no catalogue", "worker 1: stopping")
    assert merged.causes == away


def test_a_cause_of_some_workers_names_them() -> None:
    short = Status((), {"memory": "memory is short"})
    assert merged_status({0: READY, 1: short, 2: short}, {}, {}).causes == {"memory": "worker 1, 2: memory is short"}


def test_a_worker_that_is_down_or_silent_is_a_reason() -> None:
    merged = merged_status(
        {0: READY, 1: None}, {2: "was killed by SIGKILL, and starts again"}, {WORKERS: "it keeps ending"}
    )
    assert merged.reasons == (
        "worker 2 was killed by SIGKILL, and starts again",
        "worker 1 does not answer its supervisor",
    )
    assert (merged.http_status, merged.document()["degraded"]) == (503, "it keeps ending")


STATUSES = st.one_of(st.none(), st.builds(Status, st.lists(st.sampled_from("ab")).map(tuple)))


@given(statuses=st.dictionaries(st.integers(0, 5), STATUSES), down=st.dictionaries(st.integers(6, 9), st.just("ended")))
def test_it_is_ready_only_when_all_workers_run_answer_and_are(
    statuses: dict[int, Status | None], down: dict[int, str]
) -> None:
    all_are = not down and all(status is not None and not status.reasons for status in statuses.values())
    assert (merged_status(statuses, down, {}).http_status == 200) == all_are
