"""What all partitions of a scattered store say of a key becomes one answer, one history, one stream of events."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from understudy_shared.base.words import ApplicationId, Lineage, StoreKind
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.lookup.batches import NOT_FOUND, Unsettled, answer_of, history_of
from understudy_shared.questions.lookup.hop import ABSENT, FOUND, HopOutcome
from understudy_shared.questions.scan.page import PartPage, Place, Room
from understudy_shared.questions.scan.requests import ScannedStore
from understudy_shared.questions.scan.service import _of_one_partition
from understudy_shared.questions.watch.events import KeyEvent, key_event, read_event, version_event, with_id
from understudy_shared.questions.watch.service import ScatteredWatch
from understudy_shared.reads.tokens import Position
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import StructType

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
    assert events(watch.passed(behind)) == [("version", "-", token(6))]
    assert events(watch.passed(version_event(7, token(7)))) == [("snapshot", None, None), ("version", "-", token(7))]
    assert events(watch.passed(version_event(8, token(8)))) == [("version", "-", token(8))]

    watch = ScatteredWatch("op0", 2)
    watch.passed(behind)
    told = watch.passed(event(KeyEvent.VALUE, 1, 7, is_found=True, position=True))
    assert events(told) == [("snapshot", 1, token(7))], "what comes meanwhile is the first value"


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
