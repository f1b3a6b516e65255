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
from tests.support.bus.documents import APPLICATION, assignment, heartbeat

from understudy_shared.base.words import ApplicationId, HostInfo, TaskId
from understudy_shared.bus.gossip import MAX_NAMED, Applications, Names, digest_of, unheard_fix, unheard_text
from understudy_shared.bus.messages import (
    FORMAT,
    MAX_MESSAGE_BYTES,
    AnnouncedStore,
    Announcement,
    Applied,
    AssignedTask,
    Assignment,
    BadMessageError,
    Catalogue,
    CatalogueStore,
    CommitHint,
    Endpoint,
    Farewell,
    Heartbeat,
    Message,
    ResultColumn,
    task_key,
)

names = st.text(min_size=1, max_size=256)
counts = st.integers(0, 2**48)
maybe_counts = st.none() | counts
small = st.integers(0, 999_999_999)
task_keys = st.builds(lambda operator, partition: f"{operator}_{partition}", small, small)
endpoints = st.builds(Endpoint, host=names, port=st.integers(1, 65535))
states = st.sampled_from(["CREATED", "RESTORING", "RUNNING", "CLOSED"])
applied = st.builds(
    Applied,
    version=maybe_counts,
    time_lag_ms=maybe_counts,
    state=states,
    error=st.none() | st.text(max_size=2048),
)
applications = {"application_id": st.just(APPLICATION)}
MESSAGES: dict[type[Message], st.SearchStrategy[Message]] = {
    Heartbeat: st.builds(
        Heartbeat,
        **applications,
        node_id=names,
        incarnation=names,
        sequence=counts,
        endpoint=endpoints,
        zone=st.none() | st.text(max_size=256),
        state=st.sampled_from(["starting", "serving", "draining", "failed"]),
        heartbeat_ms=st.integers(1, 3_600_000),
        lineage=st.none() | names,
        partitions=st.none() | st.integers(0, 2**20),
        end_version=counts,
        end_age_ms=maybe_counts,
        applied=applied,
        exceptions=st.dictionaries(task_keys, applied, max_size=3),
        held=st.none() | st.lists(task_keys, max_size=3),
        term=counts,
        epoch=counts,
        catalogue=st.none() | st.text(max_size=64),
        checkpoint=st.text(max_size=4096),
    ),
    Farewell: st.builds(Farewell, **applications, node_id=names, incarnation=names),
    Assignment: st.builds(
        Assignment,
        **applications,
        term=counts,
        epoch=counts,
        written_by=names,
        lineage=names,
        partitions=st.integers(1, 2**20),
        tasks=st.dictionaries(
            task_keys,
            st.builds(AssignedTask, active=st.none() | names, standbys=st.lists(names, max_size=2).map(tuple)),
            max_size=3,
        ),
        members=st.dictionaries(names, endpoints, max_size=3),
        draining=st.lists(names, max_size=2),
    ),
    CommitHint: st.builds(CommitHint, **applications, version=counts),
    Announcement: st.builds(
        Announcement,
        **applications,
        query_id=names,
        stores=st.lists(
            st.builds(
                AnnouncedStore,
                operator_id=counts,
                name=st.none() | names,
                key=st.none() | st.lists(names, max_size=2),
                value=st.none() | st.lists(names, max_size=2),
                result=st.lists(
                    st.builds(
                        ResultColumn,
                        name=names,
                        function=st.sampled_from(["count", "sum", "avg", "min", "max"]),
                        buffers=st.lists(counts, min_size=1, max_size=2),
                        type=names,
                    ),
                    max_size=2,
                ),
            ),
            max_size=2,
        ),
        checkpoint=st.none() | st.text(min_size=1, max_size=4096),
    ),
    Catalogue: st.builds(
        Catalogue,
        **applications,
        lineage=names,
        partitions=st.integers(1, 2**20),
        stores=st.lists(
            st.builds(
                CatalogueStore,
                store=names,
                operator_id=counts,
                operator=names,
                key_schema=st.text(),
                key_names=st.lists(st.text(), max_size=2),
                num_hash_columns=maybe_counts,
                is_normalised=st.booleans(),
                partitions=st.integers(1, 2**20),
                value=st.lists(st.dictionaries(st.text(), st.text() | st.booleans(), max_size=3), max_size=2),
                result=st.lists(st.dictionaries(st.text(), st.text(), max_size=2), max_size=2),
            ),
            max_size=2,
        ),
        not_served=st.lists(st.dictionaries(st.text(), st.text() | small, max_size=2), max_size=2),
    ),
}
messages = st.one_of(*MESSAGES.values())


def decoded(kind: type[Message], fields: object) -> Message:
    """What `kind` makes of a JSON document."""
    return kind.decode(orjson.dumps(fields), application_id=APPLICATION, where="a test")


@given(messages)
def test_every_document_comes_back_as_it_was(message: Message) -> None:
    assert type(message).decode(message.encode(), application_id=APPLICATION, where="a test") == message


@given(
    messages, st.dictionaries(st.text().map("new ".__add__), st.integers(-(2**63), 2**64 - 1) | st.text(), max_size=3)
)
def test_unknown_fields_change_nothing(message: Message, unknown: dict[str, object]) -> None:
    assert decoded(type(message), {**message.model_dump(mode="json"), **unknown}) == message


@given(st.sampled_from(list(MESSAGES)), st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_and_raise_nothing_else(kind: type[Message], payload: bytes) -> None:
    with pytest.raises(BadMessageError):
        kind.decode(payload, application_id=APPLICATION, where="a test")


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The paths of all values inside a JSON document."""
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
        ({"sequence": 1.0}, "sequence"),
        ({"sequence": True}, "sequence"),
        ({"sequence": -1}, "sequence"),
        ({"sequence": 2**48 + 1}, "sequence"),
        ({"node_id": ""}, "node_id"),
        ({"node_id": "x" * 257}, "node_id"),
        ({"node_id": None}, "node_id"),
        ({"state": "asleep"}, "state"),
        ({"heartbeat_ms": 0}, "heartbeat_ms"),
        ({"endpoint": {"host": "h", "port": 0}}, "endpoint.port"),
        ({"endpoint": {"host": "h", "port": 65536}}, "endpoint.port"),
        ({"applied": {"version": 1, "state": "running"}}, "applied.state"),
        ({"applied": {"version": 1, "error": "x" * 2049}}, "applied.error"),
        ({"exceptions": {"0": {"version": 1}}}, "exceptions.0"),
        ({"held": ["1_2_3"]}, "held.0"),
        ({"held": ["01_2"]}, "held.0"),
        ({"held": ["٣_٤"]}, "held.0"),
        ({"held": ["1_2\n"]}, "held.0"),
        ({"format": 0}, "format"),
        ({"format": "1"}, "format"),
        ({"application_id": "trains"}, "of application 'trains', not of 'flights'"),
    ],
)
def test_a_field_that_is_wrong_is_named(fields: dict[str, object], says: str) -> None:
    with pytest.raises(BadMessageError) as caught:
        decoded(Heartbeat, {**GOOD, **fields})
    assert says in caught.value.what
    assert caught.value.where == "a test"


@pytest.mark.parametrize("name", sorted(name for name, field in Heartbeat.model_fields.items() if field.is_required()))
def test_a_field_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(BadMessageError, match=name):
        decoded(Heartbeat, {key: value for key, value in GOOD.items() if key != name})


def test_a_later_format_says_what_to_upgrade_even_if_nothing_else_fits() -> None:
    with pytest.raises(BadMessageError, match=f"format {FORMAT + 1}") as caught:
        decoded(Heartbeat, {"format": FORMAT + 1})
    assert "Upgrade" in caught.value.fix


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"1", b"null", b'"x"', b"[" * 100_000, b'{"a":1e999}', b"\xff"])
def test_what_is_no_json_object_is_refused(document: bytes) -> None:
    with pytest.raises(BadMessageError):
        CommitHint.decode(document, application_id=APPLICATION, where="a test")


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


def test_small_words() -> None:
    task = TaskId(ApplicationId(APPLICATION), 3, 17)
    assert task_key(task) == "3_17"
    held = AssignedTask(active=None, standbys=("b",), warmups=("c",))
    assert held.holders == ("b", "c")
    assert AssignedTask(active="a", standbys=("b",), warmups=("c",)).holders == ("a", "b", "c")
    assert assignment(term=3, epoch=5).order == (3, 5) > assignment(term=2, epoch=9).order
    assert Endpoint(host="h", port=1).host_info() == HostInfo("h", 1)


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
        ({}, "no other application is heard there"),
        ({"fligths": 0}, "no other application is heard there"),
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
    assert f"and {50 - MAX_NAMED} more (it has more keys than were read)" in said
    assert len(said) < 1000
