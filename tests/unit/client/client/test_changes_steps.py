"""Changes without I/O: each is told once and in the order of versions, wherever streams are cut, until all came."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clients.steps import World, problem, scripted, stream
from tests.unit.client.client.test_watch_steps import token

from understudy.client.core.changes import MEDIA_TYPE, ChangesQuestion, ReadingChanges
from understudy.client.core.exchange import Failure, Opened, Outcome, Send
from understudy.client.core.reader import BoundStore, Reader
from understudy.client.errors import BadReplyError, UsageError
from understudy.client.results import WatchEvent
from understudy_shared.base.errors import UnderstudyError

AWAY = {"type": "no-acceptable-replica", "status": 503, "detail": "away"}


def line(member: str, said: dict[str, Any]) -> bytes:
    return orjson.dumps({member: said}) + b"\n"


def head(first: int, last: int, **others: Any) -> bytes:
    return line("changes", {"store": "words", "lineage": "l", "from": first, "to": last, "partitions": [0], **others})


def change(version: int, key: str = "a", *, found: bool = True) -> bytes:
    value = {"value": {"count": version}} if found else {}
    return line("change", {"version": version, "partition": 0, "found": found, "key": {"word": key}, **value})


def version(number: int, count: int) -> bytes:
    return line("version", {"version": number, "committed_at": None, "position": token(number), "changes": count})


def end(first: int, last: int, count: int) -> bytes:
    return line("end", {"changes": count, "from": first, "to": last, "partitions": 1})


def answered(*parts: bytes | Failure) -> Opened:
    return stream(*parts, kind=MEDIA_TYPE)


def reading(world: World, *urls: str, first: int = 3, last: int | None = None, **options: Any) -> ReadingChanges:
    store = BoundStore(Reader(world.state(*urls)), "words")
    return ReadingChanges(store, ChangesQuestion(first, last, options), 5.0)


def since(world: World, ago: Any) -> list[tuple[str, int | None]]:
    """The changes that a client reads since a time."""
    store = BoundStore(Reader(world.state()), "words")
    asked = ChangesQuestion(None, None, {"versions": True}, ago)
    return shown(list(world.told(ReadingChanges(store, asked, 5.0).steps())))


def told(world: World, *urls: str, **options: Any) -> list[WatchEvent[Any]]:
    """The changes that are told until all have come."""
    return list(islice(world.told(reading(world, *urls, **options).steps()), 1000))


def refused(world: World, *urls: str, **options: Any) -> tuple[list[tuple[str, int | None]], UnderstudyError]:
    """What is told until it fails, and the error."""
    events: list[WatchEvent[Any]] = []
    with pytest.raises(UnderstudyError) as raised:
        events.extend(world.told(reading(world, *urls, **options).steps()))
    return shown(events), raised.value


def shown(events: list[WatchEvent[Any]]) -> list[tuple[str, int | None]]:
    return [(each.kind, each.version) for each in events]


WHOLE = (
    *(head(3, 4), change(3), change(3, "b", found=False), version(3, 2)),
    *(change(4), version(4, 1), end(3, 4, 3)),
)


def test_changes_have_what_the_server_said_and_end_behind_the_last_version() -> None:
    world = scripted(answered(b"".join(WHOLE), b""))
    events = told(world, versions=True, prefix=["a", None], partition=2, fields=["count", "note"])
    assert shown(events) == [("value", 3), ("deleted", 3), ("version", 3), ("value", 4), ("version", 4)]
    assert [bool(each) for each in events] == [True, False, False, True, False]
    assert [each.position for each in events] == [None, None, token(3), token(3), token(4)]
    assert (events[0].key, events[0].value, events[1].value, events[2].changes) == (
        {"word": "a"},
        {"count": 3},
        None,
        2,
    )
    query = "from=3&prefix=%5B%22a%22%2Cnull%5D&partition=2&fields=count%2Cnote"
    assert [each.request.target for each in world.sent] == [f"/v1/stores/words/changes?{query}"]
    assert world.closed == 1


def test_a_stream_that_is_cut_is_gone_on_with_at_another_server_without_telling_a_change_twice() -> None:
    again = (head(4, 4), change(4, "a"), change(4, "b"), version(4, 2), end(4, 4, 2))
    away = (head(4, 4), line("error", AWAY))
    world = scripted(
        answered(*WHOLE[:4], change(4, "a")), answered(*away), answered(*again[:2]), problem("overloaded", 429),
        answered(b"".join(again)),
    )  # fmt: skip
    events = told(world, "http://a", "http://b")
    assert [(each.kind, each.version, each.key["word"]) for each in events] == [
        *(("value", 3, "a"), ("deleted", 3, "b"), ("value", 4, "a"), ("value", 4, "b")),
    ]
    assert [each.request.target.partition("?")[2] for each in world.sent] == ["from=3", *["from=4&to=4"] * 4]
    assert world.asked[0] != world.asked[1]


@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
    piece=st.integers(1, 400),
)
def test_each_change_is_told_once_and_in_order_wherever_streams_are_cut(
    counts: list[int], cuts: list[int], piece: int
) -> None:
    last = len(counts)

    def whole(first: int) -> bytes:
        lines = [head(first, last)]
        for number in range(first, last + 1):
            count = counts[number - 1]
            lines += [*(change(number, f"k{at}") for at in range(count)), version(number, count)]
        return b"".join([*lines, end(first, last, sum(counts[first - 1 :]))])

    left = list(cuts)

    def served(send: Send, _: World) -> Outcome:
        first = int(send.request.target.partition("from=")[2].partition("&")[0])
        sent = whole(first)
        if left:
            sent = sent[: left.pop() % len(sent)]
        return answered(*(sent[at : at + piece] for at in range(0, len(sent), piece)))

    events = told(World(served), first=1, last=last, patience=3000.0)
    assert [(each.version, each.key["word"]) for each in events] == [
        (number, f"k{at}") for number, count in enumerate(counts, 1) for at in range(count)
    ]


@pytest.mark.parametrize(
    "lie",
    [
        (head(3, 4, store="other"),),
        (head(2, 4),),
        (head(3, "4"),),  # type: ignore[arg-type]
        (change(3),),
        (head(3, 4), head(3, 4)),
        (head(3, 4), change(4)),
        (head(3, 4), change(3).replace(b'"found"', b'"fond"')),
        (head(3, 4), version(3, 1)),
        (head(3, 4), version(4, 0)),
        (head(3, 4), end(3, 4, 0)),
        (*WHOLE[:-1], end(3, 4, 2)),
        (head(3, 4), b"{\n"),
        (head(3, 4), b"[]\n"),
        (head(3, 4), b"<html>\n"),
        (head(3, 4), b"\n"),
        (head(3, 4), b"x" * (16 * 1024 * 1024 + 1)),
        (head(3, 4), b'{"change":\xf0\x9f}\n'),
    ],
)  # fmt: skip
def test_a_stream_that_lies_ends_the_reading_with_the_name_of_the_server(lie: tuple[bytes, ...]) -> None:
    _, error = refused(scripted(answered(*lie)))
    assert isinstance(error, BadReplyError)
    assert error.attempts[0].url == "http://a:1"


def test_changes_since_a_time_begin_at_the_version_that_the_server_says() -> None:
    def served(send: Send, world: World) -> Outcome:
        world.now_s += 1.0
        if len(world.sent) == 1:
            return answered()
        return answered(*WHOLE)

    for a_minute in ("1m", timedelta(minutes=1)):
        world = World(served)
        assert since(world, a_minute)[-1] == ("version", 4)
        assert "from=60000ms" in world.sent[0].request.target
        later = world.sent[1].request.target.partition("from=")[2]
        assert int(later.removesuffix("ms")) > 61_000, "a minute before the first request, however often it is asked"
    at = datetime(2026, 1, 1, tzinfo=UTC)
    world = World(served)
    since(world, at)
    assert {send.request.target.partition("from=")[2] for send in world.sent} == {"2026-01-01T00%3A00%3A00%2B00%3A00"}
    assert since(World(lambda send, world: answered(head(5, 4), end(5, 4, 0))), "1m") == [], "nothing was committed"
    for version, ago in ((None, None), (1, "1m")):
        with pytest.raises(UsageError):
            ChangesQuestion(version, None, {}, ago)
