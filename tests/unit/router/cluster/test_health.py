"""A node's health by the results of requests to it: the rules."""

from __future__ import annotations

from statistics import median_low

from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.health_tables import (
    HEARTBEAT_MS,
    HOUR_MS,
    OK,
    QUARANTINED,
    SUSPECT,
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
    OUTLIER_FACTOR,
    OUTLIER_MS,
    RESULT_GAP_MS,
    Change,
    HealthTable,
)


def quarantined(*, now_ms: float = 0) -> HealthTable:
    """A table in which node a is in quarantine; its last failure was at `now_ms`."""
    nodes = table()
    for number in reversed(range(MAX_BAD_IN_A_ROW)):
        nodes.failed("a", now_ms - number * RESULT_GAP_MS, "reset")
    assert health(nodes) is QUARANTINED
    return nodes


def answered_often(nodes: HealthTable, took_ms: float, *node_ids: str, now_ms: float = 0) -> list[Change | None]:
    return [nodes.answered(node_id, now_ms, took_ms) for _ in range(20) for node_id in node_ids]


def test_a_failure_makes_a_node_suspect_and_one_good_answer_makes_it_ok() -> None:
    nodes = table()
    assert nodes.failed("a", 0, "reset: it hung up") == Change(SUSPECT, "reset: it hung up")
    assert nodes.of("a") == Change(SUSPECT, "reset: it hung up")
    assert nodes.answered("a", 50, 1) == Change(OK, "")
    assert nodes.of("a") == Change(OK, "")


def test_an_answer_to_what_was_sent_before_the_doubt_began_says_nothing_against_it() -> None:
    nodes = table()
    nodes.failed("a", 100, "reset")
    assert nodes.answered("a", 105, 10) is None
    assert nodes.answered("a", 115, 10) == Change(OK, "")


def test_five_bad_results_in_a_row_are_a_quarantine_that_says_so() -> None:
    nodes = quarantined()
    assert nodes.of("a").why == f"{MAX_BAD_IN_A_ROW} bad results in a row, the last: reset"


def test_a_node_that_answers_now_and_then_is_not_trusted_for_ever() -> None:
    nodes = table()
    for number in range(MAX_SUSPICIONS):
        assert health(nodes) is OK
        nodes.failed("a", number * HEARTBEAT_MS, "reset")
        nodes.answered("a", number * HEARTBEAT_MS + 500, 1)
    assert health(nodes) is QUARANTINED
    assert "within a minute" in nodes.of("a").why


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
