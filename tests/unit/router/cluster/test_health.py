"""A node's health by the results of requests to it: the rules."""

from __future__ import annotations

from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.health_tables import (
    HEARTBEAT_MS,
    HOUR_MS,
    OK,
    QUARANTINED,
    SUSPECT,
    SUSPECT_AFTER_MS,
    health,
    table,
)

from understudy_router.cluster.health import (
    GOOD_TO_LEAVE,
    HOLD_MS,
    MAX_BAD_IN_A_ROW,
    MAX_HOLD_MS,
    MAX_PROBE_GAP_MS,
    MAX_SUSPICIONS,
    RESULT_GAP_MS,
    SUSPICIONS_MS,
    Change,
    HealthTable,
)
from understudy_router.cluster.outliers import OUTLIER_FACTOR, OUTLIER_MS


def quarantined(*, now_ms: float = 0) -> HealthTable:
    """A table in which node a is in quarantine; its last failure was at `now_ms`."""
    nodes = table()
    for number in reversed(range(MAX_BAD_IN_A_ROW)):
        nodes.failed("a", now_ms - number * RESULT_GAP_MS, "reset")
    assert health(nodes) is QUARANTINED
    return nodes


def answered_often(nodes: HealthTable, took_ms: float, *node_ids: str, now_ms: float = 0) -> list[Change | None]:
    return [nodes.answered(node_id, now_ms, took_ms) for _ in range(20) for node_id in node_ids]


def test_a_node_that_is_not_known_is_ok() -> None:
    assert table().of("a") == Change(OK, "")


def test_a_failure_makes_a_node_suspect_and_one_good_answer_makes_it_ok() -> None:
    nodes = table()
    assert nodes.failed("a", 0, "reset: it hung up") == Change(SUSPECT, "reset: it hung up")
    assert nodes.of("a") == Change(SUSPECT, "reset: it hung up")
    assert nodes.answered("a", 50, 1) == Change(OK, "")
    assert nodes.of("a") == Change(OK, "")


def test_an_answer_is_slow_above_the_limit_and_not_at_it() -> None:
    nodes = table()
    assert nodes.answered("a", 300, SUSPECT_AFTER_MS) is None
    change = nodes.answered("a", 600, SUSPECT_AFTER_MS + 1)
    assert change == Change(SUSPECT, f"slow: {SUSPECT_AFTER_MS + 1} ms")


def test_a_suspect_that_answers_slowly_stays_suspect() -> None:
    nodes = table()
    nodes.failed("a", 0, "timeout")
    assert nodes.answered("a", 900, 900) is None
    assert health(nodes) is SUSPECT


def test_an_answer_to_what_was_sent_before_the_doubt_began_says_nothing_against_it() -> None:
    nodes = table()
    nodes.failed("a", 100, "reset")
    assert nodes.answered("a", 105, 10) is None
    assert nodes.answered("a", 115, 10) == Change(OK, "")


def test_silence_makes_suspect_and_is_no_result_of_its_own() -> None:
    """The waiting request will still fail, or be answered late: it is counted then."""
    nodes = table()
    change = nodes.silent("a", 250, 210)
    assert change == Change(SUSPECT, "silent for 210 ms while others answered")
    assert nodes.silent("a", 500, 460) is None
    for number in range(MAX_BAD_IN_A_ROW - 1):
        nodes.failed("a", 1000 * (number + 1), "timeout")
    assert health(nodes) is SUSPECT
    nodes.failed("a", 1000 * MAX_BAD_IN_A_ROW, "timeout")
    assert health(nodes) is QUARANTINED


def test_five_bad_results_in_a_row_are_a_quarantine_that_says_so() -> None:
    nodes = quarantined()
    assert nodes.of("a").why == f"{MAX_BAD_IN_A_ROW} bad results in a row, the last: reset"


def test_what_fails_at_the_same_time_is_one_bad_result() -> None:
    """All lookups that are on their way when a process dies; else a restart of 50 ms would be a quarantine."""
    nodes = table()
    for number in range(100):
        nodes.failed("a", number * (RESULT_GAP_MS - 1) / 100, "reset")
    assert health(nodes) is SUSPECT


def test_a_good_answer_between_bad_ones_begins_the_count_anew() -> None:
    nodes = table()
    for number in range(3 * MAX_BAD_IN_A_ROW):
        now_ms = number * SUSPICIONS_MS
        nodes.failed("a", now_ms, "reset")
        nodes.failed("a", now_ms + RESULT_GAP_MS, "reset")
        nodes.answered("a", now_ms + 500, 1)
    assert nodes.entered[QUARANTINED] == 0


def test_a_node_that_answers_now_and_then_is_not_trusted_for_ever() -> None:
    nodes = table()
    for number in range(MAX_SUSPICIONS):
        assert health(nodes) is OK
        nodes.failed("a", number * HEARTBEAT_MS, "reset")
        nodes.answered("a", number * HEARTBEAT_MS + 500, 1)
    assert health(nodes) is QUARANTINED
    assert "within a minute" in nodes.of("a").why


def test_three_good_results_after_the_hold_end_a_quarantine() -> None:
    nodes = quarantined()
    assert [nodes.answered("a", at_ms, 1) for at_ms in (100, 500, HOLD_MS - 1)] == [None] * 3
    times = [HOLD_MS + number * RESULT_GAP_MS for number in range(1, GOOD_TO_LEAVE + 1)]
    assert [nodes.answered("a", at_ms, 1) for at_ms in times[:-1]] == [None] * (GOOD_TO_LEAVE - 1)
    assert nodes.answered("a", times[-1], 1) == Change(OK, "")


def test_good_results_at_the_same_time_are_one() -> None:
    nodes = quarantined()
    for number in range(50):
        nodes.answered("a", HOLD_MS + 10 + number, 1)
    assert health(nodes) is QUARANTINED


def test_a_bad_result_in_quarantine_begins_the_good_ones_anew() -> None:
    nodes = quarantined()
    for number in range(10):
        now_ms = HOLD_MS * (2 + number)
        nodes.answered("a", now_ms, 1)
        nodes.answered("a", now_ms + RESULT_GAP_MS, 1)
        nodes.failed("a", now_ms + RESULT_GAP_MS + 1, "reset")
    assert health(nodes) is QUARANTINED


def leave(nodes: HealthTable, now_ms: float) -> float:
    """The first moment at which a node that answers well every 100 ms is ok."""
    while health(nodes) is not OK:
        now_ms += RESULT_GAP_MS
        nodes.answered("a", now_ms, 1)
    return now_ms


def relapse(nodes: HealthTable, now_ms: float) -> float:
    while health(nodes) is not QUARANTINED:
        now_ms += RESULT_GAP_MS
        nodes.failed("a", now_ms, "reset")
    return now_ms


def test_each_relapse_doubles_the_hold_up_to_a_limit_and_peace_takes_it_back() -> None:
    nodes, now_ms, lasted = table(), 0.0, []
    for _ in range(8):
        began_ms = relapse(nodes, now_ms)
        now_ms = leave(nodes, began_ms)
        lasted.append(now_ms - began_ms)
    holds = [HOLD_MS * 2**number for number in range(5)] + [MAX_HOLD_MS] * 3
    for real, hold in zip(lasted, holds, strict=True):
        assert hold <= real <= hold + (GOOD_TO_LEAVE + 1) * RESULT_GAP_MS
    began_ms = relapse(nodes, now_ms + HOUR_MS)
    assert leave(nodes, began_ms) - began_ms < 2 * HOLD_MS


def test_a_node_that_is_much_slower_than_the_others_is_suspect() -> None:
    nodes = table()
    answered_often(nodes, 10, "b", "c")
    changes = [change for change in answered_often(nodes, 60, "a") if change]
    assert [change.health for change in changes] == [SUSPECT]
    assert "60 ms in the median" in changes[0].why
    assert nodes.answered("a", 1000, 60) is None, "as slow as that is not good"
    assert nodes.answered("a", 2000, 20) == Change(OK, "")


@pytest.mark.parametrize(
    ("others_ms", "own_ms"),
    [
        pytest.param(1, 49, id="nobody notices so little"),
        pytest.param(30, 140, id="the others are not much faster"),
    ],
)
def test_a_node_that_is_somewhat_slower_is_no_outlier(others_ms: float, own_ms: float) -> None:
    nodes = table()
    answered_often(nodes, others_ms, "b", "c")
    assert answered_often(nodes, own_ms, "a") == [None] * 20


def test_a_few_slow_answers_among_many_do_not_make_an_outlier() -> None:
    nodes = table()
    answered_often(nodes, 1, "a", "b")
    assert [nodes.answered("a", 0, 150) for _ in range(5)] == [None] * 5


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 150), min_size=1), st.sets(st.sampled_from("abcdef")))
def test_an_outlier_is_measured_by_the_median_of_the_others_that_are_ok(
    times_ms: dict[str, int], ill: set[str]
) -> None:
    nodes = table()
    for node_id, took_ms in times_ms.items():
        for _ in range(5):
            nodes.answered(node_id, 0, 1)  # none is an outlier yet
        for _ in range(15):
            nodes._records[node_id].recent.append(took_ms)
    for node_id in ill & times_ms.keys():
        nodes.failed(node_id, 0, "reset")
    for node_id in times_ms:
        others = [took_ms for other, took_ms in times_ms.items() if other != node_id and other not in ill]
        limit_ms = max(OUTLIER_MS, OUTLIER_FACTOR * median_low(others)) if others else None
        assert nodes._outlier_ms(node_id, 300) == limit_ms


def test_there_is_no_outlier_where_nobody_else_answered_lately() -> None:
    nodes = table()
    assert answered_often(nodes, 150, "a") == [None] * 20
    answered_often(nodes, 1, "b")
    assert nodes.answered("a", HOUR_MS, 150) is None


def test_a_node_that_recovered_is_no_outlier_by_what_was() -> None:
    nodes = table()
    answered_often(nodes, 1, "b")
    answered_often(nodes, 100, "a")
    assert health(nodes) is SUSPECT
    nodes.answered("a", 1000, 1)
    nodes.answered("b", 1000, 1)
    assert nodes.answered("a", 1300, 100) is None


def test_nobody_is_probed_while_all_are_well() -> None:
    nodes = table()
    answered_often(nodes, 1, "a", "b")
    assert nodes.due(HOUR_MS) == []
    nodes.failed("a", HOUR_MS, "reset")
    nodes.answered("a", HOUR_MS + 1, 1)
    assert nodes.due(2 * HOUR_MS) == []


def test_a_suspect_is_probed_at_once_and_then_once_per_heartbeat() -> None:
    nodes = table()
    nodes.failed("a", 100, "reset")
    assert nodes.due(100) == ["a"]
    nodes.probe_sent("a", 100, heartbeat_ms=HEARTBEAT_MS, jitter=1.1)
    assert nodes.due(1199) == []
    assert nodes.due(1200) == ["a"]


def test_a_node_in_quarantine_is_probed_after_its_hold_and_then_ever_more_rarely_until_it_answers() -> None:
    nodes, now_ms, gaps = quarantined(), 0.0, []
    for _ in range(7):
        before_ms = now_ms
        while not nodes.due(now_ms):
            now_ms += 50
        gaps.append(now_ms - before_ms)
        nodes.probe_sent("a", now_ms, heartbeat_ms=HEARTBEAT_MS, jitter=1)
        nodes.failed("a", now_ms + 10, "timeout")
    assert gaps == [HOLD_MS, 1000, 2000, 4000, 8000, MAX_PROBE_GAP_MS, MAX_PROBE_GAP_MS]
    nodes.answered("a", now_ms + 1000, 1)
    nodes.probe_sent("a", now_ms + 1000, heartbeat_ms=HEARTBEAT_MS, jitter=1)
    assert nodes.due(now_ms + 2000) == ["a"]


def test_the_longest_overdue_is_probed_first() -> None:
    nodes = table()
    for at_ms, node_id in enumerate("cab"):
        nodes.failed(node_id, at_ms, "reset")
    assert nodes.due(10) == ["c", "a", "b"]
