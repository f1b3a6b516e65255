"""The reader of a subscription gives others a turn; where many messages come it waits for several of them."""

from __future__ import annotations

from understudy_shared.bus.redis_subscription import MANY_A_SECOND, MESSAGES_AT_ONCE, PAUSE_S, ReadingTurns


def heard(turns: ReadingTurns, messages: int, from_s: float, lasting_s: float) -> None:
    for number in range(messages):
        turns.took(from_s + lasting_s * (number + 1) / messages)


def test_few_messages_are_read_as_they_come() -> None:
    turns = ReadingTurns(0)
    heard(turns, 10 * (MANY_A_SECOND - 1), 0, 10)
    assert turns.pause_s(has_more=False) is None


def test_many_messages_are_waited_for_together_but_not_while_some_have_arrived() -> None:
    turns = ReadingTurns(0)
    heard(turns, 2 * MANY_A_SECOND + 1, 0, 2)
    assert turns.pause_s(has_more=False) == PAUSE_S
    assert turns.pause_s(has_more=True) is None


def test_a_burst_within_a_second_is_not_many() -> None:
    turns = ReadingTurns(0)
    heard(turns, 10 * MANY_A_SECOND, 0, 0.9)
    assert turns.pause_s(has_more=False) is None


def test_the_first_message_after_a_silence_ends_the_pauses() -> None:
    turns = ReadingTurns(0)
    heard(turns, 2 * MANY_A_SECOND + 1, 0, 2)
    turns.took(60)
    assert turns.pause_s(has_more=False) is None


def test_others_get_a_turn_however_many_replies_have_arrived() -> None:
    turns = ReadingTurns(0)
    pauses = [turns.pause_s(has_more=True) for _ in range(3 * MESSAGES_AT_ONCE)]
    assert [pause for pause in pauses if pause is not None] == [0, 0, 0]
