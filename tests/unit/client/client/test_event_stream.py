"""Server-sent events: however the bytes are cut, the events are the same, and what is no stream is an error."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from understudy.client.core.streaming import BadStreamError
from understudy.client.core.watches import EventParser, ServerEvent
from understudy_shared.questions.watch.events import EndReason, KeyEvent, end_event, key_event, reset_event

WORDS = 'event: value\ndata: {"word":"čaj 🫖"}\nid: us1.a\n\n'
STREAM = (
    "\ufeff: there is no news\n\n" + WORDS + WORDS.replace("\n", "\r\n") + WORDS.replace("\n", "\r")
    + "data:a\ndata: b\ndata\nid\nretry: 12\nretry: soon\nunknown: x\n\n"
).encode()  # fmt: skip
VALUE = ServerEvent("value", '{"word":"čaj 🫖"}', "us1.a", None)
EVENTS = [ServerEvent("message", None, None, None), VALUE, VALUE, VALUE, ServerEvent("message", "a\nb\n", "", 12)]


def fed(pieces: list[bytes]) -> list[ServerEvent]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(each % (len(data) + 1) for each in places), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


def test_a_cut_at_any_byte_changes_no_event() -> None:
    assert fed([STREAM]) == EVENTS
    assert fed([bytes([each]) for each in STREAM]) == EVENTS
    for place in range(len(STREAM)):
        assert fed([STREAM[:place], b"", STREAM[place:]]) == EVENTS


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=20)


@given(
    events=st.lists(st.tuples(st.sampled_from(KeyEvent), TEXTS, st.none() | TEXTS), max_size=5),
    places=st.lists(st.integers(0, 10_000), max_size=8),
)
def test_what_servers_write_is_read_as_it_was_meant(
    events: list[tuple[KeyEvent, str, str | None]], places: list[int]
) -> None:
    written = [
        key_event(kind, text.encode()) + (b"\n" if position is None else b"id: %b\n\n" % position.encode())
        for kind, text, position in events
    ]
    data = b"".join([*written, reset_event("l"), end_event(EndReason.MOVED, 1234)])
    *found, reset, end = fed(cut(data, places))
    assert found == [ServerEvent(kind.value, text, position, None) for kind, text, position in events]
    assert (reset.kind, end.kind, end.retry_ms) == ("reset", "end", 1234)


@given(data=st.binary(max_size=200), places=st.lists(st.integers(0, 200), max_size=5))
def test_bytes_of_any_kind_are_events_or_an_error_and_the_same_in_pieces(data: bytes, places: list[int]) -> None:
    def outcome(pieces: list[bytes]) -> list[ServerEvent] | str:
        try:
            return fed(pieces)
        except BadStreamError as error:
            return str(error)

    assert outcome(cut(data, places)) == outcome([data])
