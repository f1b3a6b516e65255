"""Assignments: a large one is read and written in slices, and changes of one lead to where the whole would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus.documents import assignment

from understudy_shared.bus import assignments as module
from understudy_shared.bus import messages
from understudy_shared.bus.assignments import AssignmentChange, apply_change, change_between, decode, decode_slices
from understudy_shared.bus.messages import AssignedTask, Assignment, BadMessageError, Heartbeat, NodeEndpoint

APPLICATION = "flights"
AWKWARD = ['"tasks":{', ',"tasks":{', ']},"', ']}},"', "]},", "\\", '\\"', "tasks", '"tasks":{}', "ü", "a"]
names = st.sampled_from(AWKWARD) | st.text(min_size=1, max_size=8)
small = st.integers(0, 999)
some_names = st.lists(names, max_size=3).map(tuple)
tasks = st.dictionaries(
    st.builds(lambda operator, partition: f"{operator}_{partition}", small, small),
    st.builds(AssignedTask, active=st.none() | names, standbys=some_names, warmups=some_names),
    max_size=12,
)
assignments = st.builds(
    Assignment,
    application_id=st.just(APPLICATION),
    term=small,
    epoch=small,
    written_by=names,
    lineage=names,
    partitions=st.integers(1, 9),
    tasks=tasks,
    members=st.dictionaries(names, st.builds(NodeEndpoint, host=names, port=st.integers(1, 65535)), max_size=3),
    draining=st.lists(names, max_size=3),
)


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_BYTES", 1)
    monkeypatch.setattr(module, "SLICE_BYTES", 1)
    monkeypatch.setattr(messages, "SLICE_TASKS", 2)


def in_slices(document: bytes) -> tuple[Assignment, int]:
    """The assignment, and how often other tasks could run."""
    turns = 0

    async def give() -> None:
        nonlocal turns
        turns += 1

    found = asyncio.run(decode(Assignment, document, application_id=APPLICATION, where="here", give=give))
    return found, turns


@given(assignments)
def test_slices_are_written_as_the_whole_would_be(assignment: Assignment) -> None:
    assert assignment.encode() == orjson.dumps(assignment.model_dump(mode="json"))


@given(assignments)
def test_an_assignment_read_in_slices_is_the_one_read_whole(assignment: Assignment) -> None:
    document = assignment.encode()
    found, _ = in_slices(document)
    assert found == assignment == Assignment.decode(document, application_id=APPLICATION, where="here")
    assert list(found.tasks) == list(assignment.tasks)
    assert found.holders == frozenset(node for task in assignment.tasks.values() for node in task.holders)


def document_of(count: int, **fields: Any) -> bytes:
    duties = {f"0_{number}": {"active": "a", "standbys": ["b"], "warmups": []} for number in range(count)}
    known: Mapping[str, Any] = {
        "format": 1, "application_id": APPLICATION, "term": 1, "epoch": 2, "written_by": "a", "lineage": "l",
        "partitions": 8, "tasks": duties, "members": {}, "draining": [],
    }  # fmt: skip
    return orjson.dumps({**known, **fields})


def test_other_tasks_run_between_two_slices() -> None:
    found, turns = in_slices(document_of(8))
    assert (len(found.tasks), turns) == (8, 8)


UNKNOWN_FIELD = b'{"x":{"y":1,"tasks":{"0_9":{"active":"x","standbys":[],"warmups":[]}},"z":1},'
ODD = {
    "tasks of an unknown field": UNKNOWN_FIELD + document_of(3)[1:],
    "tasks of an unknown field alone": UNKNOWN_FIELD + document_of(0)[1:],
    "tasks twice": document_of(3)[:-1] + b',"tasks":{"0_1":{"active":"z","standbys":[],"warmups":[]}},"x":1}',
    "a task twice": document_of(2).replace(b'"0_1"', b'"0_0"'),
    "members before tasks": orjson.dumps(
        {"members": {"tasks": {"host": "h", "port": 1}}, **orjson.loads(document_of(3))}
    ),
    "fields that a later release adds": document_of(3).replace(b'"warmups":[]}', b'"warmups":[],"later":[1]}'),
    "spaces": document_of(3).replace(b",", b", "),
    "no tasks": document_of(0),
}


@pytest.mark.parametrize("document", ODD.values(), ids=ODD)
def test_a_document_that_is_written_in_another_way_is_read_as_the_whole(document: bytes) -> None:
    assert in_slices(document)[0] == Assignment.decode(document, application_id=APPLICATION, where="here")


BAD = {
    "a bad task": document_of(3).replace(b'"0_1"', b'"0_x"'),
    "a task that is no object": document_of(3).replace(
        b'{"active":"a","standbys":["b"],"warmups":[]},"0_2"', b'7,"0_2"'
    ),
    "cut off": document_of(3)[:-9],
    "another application": document_of(3, application_id="other"),
    "no lineage": document_of(3).replace(b'"lineage":"l",', b""),
}


@pytest.mark.parametrize("document", BAD.values(), ids=BAD)
def test_a_bad_document_is_refused_with_the_words_of_the_whole(document: bytes) -> None:
    with pytest.raises(BadMessageError) as whole:
        Assignment.decode(document, application_id=APPLICATION, where="here")
    with pytest.raises(BadMessageError) as sliced:
        in_slices(document)
    assert str(sliced.value) == str(whole.value)


@given(st.binary(max_size=3), st.integers(0, 400), st.integers(0, 6))
def test_a_damaged_document_means_the_same_in_slices_or_is_refused_by_both(put: bytes, at: int, cut: int) -> None:
    document = document_of(3)
    at = min(at, len(document))
    damaged = document[:at] + put + document[at + cut :]
    try:
        whole = Assignment.decode(damaged, application_id=APPLICATION, where="here")
    except BadMessageError:
        with pytest.raises(BadMessageError):
            in_slices(damaged)
    else:
        assert in_slices(damaged)[0] == whole


def test_other_messages_are_read_in_one_piece() -> None:
    assert list(decode_slices(b"{}", application_id=APPLICATION, where="here")) == []
    with pytest.raises(BadMessageError, match="heartbeat"):
        asyncio.run(decode(Heartbeat, b"{}", application_id=APPLICATION, where="here", give=lambda: asyncio.sleep(0)))


@given(assignments, tasks)
def test_a_copy_with_other_tasks_has_other_holders(assignment: Assignment, others: dict[str, AssignedTask]) -> None:
    assert assignment.holders is assignment.holders
    copied = assignment.model_copy(update={"tasks": others})
    assert copied.holders == frozenset(node for task in others.values() for node in task.holders)


TASKS = [f"0_{number}" for number in range(6)]
NODES = "abcd"
ASSIGNED = st.builds(
    lambda nodes, warmups: AssignedTask(
        active=nodes[0] if nodes else None, standbys=tuple(nodes[1:]), warmups=tuple(sorted(warmups - set(nodes)))
    ),
    st.lists(st.sampled_from(NODES), unique=True, max_size=3),
    st.sets(st.sampled_from(NODES), max_size=1),
)
STEPS = st.fixed_dictionaries(
    {
        "tasks": st.dictionaries(st.sampled_from(TASKS), ASSIGNED, max_size=4),
        "members": st.dictionaries(
            st.sampled_from(NODES), st.builds(NodeEndpoint, host=st.sampled_from("xy"), port=st.just(1))
        ),
        "draining": st.lists(st.sampled_from(NODES), max_size=2),
        "term": st.integers(0, 1),
        "partitions": st.sampled_from([6, 6, 6, 7]),
    }
)
WRITE = 0
"""An event: the next assignment is written. Any other number is a message that arrives, perhaps again or too late."""


def assigned(tasks: dict[str, AssignedTask], **fields: object) -> Assignment:
    return assignment(term=1, epoch=1).model_copy(update={"partitions": 6, "tasks": tasks, **fields})


def follows(known: Assignment | None, message: Assignment | AssignmentChange, stored: Assignment) -> Assignment | None:
    """What a process follows after a message; `stored` is what it reads when it cannot use the message."""
    found = (apply_change(message, known) or stored) if isinstance(message, AssignmentChange) else message
    return known if known is not None and found.order <= known.order else found


@given(steps=st.lists(STEPS, min_size=1, max_size=8), events=st.lists(st.integers(0, 20)), starts_again=st.booleans())
def test_after_any_loss_and_in_any_order_what_is_followed_is_an_assignment_that_was_written(
    steps: list[dict[str, object]], events: list[int], starts_again: bool
) -> None:
    whole = assigned({task: AssignedTask(active="a") for task in TASKS})
    written, said = [whole], list[Assignment | AssignmentChange]([whole])
    known: Assignment | None = whole

    def write() -> None:
        before, step = written[-1], dict(steps[len(written) - 1])
        tasks = before.tasks | step.pop("tasks")  # type: ignore[operator]
        term = before.term + int(str(step.pop("term")))
        after = before.model_copy(update={**step, "term": term, "epoch": before.epoch + 1, "tasks": tasks})
        change = change_between(before, after)
        written.append(after)
        said.append(after if change is None else decoded(change))

    def hear(number: int) -> None:
        nonlocal known
        known = follows(known, said[number % len(said)], written[-1])
        assert known is not None
        expected = next(each for each in written if each.order == known.order)
        assert known == expected
        assert known.holders == expected.holders
        assert list(known.tasks) == list(expected.tasks)

    for event in events:
        if event == WRITE and len(written) <= len(steps):
            write()
        else:
            hear(event)
    if starts_again:
        known = None
    hear(len(said) - 1)
    assert known == written[-1]


def decoded(change: AssignmentChange) -> AssignmentChange:
    return AssignmentChange.decode(change.encode(), application_id="flights", where="here")


def test_a_change_names_what_a_death_touches_and_nothing_else() -> None:
    tasks = {task: AssignedTask(active="a" if task < "0_3" else "b", standbys=("c",)) for task in TASKS}
    members = {each: NodeEndpoint(host=each, port=1) for each in "abc"}
    before = assigned(tasks, members=dict(members))
    moved = {task: AssignedTask(active="c") for task in TASKS[3:]}
    del members["b"]
    after = before.model_copy(update={"epoch": 2, "tasks": tasks | moved, "members": members})
    change = change_between(before, after)
    assert change is not None
    assert (change.tasks, change.gone, change.unnamed, change.members) == (moved, ["b"], ["b"], {})
    assert change_between(before, after.model_copy(update={"lineage": "l2"})) is None


def test_a_change_of_tasks_that_are_not_known_is_not_applied() -> None:
    known = assigned({"0_0": AssignedTask(active="a")})
    change = AssignmentChange(
        application_id="flights", term=1, epoch=2, base_term=1, base_epoch=1, base_written_by="n1", written_by="a",
        lineage="l1", tasks={"0_1": AssignedTask(active="a")},
    )  # fmt: skip
    assert apply_change(change, known) is None
    assert apply_change(change.model_copy(update={"tasks": {}, "base_epoch": 2}), known) is None
    of_another = change.model_copy(update={"tasks": {}, "base_written_by": "b"})
    assert apply_change(of_another, known) is None, "an old primary of Redis and the new one had this term and epoch"
    assert apply_change(change.model_copy(update={"tasks": {}}), known) is not None
