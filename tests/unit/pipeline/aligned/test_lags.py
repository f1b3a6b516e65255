"""`current_lag`: an answer with an age, or nothing."""

from __future__ import annotations

from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.read_ahead import Lag, Lags

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def lags_of(records: int, *, asked_ms: float = 1_000) -> Lags:
    lags = Lags(max_age_ms=5_000)
    lags.update({A: records}, asked_ms=asked_ms)
    return lags


def test_statement_38_a_lag_is_never_below_0_and_unknown_is_no_number() -> None:
    assert lags_of(-1).current(A, 1_000) == Lag(0, 0)
    assert lags_of(-7).current(A, 1_000) == Lag(0, 0)
    assert lags_of(0).current(B, 1_000) is None


def test_statement_40_without_an_answer_there_is_no_lag() -> None:
    assert Lags(max_age_ms=5_000).current(A, 0) is None


def test_statement_44_an_answer_has_an_age_and_too_old_a_one_is_unknown() -> None:
    lags = lags_of(3)
    assert lags.current(A, 1_000) == Lag(3, 0)
    assert lags.current(A, 6_000) == Lag(3, 5_000)
    assert lags.current(A, 6_001) is None


def test_what_was_fetched_since_is_taken_off_an_answer() -> None:
    lags = lags_of(5)
    lags.subtract_fetched(A, 3)
    assert lags.current(A, 2_000) == Lag(2, 1_000)
    lags.subtract_fetched(A, 2)
    assert lags.current(A, 2_000) == Lag(0, 1_000), "all that it knew of"


def test_an_answer_that_knew_of_fewer_than_were_fetched_since_is_out_of_date() -> None:
    lags = lags_of(0)
    lags.subtract_fetched(A, 1)
    lags.subtract_fetched(A, 1)
    assert lags.current(A, 1_000) is None
