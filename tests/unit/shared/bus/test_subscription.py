"""The reader of a subscription: what waits for it is bounded, it learns of lost messages before anything newer, and it
gives others a turn.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.bus.base import Back, Heard, Inbox, Lost
from understudy_shared.bus.redis_subscription import MANY_A_SECOND, MESSAGES_AT_ONCE, PAUSE_S, ReadingTurns

MAX_MESSAGES, MAX_BYTES = 4, 30


def waiting(inbox: Inbox) -> list[Heard]:
    return [*inbox._waiting]


def as_it_happens(drawn: list[Heard]) -> list[Heard]:
    """The part that a subscription can hear: Back and Lost in turn, and messages only while it stands."""
    heard: list[Heard] = [Back()]
    stands = True
    for part in drawn:
        if isinstance(part, Back) != stands:
            heard.append(part)
            stands = not isinstance(part, Lost)
    return heard


@given(st.lists(st.binary(max_size=40) | st.just(Back()) | st.just(Lost("it broke")), max_size=60).map(as_it_happens))
def test_what_is_missing_was_dropped_before_a_loss_and_the_bounds_hold(arrived: list[Heard]) -> None:
    inbox = Inbox(max_messages=MAX_MESSAGES, max_bytes=MAX_BYTES)
    for heard in arrived:
        inbox.put(heard)
        assert len(inbox._waiting) <= MAX_MESSAGES
        assert sum(len(part) for part in inbox._waiting if isinstance(part, bytes)) == inbox._bytes <= MAX_BYTES
    left = waiting(inbox)
    overflowed = [number for number, part in enumerate(left) if isinstance(part, Lost) and "too slow" in part.why]
    if not overflowed:
        assert left == arrived
        return
    assert overflowed == [0], "what waited is dropped as a whole"
    kept = left[2:] if len(left) > 1 and left[1] == Back() else left[1:]
    assert kept == arrived[len(arrived) - len(kept) :]
    last_lost = next((part for part in reversed(arrived) if not isinstance(part, bytes)), None)
    standing = [part for part in left if not isinstance(part, bytes)]
    assert isinstance(standing[-1], Lost) == isinstance(last_lost, Lost), "it stands at the end if it stood before"


async def test_what_waits_at_the_end_is_still_read() -> None:
    inbox = Inbox()
    inbox.put(b"1")
    inbox.end()
    assert [await inbox.take(), await inbox.take(), await inbox.take()] == [b"1", None, None]


async def test_a_failure_reaches_the_reader_that_waits_for_it() -> None:
    inbox = Inbox()
    taken = asyncio.ensure_future(inbox.take())
    await asyncio.sleep(0)
    inbox.end(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        await taken


@pytest.mark.parametrize(
    ("messages", "lasting_s", "later_s", "pause_s"),
    [
        pytest.param(10 * (MANY_A_SECOND - 1), 10, None, None, id="few"),
        pytest.param(2 * MANY_A_SECOND + 1, 2, None, PAUSE_S, id="many"),
        pytest.param(10 * MANY_A_SECOND, 0.9, None, None, id="a burst within a second"),
        pytest.param(2 * MANY_A_SECOND + 1, 2, 60, None, id="many, and one after a silence"),
    ],
)
def test_many_messages_are_waited_for_together_but_not_while_some_have_arrived(
    messages: int, lasting_s: float, later_s: float | None, pause_s: float | None
) -> None:
    turns = ReadingTurns(0)
    for number in range(messages):
        turns.took(lasting_s * (number + 1) / messages)
    if later_s is not None:
        turns.took(later_s)
    assert turns.pause_s(has_more=False) == pause_s
    assert turns.pause_s(has_more=True) is None


def test_others_get_a_turn_however_many_replies_have_arrived() -> None:
    turns = ReadingTurns(0)
    pauses = [turns.pause_s(has_more=True) for _ in range(3 * MESSAGES_AT_ONCE)]
    assert [pause for pause in pauses if pause is not None] == [0, 0, 0]
