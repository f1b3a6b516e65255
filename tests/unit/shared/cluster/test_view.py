"""What nodes and routers know of their cluster alike: who lives, whom to ask, and who follows a fork."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus.documents import heartbeat
from tests.support.router.tables import HEARTBEAT_MS, TASK, assigned, beat, farewell, task

from understudy_shared.base.words import FORKED
from understudy_shared.bus.messages import Applied, Heartbeat, SeenCommit, is_same_time
from understudy_shared.cluster.view import (
    LATE_MS,
    MAX_PAUSE_HEARTBEATS,
    ClusterView,
    LastWord,
    Silence,
    counts_against,
    refused_forks,
)

SILENT_MS = 3 * HEARTBEAT_MS + 1


def knowing() -> ClusterView:
    """A view with an assignment that names a, which was heard at 0."""
    view = ClusterView(lambda kind, why: None, lambda: (None, 0))
    view.follow(assigned({TASK: task("a")}))
    view.heard(beat("a", sequence=5, held=[TASK], exceptions={TASK: Applied(version=1)}), age_ms=0, now_ms=0)
    return view


def test_a_node_that_was_silent_has_left_once_its_farewell_comes() -> None:
    view = knowing()
    view.expire(SILENT_MS)
    assert "a" in view.to_ask(SILENT_MS, heartbeat_ms=HEARTBEAT_MS)
    assert not view.is_gone("a")
    view.left(farewell("a", "i2"), SILENT_MS)
    assert not view.is_gone("a"), "another process said so"
    view.left(farewell("a"), SILENT_MS)
    assert view.is_gone("a")
    assert view.to_ask(1e9, heartbeat_ms=HEARTBEAT_MS) == {}, "it comes back itself"


def test_a_heartbeat_that_is_older_than_its_expiry_is_not_taken() -> None:
    view = knowing()
    assert not view.heard(beat("b"), age_ms=SILENT_MS, now_ms=0)
    assert "b" not in view.nodes


def last(**said_ms: float) -> dict[str, LastWord]:
    return {node_id: LastWord(at_ms, HEARTBEAT_MS) for node_id, at_ms in said_ms.items()}


def test_a_node_is_asked_when_it_is_late_and_long_before_three_heartbeats_are_over() -> None:
    silence = Silence()
    assert silence.due(last(a=0), now_ms=1500) == []
    assert silence.due(last(a=0), now_ms=1501) == ["a"]


def test_a_silent_node_is_asked_once_per_heartbeat() -> None:
    silence = Silence()
    silence.asked("a", 2000)
    assert silence.due(last(a=0), now_ms=2999) == []
    assert silence.due(last(a=0), now_ms=3000) == ["a"]


def test_a_process_that_does_not_answer_is_asked_ever_more_seldom_and_never_given_up() -> None:
    silence, asked_ms = Silence(), [0.0]
    silence.asked("a", 0)
    silence.did_not_answer("a", 0)
    for now_ms in range(0, 200 * HEARTBEAT_MS, 250):
        if silence.due(last(a=-9999), now_ms=now_ms):
            silence.asked("a", now_ms)
            silence.did_not_answer("a", now_ms)
            asked_ms.append(now_ms)
    pauses = [after - before for before, after in pairwise(asked_ms)]
    assert pauses[:5] == [1000, 1000, 2000, 4000, 8000]
    assert pauses[-1] == MAX_PAUSE_HEARTBEATS * HEARTBEAT_MS
    silence.answered("a")
    assert not silence.is_unanswered("a")


@given(st.lists(st.tuples(st.sampled_from(["asked", "did_not_answer", "answered", "keep"]), st.sampled_from("abc"))))
def test_only_a_process_that_was_asked_in_vain_since_it_was_last_heard_is_unanswered(
    story: list[tuple[str, str]],
) -> None:
    silence = Silence()
    unanswered: set[str] = set()
    for now_ms, (what, node_id) in enumerate(story):
        if what == "keep":
            silence.keep({node_id}.__contains__)
            unanswered &= {node_id}
        elif what == "answered":
            silence.answered(node_id)
            unanswered.discard(node_id)
        else:
            getattr(silence, what)(node_id, now_ms)
            if what == "did_not_answer":
                unanswered.add(node_id)
        assert {each for each in "abc" if silence.is_unanswered(each)} == unanswered


@pytest.mark.parametrize(
    ("took_ms", "others_heard", "counts"),
    [
        pytest.param(3, False, True, id="a refused connection"),
        pytest.param(1000, True, True, id="a timeout while others are heard"),
        pytest.param(1000, False, False, id="a timeout while nothing is heard"),
        pytest.param(1000 + LATE_MS + 1, True, False, id="a late timeout: the asking process was paused"),
    ],
)
def test_a_missing_answer_counts_only_when_the_node_must_be_at_fault(
    took_ms: float, others_heard: bool, counts: bool
) -> None:
    assert counts_against(took_ms, deadline_ms=1000, others_heard=others_heard) is counts


def forking(node_id: str, *forks: str, sequence: int = 5, degraded: tuple[str, ...] = ()) -> Heartbeat:
    why = dict.fromkeys(forks, "version 3 was committed twice")
    named: dict[str, Any] = {"incarnation": f"{node_id}-1", "lineage": "life", "heartbeat_ms": 1000}
    return heartbeat(node_id, sequence=sequence, end_age_ms=0, degraded=list(degraded), forks=why, **named)


SIDES = {
    "nobody differs": ([forking("a"), forking("b")], {"a"}, set()),
    "one of the cluster found a stranger": ([forking("a", "x"), forking("x")], {"a"}, {"x"}),
    "the stranger alone found it": ([forking("a"), forking("x", "a")], {"a"}, {"x"}),
    "many strangers against one node of the cluster": (
        [forking("a"), *(forking(f"x{n}", "a", sequence=900) for n in range(3))],
        {"a"},
        {"x0", "x1", "x2"},
    ),
    "in the cluster most count": (
        [forking("a", "z"), forking("b", "z"), forking("z", "a", "b", sequence=900)],
        {*"abz"},
        {"z"},
    ),
    "of two in the cluster the one that runs longer": (
        [forking("a", "z"), forking("z", sequence=900)],
        {*"az"},
        {"a"},
    ),
    "before there is a cluster most count": ([forking("a", "z"), forking("b", "z"), forking("z")], set(), {"z"}),
    "of two that began together one and the same": ([forking("a", "z"), forking("z", "a")], set(), {"z"}),
    "who says of himself that he is refused": ([forking("a"), forking("z", degraded=(FORKED,))], {*"az"}, {"z"}),
    "who is refused accuses in vain": ([forking("a"), forking("z", "a", degraded=(FORKED,))], {*"az"}, {"z"}),
    "who is not there": ([forking("a", "gone")], {"a"}, set()),
}


@pytest.mark.parametrize("case", SIDES)
def test_of_two_histories_the_clusters_stands(case: str) -> None:
    beats, named, refused = SIDES[case]
    assert refused_forks(beats, named).keys() == refused
    assert refused_forks(reversed(beats), named).keys() == refused, "all come to the same result"


TIMES = {
    "equal": (1_795_000_000_123_456, 1_795_000_000_123_456, True),
    "a microsecond later": (1_795_000_000_123_456, 1_795_000_000_123_457, False),
    "a mount that cuts to milliseconds": (1_795_000_000_123_456, 1_795_000_000_123_000, True),
    "storage that has whole seconds": (1_795_000_000_123_456, 1_795_000_000_000_000, True),
    "another whole second": (1_795_000_000_123_456, 1_795_000_001_000_000, False),
    "another millisecond": (1_795_000_000_123_456, 1_795_000_000_124_000, False),
}


@pytest.mark.parametrize("case", TIMES)
def test_times_are_compared_at_the_coarser_of_their_resolutions(case: str) -> None:
    one, other, same = TIMES[case]
    assert is_same_time(one, other) is is_same_time(other, one) is same


def test_commits_of_the_same_second_differ_by_their_content() -> None:
    one = SeenCommit(version=1, committed_at_us=1_795_000_000_000_000, digest="aa")
    assert not one.is_same_as(one.model_copy(update={"digest": "bb"}))
    assert one.is_same_as(one.model_copy(update={"digest": ""})), "a digest that is not known says nothing"
