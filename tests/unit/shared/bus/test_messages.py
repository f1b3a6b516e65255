"""Documents between processes: they come back as they were, and what is not one is refused with a reason; and which
applications have keys on a bus.
"""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.documents import CATALOGUE, SPOKEN, WIDE
from tests.support.bus.documents import APPLICATION, assignment, heartbeat

from understudy_shared.bus.gossip import Applications, Names, digest_of, unheard_fix, unheard_text
from understudy_shared.bus.messages import (
    FORMAT,
    MAX_MESSAGE_BYTES,
    AssignedTask,
    Assignment,
    BadMessageError,
    Catalogue,
    CommitHint,
    Heartbeat,
    Message,
)

messages = st.sampled_from((*SPOKEN, CATALOGUE, WIDE))


def decoded(kind: type[Message], fields: object) -> Message:
    return kind.decode(orjson.dumps(fields), application_id=APPLICATION, where="a test")


@given(
    messages, st.dictionaries(st.text().map("new ".__add__), st.integers(-(2**63), 2**64 - 1) | st.text(), max_size=3)
)
def test_unknown_fields_change_nothing(message: Message, unknown: dict[str, object]) -> None:
    assert decoded(type(message), {**message.model_dump(mode="json"), **unknown}) == message


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    inside: list[tuple[object, object]] = []
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    return [path, *(place for key, part in inside for place in places(part, (*path, key)))]


junk = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda parts: st.lists(parts, max_size=2) | st.dictionaries(st.text(), parts, max_size=2),
    max_leaves=4,
)


@given(st.data(), messages)
def test_a_document_with_one_value_replaced_is_read_exactly_or_refused(data: st.DataObject, message: Message) -> None:
    fields: Any = copy.deepcopy(message.model_dump(mode="json"))
    *parents, last = data.draw(st.sampled_from(places(fields)[1:]))
    holder = fields
    for key in parents:
        holder = holder[key]
    holder[last] = data.draw(junk)
    payload = orjson.dumps(fields)
    try:
        read = type(message).decode(payload, application_id=APPLICATION, where="a test")
    except BadMessageError:
        return
    known = orjson.loads(read.encode())
    for key in [*parents, last]:
        known, fields = known[key], fields[key]
    assert is_read_exactly(known, orjson.loads(orjson.dumps(fields)))


def is_read_exactly(known: Any, fields: Any) -> bool:
    """Whether a document that was read holds what was written. Its objects lack unknown fields and have defaults."""
    if isinstance(known, dict) and isinstance(fields, dict):
        return all(is_read_exactly(known[name], value) for name, value in fields.items() if name in known)
    return bool(known == fields)


GOOD = heartbeat().model_dump(mode="json")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sequence": "1"}, "sequence"),
        ({"sequence": True}, "sequence"),
        ({"sequence": -1}, "sequence"),
        ({"sequence": 2**48 + 1}, "sequence"),
        ({"node_id": ""}, "node_id"),
        ({"node_id": "x" * 257}, "node_id"),
        ({"state": "asleep"}, "state"),
        ({"endpoint": {"host": "h", "port": 65536}}, "endpoint.port"),
        ({"applied": {"version": 1, "state": "running"}}, "applied.state"),
        ({"exceptions": {"0": {"version": 1}}}, "exceptions.0"),
        ({"held": ["01_2"]}, "held.0"),
        ({"held": ["٣_٤"]}, "held.0"),
        ({"held": ["1_2\n"]}, "held.0"),
        ({"format": 0}, "format"),
        ({"application_id": "trains"}, "of application 'trains', not of 'flights'"),
    ],
)
def test_a_field_that_is_wrong_is_named(fields: dict[str, object], says: str) -> None:
    with pytest.raises(BadMessageError) as caught:
        decoded(Heartbeat, {**GOOD, **fields})
    assert says in caught.value.what
    assert caught.value.where == "a test"


def test_a_later_format_says_what_to_upgrade_even_if_nothing_else_fits() -> None:
    with pytest.raises(BadMessageError, match=f"format {FORMAT + 1}") as caught:
        decoded(Heartbeat, {"format": FORMAT + 1})
    assert "Upgrade" in caught.value.fix


def test_the_size_limit_is_exact() -> None:
    body = {"application_id": APPLICATION, "version": 1, "padding": ""}
    room = MAX_MESSAGE_BYTES - len(orjson.dumps(body))
    assert decoded(CommitHint, {**body, "padding": "x" * room}) == CommitHint(application_id=APPLICATION, version=1)
    with pytest.raises(BadMessageError, match=str(MAX_MESSAGE_BYTES)):
        decoded(CommitHint, {**body, "padding": "x" * (room + 1)})


def test_an_assignment_of_a_hundred_thousand_replicas_fits() -> None:
    tasks = {
        f"0_{partition}": AssignedTask(active=f"node-{partition % 997:03}", standbys=(f"node-{partition % 991:03}",))
        for partition in range(50_000)
    }
    large = assignment(term=1, epoch=1).model_copy(update={"tasks": tasks})
    assert Assignment.decode(large.encode(), application_id=APPLICATION, where="a test") == large


def test_a_catalogues_name_depends_on_its_content_alone() -> None:
    one = Catalogue(application_id=APPLICATION, lineage="l1", partitions=2, stores=[], not_served=[{"a": 1, "b": "2"}])
    same = Catalogue(application_id=APPLICATION, lineage="l1", partitions=2, stores=[], not_served=[{"b": "2", "a": 1}])
    assert digest_of(one) == digest_of(same) != digest_of(one.model_copy(update={"partitions": 3}))
    assert len(digest_of(one)) == 32


@given(st.sets(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50), max_size=5))
def test_every_application_is_found_by_its_keys_whatever_its_name(names: set[str]) -> None:
    keys = [key for name in names for key in (Names(name).node("a"), Names(name).node("b"), Names(name).lease)]
    assert Applications.of_keys(keys, is_all=True).nodes == dict.fromkeys(sorted(names), 2)


@pytest.mark.parametrize(
    "key", ["", "us:{", "us:{}:node:a", "us:{a", "us:{a b}:node:a", "us:{%FF}:node:a", "x{a}:node:b"]
)
def test_keys_that_no_application_has_are_left_out(key: str) -> None:
    assert Applications.of_keys([key, f"us:{{{'n' * 257}}}:lease"], is_all=True).nodes == {}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"old": 0}, "no other application is heard there, but there are keys of: 'old'"),
        ({"flights": 2, "old": 0}, "heard there: 'flights'"),
    ],
)
def test_applications_with_nodes_are_named_before_those_that_left_keys(found: dict[str, int], text: str) -> None:
    said = unheard_text("fligths", Applications(found), where="redis://h")
    assert said == f"no node of application 'fligths' is heard on redis://h; {text}"


def test_what_is_said_is_bounded_and_printable() -> None:
    found = Applications({f"{number}\x1b[2J{'x' * 200}": 1 for number in range(50)}, is_all=False)
    said = unheard_fix("y" * 256, found, where="redis://h")
    assert said.isprintable()
    assert len(said) < 1000
