"""The keys and the answer of a batch, by both ways, and keys of scattered stores, which are asked of all partitions."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.repository import ROOT
from tests.support.spark.values import struct_of

from understudy.commands.reading import expanded
from understudy_shared.auth.access import Access
from understudy_shared.auth.principals import KeyScope
from understudy_shared.base.words import ApplicationId, Lineage, StoreKind
from understudy_shared.http.edge import App, Send
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.front import MAX_DIRECT_BYTES, LookupsFirst
from understudy_shared.questions.lookup.batches import (
    NOT_FOUND,
    BatchAnswer,
    BatchKeys,
    KeyBatch,
    Unsettled,
    answer_of,
    batch_form,
    history_of,
    problem_result,
    resolve_keys,
)
from understudy_shared.questions.lookup.hop import ABSENT, FOUND, HopOutcome
from understudy_shared.questions.scan.page import PartPage, Place, Room
from understudy_shared.questions.scan.requests import ScannedStore
from understudy_shared.questions.scan.service import _of_one_partition
from understudy_shared.questions.watch.events import KEEP_ALIVE, KeyEvent, key_event, read_event, version_event, with_id
from understudy_shared.questions.watch.service import ScatteredWatch
from understudy_shared.reads.tokens import Position
from understudy_shared.server.answers import Answers
from understudy_shared.server.direct import Exchange, Headers
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import StringType, StructType
from understudy_shared.telemetry.metrics import RequestCounts

DOCUMENT = (ROOT / "docs/api.md").read_text()
TEXTS = KeyCodec(struct_of(StringType()))
PARTITIONS, MAX_KEY_BYTES = 4, 100


@pytest.mark.parametrize(
    ("query", "form"),
    [
        (b"", (False, False)),
        (b"compact=true", (True, False)),
        (b"compact=True&longs=string", (True, True)),
        (b"compact=1", (True, False)),
        (b"compact=false&longs=number", (False, False)),
    ],
)
def test_a_batch_is_long_with_numbers_unless_its_query_asks_for_something_else(
    query: bytes, form: tuple[bool, bool]
) -> None:
    assert batch_form(query) == form


keys = st.text(max_size=5).map(lambda text: [text]) | st.sampled_from(
    [None, 7, [7], ["a", "b"], {"c0": "a"}, {"c1": "a"}, [None], ["x" * MAX_KEY_BYTES]]
)


@given(st.lists(keys, max_size=12))
def test_each_key_of_a_batch_becomes_what_it_becomes_alone_or_is_a_problem_alone(batch: list[object]) -> None:
    whole = resolve_keys(TEXTS, batch, PARTITIONS, MAX_KEY_BYTES)
    one_by_one = BatchKeys([], [], [], {})
    for key in batch:
        one_by_one.extend(resolve_keys(TEXTS, [key], PARTITIONS, MAX_KEY_BYTES))
    assert whole == one_by_one
    assert set(whole.problems) == {index for index, key in enumerate(batch) if key_problem(key)}
    for index, problem in whole.problems.items():
        assert problem.type.slug == key_problem(batch[index])
    placed = sorted(index for indexes in whole.by_partition().values() for index in indexes)
    assert placed == [index for index in range(len(batch)) if index not in whole.problems]


@given(st.lists(keys, max_size=12), st.sampled_from(["", "a", "b"]))
def test_a_key_outside_of_what_was_granted_is_a_problem_and_all_others_are_as_ever(
    batch: list[object], may: str
) -> None:
    scope = KeyScope(((orjson.dumps(may),),))
    free, bound = (resolve_keys(TEXTS, batch, PARTITIONS, MAX_KEY_BYTES, *more) for more in ((), (scope,)))
    for index in range(len(batch)):
        granted = index not in free.problems and free.printed[index] == b'{"c0":%b}' % orjson.dumps(may)
        if granted:
            assert (bound.partitions[index], bound.rows[index], bound.printed[index]) == (
                free.partitions[index], free.rows[index], free.printed[index],
            )  # fmt: skip
        else:
            assert (bound.rows[index], bound.printed[index]) == (b"", b"")
            slug = key_problem(batch[index]) or "forbidden"
            assert bound.problems[index].type.slug == slug
    assert sorted(index for indexes in bound.by_partition().values() for index in indexes) == [
        index for index in range(len(batch)) if index not in bound.problems
    ]


def key_problem(key: object) -> str:
    """Why a key of `keys` has none; "" for a good one."""
    if key == ["x" * MAX_KEY_BYTES]:
        return "too-large"
    is_good = key in ({"c0": "a"}, [None]) or (isinstance(key, list) and len(key) == 1 and isinstance(key[0], str))
    return "" if is_good else "bad-key"


READS = [
    b'"partition":%d,"version":%d,"lag":{"offset_lag":null},"served_by":{"host":"n%d"},"marks":["x"],"position":"us1.a"}\n'
    % (number % 2, 7 + number, number)
    for number in range(4)
]
"""Two reads of each of two partitions: one of a router's attempts may have come from another node, or later."""
PROBLEM = Problem(ProblemType.NO_ACCEPTABLE_REPLICA, "none", extra={"candidates": [{"reason": "lag-exceeded"}]})
values: st.SearchStrategy[Any] = st.dictionaries(
    st.sampled_from(["read", "status", "store", "n"]), st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
)
results = st.lists(st.none() | st.tuples(st.text(max_size=4), st.none() | values, st.sampled_from(READS)), max_size=9)


def answered(items: list[Any], *, is_compact: bool) -> bytes:
    """An answer of problems (None) and of (key, value, read)."""
    answer = BatchAnswer(b'"words"', is_compact=is_compact)
    joined = []
    for item in items:
        if item is None:
            joined.append(problem_result(PROBLEM))
            continue
        key, value, tail = item
        found = b'"found":false,' if value is None else b'"found":true,"value":%b,' % orjson.dumps(value)
        head = answer.absent if value is None else answer.found
        joined.append(head + orjson.dumps({"word": key}) + b"," + found + answer.end_of(tail))
    return answer.body(joined)


@given(results)
def test_a_compact_answer_expanded_is_the_long_answer(items: list[Any]) -> None:
    long, compact = (orjson.loads(answered(items, is_compact=form)) for form in (False, True))
    assert expanded(compact) == long["results"] == expanded(long)
    assert [list(item) for item in expanded(compact)] == [list(item) for item in long["results"]]
    assert len(compact["results"]) == len(items)
    used = {result["read"] for result in compact["results"] if "read" in result}
    assert used == set(range(len(compact["reads"])))
    assert len(compact["reads"]) == len({item[2] for item in items if item is not None})


@given(results)
def test_the_function_that_the_documentation_gives_expands_a_compact_answer(items: list[Any]) -> None:
    (function,) = [block for block in DOCUMENT.split("```") if "def expanded" in block]
    names: dict[str, Any] = {}
    exec(function.removeprefix("python"), names)  # our own documentation
    long, compact = (orjson.loads(answered(items, is_compact=form)) for form in (False, True))
    assert names["expanded"](compact) == long["results"]


BATCH = b"/v1/stores/s/lookup?compact=true"
PLAIN = [(b"accept-encoding", b"identity"), (b"content-type", b"application/json")]


class Lookups(LookupsFirst):
    """An application without stores."""

    def answer(self, target: bytes, exchange: Exchange) -> None: ...

    async def look_up_many(self, batch: KeyBatch) -> bytes:
        return b""

    def has_store(self, store: str) -> bool:
        return False


@pytest.mark.parametrize(
    ("target", "size_bytes", "headers", "access", "taken"),
    [
        pytest.param(BATCH, 1, PLAIN, None, True, id="small"),
        pytest.param(b"/v1/stores/s/lookup", MAX_DIRECT_BYTES, PLAIN, None, True, id="as large as may be"),
        pytest.param(BATCH, MAX_DIRECT_BYTES + 1, PLAIN, None, False, id="large"),
        pytest.param(BATCH, 0, PLAIN, None, False, id="of unknown length"),
        pytest.param(BATCH, 5, [(b"accept-encoding", b"gzip")], None, False, id="maybe compressed"),
        pytest.param(BATCH, 5, PLAIN, Access(), False, id="by credential"),
        pytest.param(b"/v1/stores/s/keys", 5, PLAIN, None, False, id="another call"),
        pytest.param(b"/v1/stores/s/lookup#a", 5, PLAIN, None, False, id="a fragment"),
        pytest.param(b"/v1/applications/a/stores/s/lookup", 5, PLAIN, None, False, id="of an application"),
    ],
)
def test_a_batch_is_taken_from_the_protocol_or_goes_by_asgi(
    target: bytes, size_bytes: int, headers: Headers, access: Any, *, taken: bool
) -> None:
    lookups = Lookups(cast(App, None), max_in_flight=1, requests=RequestCounts())
    answers = Answers(batches=lookups, access=access)
    assert (answers.batch(target, size_bytes, headers, lambda *_: None) is not None) is taken


async def test_a_batch_whose_body_comes_slowly_takes_no_place_from_others() -> None:
    lookups = Lookups(cast(App, None), max_in_flight=1, requests=RequestCounts())
    scope = {"type": "http", "http_version": "1.0", "method": "POST", "raw_path": b"/v1/stores/s/lookup"}
    scope |= {"query_string": b"", "headers": []}
    slow = asyncio.ensure_future(lookups(scope, asyncio.Future, cast(Send, None)))
    await asyncio.sleep(0)
    assert not slow.done()
    lookups.begin()
    with pytest.raises(ProblemError, match="in flight"):
        lookups.begin()
    slow.cancel()


REFUSED = Problem(ProblemType.NO_ACCEPTABLE_REPLICA, "no replica may answer", where="bounds")


def position(version: int) -> Position:
    return Position(ApplicationId("app"), Lineage("l1"), version, version * 1_000_000)


def tail(partition: int, version: int) -> bytes:
    place = b'"partition":%d,"version":%d,' % (partition, version)
    return place + b'"committed_at":null,"position":"%b"}\n' % position(version).encode().encode()


def found(partition: int, version: int = 7, value: bytes = b'"found":true,"value":1,') -> HopOutcome:
    return HopOutcome(FOUND, value, tail(partition, version))


def absent(partition: int, version: int = 7, members: bytes = NOT_FOUND) -> HopOutcome:
    return HopOutcome(ABSENT, members, tail(partition, version))


def problem(said: HopOutcome | Problem | Unsettled) -> Problem:
    assert isinstance(said, Problem)
    return said


def test_absent_everywhere_at_one_version_is_in_no_partition() -> None:
    said = answer_of("op0", [absent(0, 7), absent(1, 7), absent(2, 7)])
    assert said == HopOutcome(ABSENT, NOT_FOUND, tail(0, 7).replace(b'"partition":0', b'"partition":null'))


def test_absent_everywhere_at_different_versions_has_to_be_asked_again_at_the_oldest() -> None:
    """A partition that is ahead may have had the key at version 7, and lost it since."""
    assert answer_of("op0", [absent(0, 9), absent(1, 7), absent(2, 8)]) == Unsettled(position(7))
    assert answer_of("op0", [absent(0, 9), found(1, 7), absent(2, 8)]) == found(1, 7)


@pytest.mark.parametrize(
    "second", [found(2, value=b'"found":true,"value":2,'), absent(2, members=b'"found":false,"e":1,')]
)
def test_two_partitions_that_have_a_key_are_a_problem_also_where_one_of_them_shows_nothing(second: HopOutcome) -> None:
    said = problem(answer_of("op0", [found(0), absent(1), second]))
    assert (said.type, said.status, said.extra) == (ProblemType.AMBIGUOUS_KEY, 409, {"partitions": [0, 2]})
    assert "partitions 0 and 2 of op0" in said.detail


@pytest.mark.parametrize("others", [[found(0), REFUSED], [absent(0), REFUSED], [REFUSED, found(1)]])
def test_without_an_answer_of_each_partition_there_is_none(others: list[HopOutcome | Problem]) -> None:
    said = problem(answer_of("op0", others))
    at = others.index(REFUSED)
    assert (said.type, said.where, said.extra) == (REFUSED.type, f"partition {at}; bounds", {"partition": at})


def page(partition: int, versions: dict[int, int | None], *, last: int = 9, until: int | None = None) -> dict[str, Any]:
    entries = [
        {"found": count is not None, "partition": partition, "version": version} for version, count in versions.items()
    ]
    return {"partition": partition, "from": 1, "to": last, "versions": entries, "next_from": until}


def test_a_history_is_that_of_the_partition_that_had_the_key_up_to_where_all_were_read() -> None:
    said = history_of("op0", [page(0, {1: None}, until=5), page(1, {1: None, 3: 2, 8: 3})])
    assert (said["partition"], said["from"], said["to"], said["next_from"]) == (1, 1, 9, 5)
    assert [each["version"] for each in said["versions"]] == [1, 3]
    whole = history_of("op0", [page(0, {1: None}), page(1, {1: None, 3: 2})])
    assert whole["next_from"] is None


def event(kind: KeyEvent, partition: int, version: int, *, is_found: bool, position: bool = False) -> bytes:
    data = {"store": "op0", "key": {"k": 1}, "found": is_found, "partition": partition, "version": version}
    return with_id(key_event(kind, orjson.dumps(data)), token(version) if position else None)


def token(version: int) -> str:
    return Position(ApplicationId("a"), Lineage("l"), version, None).encode()


def events(sent: bytes) -> list[tuple[str, object, str | None]]:
    read = [read_event(block) for block in sent.split(b"\n\n") if block]
    return [
        (each.kind, orjson.loads(each.text.partition(b"data: ")[2]).get("partition", "-"), each.position)
        for each in read
        if each is not None
    ]


def test_the_first_value_is_told_when_all_partitions_have_told_theirs() -> None:
    watch = ScatteredWatch("op0", 3)
    assert watch.passed(event(KeyEvent.SNAPSHOT, 0, 7, is_found=False)) == b""
    assert watch.passed(event(KeyEvent.SNAPSHOT, 1, 7, is_found=True)) == b""
    told = watch.passed(event(KeyEvent.SNAPSHOT, 2, 6, is_found=False, position=True))
    assert events(told) == [("snapshot", 1, token(6))]
    nowhere = ScatteredWatch("op0", 2)
    pieces = event(KeyEvent.SNAPSHOT, 0, 7, is_found=False) + event(KeyEvent.SNAPSHOT, 1, 7, is_found=False)
    assert events(nowhere.passed(pieces)) == [("snapshot", None, None)]


def test_a_watcher_is_told_that_a_key_is_absent_when_all_partitions_have_told_one_version() -> None:
    """The partition that is ahead may have had the key at version 6, and the one behind may get it with version 7."""
    behind = event(KeyEvent.SNAPSHOT, 0, 7, is_found=False) + event(
        KeyEvent.SNAPSHOT, 1, 6, is_found=False, position=True
    )
    watch = ScatteredWatch("op0", 2)
    assert watch.passed(behind) == KEEP_ALIVE, "behind a position a watcher that comes back would get no first value"
    assert events(watch.passed(version_event(7, token(7)))) == [("snapshot", None, None), ("version", "-", token(7))]
    assert events(watch.passed(version_event(8, token(8)))) == [("version", "-", token(8))]

    watch = ScatteredWatch("op0", 2)
    watch.passed(behind)
    told = watch.passed(event(KeyEvent.VALUE, 1, 7, is_found=True, position=True))
    assert events(told) == [("snapshot", 1, token(7))], "what comes meanwhile is the first value"


@pytest.mark.parametrize(
    ("first", "change", "last_version", "told"),
    [
        ((KeyEvent.SNAPSHOT, True), (KeyEvent.VALUE, True), 11, ("snapshot", True, 0, 11)),
        ((KeyEvent.SNAPSHOT, True), (KeyEvent.DELETED, False), 11, ("snapshot", False, None, 11)),
        ((KeyEvent.SNAPSHOT, False), (KeyEvent.VALUE, True), 12, ("snapshot", True, 0, 11)),
    ],
    ids=["changed", "deleted", "created"],
)
def test_a_change_of_a_key_before_all_partitions_have_told_theirs_is_its_first_value(
    first: tuple[KeyEvent, bool], change: tuple[KeyEvent, bool], last_version: int, told: tuple[object, ...]
) -> None:
    """The oldest changes come first, so that a change in one partition may come before the first value of another."""
    watch = ScatteredWatch("op0", 2)
    early = event(first[0], 0, 10, is_found=first[1]) + event(change[0], 0, 11, is_found=change[1])
    assert watch.passed(early) == b""
    assert not watch.there, "the key is not known in all partitions yet"
    sent = watch.passed(event(KeyEvent.SNAPSHOT, 1, last_version, is_found=False, position=True))
    (only,) = [read for block in sent.split(b"\n\n") if block and (read := read_event(block)) is not None]
    data = orjson.loads(only.text.partition(b"data: ")[2])
    assert (only.kind, data["found"], data["partition"], data["version"]) == told
    assert only.position == token(last_version)
    assert watch.there == {orjson.dumps({"k": 1}): {0} if data["found"] else set()}
    later = watch.passed(event(KeyEvent.VALUE, 0, 13, is_found=True))
    assert events(later) == [("value", 0, None)]


def test_a_change_that_makes_a_key_ambiguous_before_all_partitions_have_told_theirs_is_a_problem() -> None:
    watch = ScatteredWatch("op0", 3)
    watch.passed(event(KeyEvent.SNAPSHOT, 0, 10, is_found=True) + event(KeyEvent.SNAPSHOT, 1, 10, is_found=False))
    with pytest.raises(ProblemError) as raised:
        watch.passed(
            event(KeyEvent.VALUE, 1, 11, is_found=True) + event(KeyEvent.SNAPSHOT, 2, 11, is_found=False, position=True)
        )
    assert raised.value.problem.extra == {"partitions": [0, 1]}


def test_a_key_that_cannot_be_read_is_there_for_its_watchers() -> None:
    data = {"store": "op0", "key": {"k": 1}, "problem": {"type": "store-error"}, "partition": 0, "version": 7}
    watch = ScatteredWatch("op0", 2)
    watch.passed(with_id(key_event(KeyEvent.SNAPSHOT, orjson.dumps(data)), None))
    told = watch.passed(event(KeyEvent.SNAPSHOT, 1, 7, is_found=False, position=True))
    assert events(told) == [("snapshot", 0, token(7))]


def test_a_second_partition_that_gets_a_key_ends_its_watch_unless_the_first_has_lost_it() -> None:
    watch = ScatteredWatch("op0", 2)
    watch.passed(event(KeyEvent.SNAPSHOT, 0, 7, is_found=True) + event(KeyEvent.SNAPSHOT, 1, 7, is_found=False))
    assert events(watch.passed(event(KeyEvent.DELETED, 0, 8, is_found=False))) == [("deleted", 0, None)]
    assert events(watch.passed(event(KeyEvent.VALUE, 1, 9, is_found=True))) == [("value", 1, None)]
    with pytest.raises(ProblemError) as raised:
        watch.passed(event(KeyEvent.VALUE, 0, 9, is_found=True))
    assert raised.value.problem.type is ProblemType.AMBIGUOUS_KEY


@pytest.mark.parametrize(("kind", "is_ambiguous"), [(StoreKind.VALUE, False), (StoreKind.SESSION, True)])
async def test_a_window_of_two_partitions_is_a_problem_and_so_are_sessions_of_one_key(
    kind: StoreKind, is_ambiguous: bool
) -> None:
    """Windows of time are keys of their own, so that those of one key may lie in several partitions."""
    store = ScannedStore("op0", kind, "a", "l", KeyCodec(StructType()), 3, range(3))
    ranks = {0: b"1", 1: b"2", 2: b"1"}

    async def read(place: Place, room: Room) -> PartPage:
        return PartPage(b"{}", 1, 1, None, True, {}, None, "seek", ((ranks[place.partition], 2),))

    read_one, room = _of_one_partition(store, read), Room(1, 1, 0.0)
    await read_one(Place(0), room)
    await read_one(Place(0), room)
    if is_ambiguous:
        with pytest.raises(ProblemError) as raised:
            await read_one(Place(1), room)
        assert raised.value.problem.extra == {"partitions": [0, 1]}
        return
    await read_one(Place(1), room)
    with pytest.raises(ProblemError) as raised:
        await read_one(Place(2), room)
    assert raised.value.problem.extra == {"partitions": [0, 2]}
