"""A watch without I/O: it goes on behind its position, tells each version once and in order, and ends honestly."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clients.steps import CUT, World, found, problem, scripted, stream

from understudy.client.core.exchange import Failure, Opened
from understudy.client.core.reader import BoundStore, Reader
from understudy.client.core.streaming import BadStreamError
from understudy.client.core.watches import EventParser, ServerEvent, Watching, WatchQuestion
from understudy.client.errors import (
    BadReplyError,
    UnreachableError,
    UsageError,
    VersionGoneError,
)
from understudy.client.results import WatchEvent
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.questions.watch.events import (
    EndReason,
    KeyEvent,
    end_event,
    key_event,
    reset_event,
    version_event,
)
from understudy_shared.reads.tokens import Position

GONE = problem("version-gone", 410, retained_versions=[7, 9])


def token(version: int, lineage: str = "l") -> str:
    return Position(ApplicationId("a"), Lineage(lineage), version, None).encode()


def event(kind: str, version: int, key: str = "a", *, is_last: bool = True, lineage: str = "l") -> bytes:
    """An event of a key; `is_last`: with its id."""
    data = {**found(key, version=version, position=token(version, lineage)), "found": kind != "deleted"}
    end = f"id: {token(version, lineage)}\n\n" if is_last else "\n"
    return b"event: %b\ndata: %b\n%b" % (kind.encode(), orjson.dumps(data), end.encode())


def watching(world: World, *urls: str, keys: list[Any] | None = None, **options: Any) -> Watching:
    store = BoundStore(Reader(world.state(*urls)), "words")
    of_one = [()] if "prefix" in options else [("a",)]
    return Watching(store, WatchQuestion(of_one if keys is None else keys, options, is_many=keys is not None), 5.0)


def told(world: World, *urls: str, **options: Any) -> tuple[list[WatchEvent[Any]], UnderstudyError]:
    """The events of a watch, and the error that it ends with."""
    events: list[WatchEvent[Any]] = []
    with pytest.raises(UnderstudyError) as raised:
        events.extend(islice(world.told(watching(world, *urls, **options).steps()), 1000))
    return events, raised.value


def shown(events: list[WatchEvent[Any]]) -> list[tuple[str, int | None]]:
    return [(each.kind, each.version) for each in events]


def test_events_have_what_the_server_said_and_positions_to_go_on_behind() -> None:
    coalesced = b'event: coalesced\ndata: {"store":"words","key":{"word":"a"},"from":5,"to":7,"changes":3}\n\n'
    first = event("snapshot", 3) + coalesced + event("value", 7) + event("deleted", 8) + version_event(9, token(9))
    events, error = told(scripted(stream(first), GONE), versions=True)
    assert shown(events) == [("snapshot", 3), ("coalesced", 7), ("value", 7), ("deleted", 8), ("version", 9)]
    assert [bool(each) for each in events] == [True, False, True, False, False]
    assert [each.position for each in events] == [token(each) for each in (3, 3, 7, 8, 9)]
    value, deleted, version = events[2:]
    assert (value.key, value.value, value.deleted, deleted.deleted) == ({"word": "a"}, {"count": 7}, False, True)
    assert (events[1].first_version, events[1].changes, version.key, version.value) == (5, 3, None, None)
    assert isinstance(error, VersionGoneError)
    assert error.retained_versions == (7, 9)


def test_a_stream_that_ends_is_gone_on_with_behind_its_position_at_another_server() -> None:
    world = scripted(stream(event("snapshot", 3)), stream(event("value", 4), b""), stream(event("value", 5)), GONE)
    events, _ = told(world, "http://a", "http://b")
    assert shown(events) == [("snapshot", 3), ("value", 4), ("value", 5)]
    assert [each.request.last_event_id for each in world.sent] == ["", token(3), token(4), token(5)]
    assert [dict(each.headers).get("last-event-id") for each in world.sent] == [None, token(3), token(4), token(5)]
    assert world.asked[0] != world.asked[1]
    assert world.closed == 3, "no stream is left open"


def test_a_watch_since_a_time_asks_for_that_time_until_it_has_a_position() -> None:
    world = scripted(stream(), stream(event("value", 4)), GONE)
    events, _ = told(world, since="1m")
    assert shown(events) == [("value", 4)]
    first, second, third = (each.request for each in world.sent)
    assert first.target.endswith("?from=60000ms")
    assert int(second.target.partition("from=")[2].removesuffix("ms")) > 60_000, "a minute before the first request"
    assert (third.last_event_id, "from=" in third.target) == (token(4), False)
    with pytest.raises(UsageError):
        watching(world, since="1m", position=token(3))


def test_servers_that_are_away_are_asked_again_until_the_patience_is_over() -> None:
    world = scripted(stream(event("snapshot", 3)), CUT)
    started_s = world.now_s
    events, error = told(world, "http://a", "http://b", patience=20.0)
    assert (shown(events), isinstance(error, UnreachableError)) == ([("snapshot", 3)], True)
    assert 20 <= world.now_s - started_s < 26
    assert 3 <= len(world.sent) < 60
    world = scripted(
        stream(event("snapshot", 3)), CUT, CUT, CUT, problem("not-initialised", 503), stream(event("value", 4)), GONE
    )
    assert shown(told(world)[0]) == [("snapshot", 3), ("value", 4)]


@pytest.mark.parametrize(
    "piece",
    [
        b"event: value\ndata: {\n\n",
        b"event: value\ndata: []\n\n",
        b'event: value\ndata: {"store":"words","key":{"word":"a"},"found":true,"version":4}\n\n'.replace(b"4", b'"4"'),
        event("value", 4).replace(b'"words"', b'"other"'),
        event("value", 4).replace(b"us1.", b"us2."),
        b'event: value\ndata: {"found":true,"version":4}\n\n',
        b'event: coalesced\ndata: {"key":{"word":"a"}}\n\n',
        b"event: value\ndata: \xf0\x9f\n\n",
    ],
)  # fmt: skip
def test_a_stream_that_lies_ends_the_watch_with_the_name_of_the_server(piece: bytes) -> None:
    events, error = told(scripted(stream(event("snapshot", 3), piece)))
    assert shown(events) == [("snapshot", 3)]
    assert isinstance(error, BadReplyError)
    assert error.attempts[0].url == "http://a:1"


KEYS = ("a", "b", "c")


@given(
    data=st.data(),
    streams=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 9), st.booleans()), max_size=8),
            st.integers(0, 2000),
        ),
        max_size=5,
    ),
)
def test_no_version_of_a_key_is_told_twice_or_behind_a_later_one_wherever_streams_are_cut(
    data: st.DataObject, streams: list[tuple[list[tuple[str, int, bool]], int]]
) -> None:
    """Whatever a server repeats, and in whatever order: what is told of a key only goes forward."""
    outcomes: list[Opened | Failure] = [stream(event("snapshot", 1, is_last=False))]
    for events, place in streams:
        sent = b"".join(event("value", version, key, is_last=is_last) for key, version, is_last in events)
        outcomes.append(stream(sent[: place % (len(sent) + 1)]))
    world = scripted(*outcomes, GONE)
    events_told, error = told(world, keys=list(KEYS))
    assert isinstance(error, VersionGoneError)
    for key in KEYS:
        versions = [each.version or 0 for each in events_told if each.key == {"word": key}]
        assert versions == sorted(set(versions))


def test_many_keys_and_keys_with_no_form_in_a_path_go_into_a_body() -> None:
    for keys, body in (([["a"], {"word": "b"}, "c"], [["a"], {"word": "b"}, ["c"]]), (["x" * 7000], [["x" * 7000]])):
        world = scripted(GONE)
        told(world, keys=keys, limit=5, include_expired=False)
        assert orjson.loads(world.sent[0].request.body or b"") == {
            "keys": body,
            "bounds": {"limit": 5, "include_expired": False},
        }
    world = scripted(GONE)
    told(world, limit=5)
    assert world.sent[0].request.target == "/v1/stores/words/watch/a?limit=5"


def test_the_beginning_of_a_prefix_is_told_as_a_whole_or_begun_anew() -> None:
    """A key that was there when the first stream began may be gone when the second one does."""
    first = event("snapshot", 3, "a", is_last=False) + event("snapshot", 3, "b", is_last=False)
    second = event("snapshot", 5, "a", is_last=False) + event("snapshot", 5, "c")
    cut = event("value", 6, "a", is_last=False)
    again = event("value", 6, "a", is_last=False) + event("value", 6, "c") + event("deleted", 7, "a")
    world = scripted(stream(first), stream(second, cut), stream(again), GONE)
    events, _ = told(world, prefix=["x"])
    assert [(each.kind, each.version, each.key["word"]) for each in events] == [
        *(("snapshot", 5, "a"), ("snapshot", 5, "c"), ("value", 6, "a"), ("value", 6, "c"), ("deleted", 7, "a")),
    ]
    assert [each.request.last_event_id for each in world.sent] == ["", "", token(5), token(7)]
    assert {each.request.body for each in world.sent} == {b'{"prefix":["x"]}'}


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
