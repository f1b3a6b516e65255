"""Which processes to ask because nothing is heard of them on the bus, and when to ask again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.cluster.view import LATE_MS, MAX_PAUSE_HEARTBEATS, LastWord, Silence, counts_against

HEARTBEAT_MS = 1000


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
