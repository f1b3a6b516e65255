"""Grants of principals, the right that each request needs, and what an answer hides."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.auth.permissions import (
    Need,
    NeedKind,
    granted,
    hidden_store,
    need_of,
    shown_batch,
    shown_problem,
)
from understudy_shared.auth.principals import (
    ANONYMOUS,
    ANYBODY,
    EVERY_KEY,
    EVERY_STORE,
    OF_STORES,
    PEER,
    Action,
    Authorization,
    Grant,
    Principal,
)
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import split_path

STORES = ("a", "b", "c")
VALUES = st.sampled_from([0, 1, "", "1", "a", True, False])
PREFIXES = st.lists(VALUES, max_size=3).map(lambda values: tuple(map(orjson.dumps, values)))
GRANTS = st.lists(
    st.builds(
        Grant,
        st.frozensets(st.sampled_from(sorted(OF_STORES)), min_size=1),
        st.frozensets(st.sampled_from([*STORES, EVERY_STORE]), min_size=1, max_size=2),
        PREFIXES,
    ),
    max_size=4,
)
KEYS = st.lists(VALUES, max_size=4).map(lambda values: {f"k{index}": value for index, value in enumerate(values)})


def allows(grant: Grant, store: str, action: Action, key: dict[str, Any]) -> bool:
    """The meaning of one grant, said as simply as possible."""
    values = [orjson.dumps(value) for value in key.values()]
    is_named = store in grant.stores or EVERY_STORE in grant.stores
    return action in grant.actions and is_named and values[: len(grant.key_prefix)] == list(grant.key_prefix)


@given(GRANTS, st.sampled_from([*STORES, "unheard-of"]), st.sampled_from(sorted(OF_STORES)), KEYS)
def test_a_key_may_be_asked_for_if_and_only_if_some_grant_allows_it(
    grants: list[Grant], store: str, action: Action, key: dict[str, Any]
) -> None:
    scope = Principal("p", grants).keys_of(store, action)
    assert (scope is not None and scope.allows(key)) == any(allows(grant, store, action, key) for grant in grants)


@given(GRANTS, st.lists(st.sampled_from([*STORES, "unheard-of"]), max_size=6))
def test_a_remembered_decision_is_the_decision(grants: list[Grant], stores: list[str]) -> None:
    principal = Principal("p", grants)
    for store in stores:
        remembered, keys = principal.points(store.encode()), principal.keys_of(store, Action.POINT)
        assert (None if remembered is None else remembered.keys) == keys
        assert remembered is None or remembered.principal is principal


def test_what_is_remembered_is_bounded_and_stays_right() -> None:
    principal = Principal("p", [Grant(frozenset({Action.POINT}), frozenset({"a"}))])
    for number in range(5000):
        assert principal.points(b"store-%d" % number) is None
        assert principal.points(b"a") is not None
    assert len(principal._points) <= 1024


@pytest.mark.parametrize("action", list(Action))
def test_nobody_who_is_unknown_may_do_anything_and_anybody_may_where_nobody_is_asked(action: Action) -> None:
    assert not ANONYMOUS.may(action)
    assert ANONYMOUS.keys_of("a", action) is None
    assert not ANONYMOUS.sees("a")
    assert ANYBODY.may(action)
    assert ANYBODY.keys_of("a", action) is EVERY_KEY


READER = Principal("r", [Grant(frozenset({Action.POINT}), frozenset({"seen"}))])
SCANNER = Principal("s", [Grant(frozenset({Action.SCAN}), frozenset({"seen"}))])
MONITOR = Principal("m", [Grant(frozenset({Action.MONITOR}), frozenset({"*"}))])
ADMIN = Principal("a", [Grant(frozenset({Action.ADMIN}), frozenset({"*"}))])
OF_SOME = Principal("o", [Grant(frozenset({Action.MONITOR}), frozenset({"*"}), applications=frozenset({"orders-*"}))])
EVERYBODY = (ANONYMOUS, READER, SCANNER, MONITOR, ADMIN, PEER, OF_SOME)

SEE, POINT = Need(NeedKind.STORE, None, "seen"), Need(NeedKind.STORE, Action.POINT, "seen")
MONITORING, ADMINISTERING = Need(NeedKind.SERVICE, Action.MONITOR), Need(NeedKind.SERVICE, Action.ADMIN)


@pytest.mark.parametrize(
    ("method", "path", "need"),
    [
        ("GET", "/livez", Need(NeedKind.NOTHING)),
        ("GET", "/", Need(NeedKind.NOTHING)),
        ("GET", "/admin/static/abc/page.js", Need(NeedKind.NOTHING)),
        ("GET", "/openapi.json", Need(NeedKind.IDENTITY)),
        ("GET", "/v1/stores", Need(NeedKind.IDENTITY)),
        ("GET", "/v1/stores/seen", SEE),
        ("GET", "/v1/stores/s%65en", SEE),
        ("GET", "/v1/stores/seen/keys/a", POINT),
        ("HEAD", "/v1/stores/seen/keys/a%2Fb", POINT),
        ("GET", "/v1/stores/seen/metadata/a", POINT),
        ("GET", "/v1/stores/seen/scan", Need(NeedKind.STORE, Action.SCAN, "seen")),
        ("GET", "/v1/stores/seen/export", Need(NeedKind.STORE, Action.EXPORT, "seen")),
        ("GET", "/v1/stores/seen/windows/a", Need(NeedKind.STORE, Action.SCAN, "seen")),
        ("GET", "/v1/stores/seen/watch/a", Need(NeedKind.STORE, Action.WATCH, "seen")),
        ("GET", "/v1/stores/seen/later", Need(NeedKind.UNLISTED)),
        ("GET", "/metrics", MONITORING),
        ("GET", "/admin/", Need(NeedKind.OVERVIEW)),
        ("GET", "/admin/v1/applications", Need(NeedKind.OVERVIEW)),
        ("POST", "/admin/", ADMINISTERING),
        ("GET", "/admin/v1/lag", MONITORING),
        ("HEAD", "/admin/v1/nodes/n%201/safe-to-stop", MONITORING),
        ("POST", "/admin/v1/nodes/n1/drain", ADMINISTERING),
        ("PUT", "/admin/anything", ADMINISTERING),
        ("DELETE", "/admin/v1/applications/a%20b", Need(NeedKind.APPLICATION, Action.ADMIN, "a b", peers=True)),
        ("POST", "/admin/v1/drain", Need(NeedKind.SERVICE, Action.ADMIN, peers=True)),
        ("POST", "/internal/v1/lookup", Need(NeedKind.PEER)),
        ("GET", "/internal", Need(NeedKind.PEER)),
        ("GET", "//admin/v1/lag", Need(NeedKind.UNLISTED)),
        ("GET", "/livez/", Need(NeedKind.UNLISTED)),
        ("GET", "/v2/stores", Need(NeedKind.UNLISTED)),
        ("OPTIONS", "*", Need(NeedKind.UNLISTED)),
    ],
)
def test_each_route_needs_what_its_line_says(method: str, path: str, need: Need) -> None:
    assert need_of(method, path.encode()) == need


SEGMENTS = st.one_of(
    st.sampled_from(["v1", "stores", "seen", "hidden", "keys", "lookup", "metadata", "admin", "internal", "..", "."]),
    st.text("ab%/2F+é?#", max_size=4).map(lambda text: quote(text, safe="")),
    st.text("ab%2Fé", max_size=4),
)


@given(st.lists(SEGMENTS, max_size=6).map("/".join), st.sampled_from(["GET", "HEAD", "POST", "BREW"]))
def test_whatever_a_path_looks_like_a_reader_only_gets_to_what_was_granted(path: str, method: str) -> None:
    raw = b"/" + path.encode()
    try:
        need = need_of(method, raw)
    except ProblemError:
        return
    decided = granted(READER, need, raw)
    if isinstance(decided, Authorization) and need.kind not in {NeedKind.NOTHING, NeedKind.IDENTITY}:
        assert split_path(raw)[:3] == ["v1", "stores", "seen"]


@pytest.mark.parametrize(
    ("need", "allowed"),
    [
        (Need(NeedKind.NOTHING), EVERYBODY),
        (SEE, (READER, SCANNER, MONITOR, ADMIN)),
        (POINT, (READER,)),
        (Need(NeedKind.STORE, Action.SCAN, "seen"), (SCANNER,)),
        (MONITORING, (MONITOR, ADMIN)),
        (Need(NeedKind.OVERVIEW), (MONITOR, ADMIN, OF_SOME)),
        (ADMINISTERING, (ADMIN,)),
        (Need(NeedKind.SERVICE, Action.ADMIN, peers=True), (ADMIN, PEER)),
        (Need(NeedKind.PEER), (PEER,)),
        (Need(NeedKind.UNLISTED), (ADMIN,)),
    ],
    ids=str,
)
def test_exactly_those_who_were_granted_it_get_it(need: Need, allowed: tuple[Principal, ...]) -> None:
    for principal in EVERYBODY:
        decided = granted(principal, need, b"/x")
        assert isinstance(decided, Authorization) == (principal in allowed), principal
        if isinstance(decided, Authorization):
            assert decided == (principal, EVERY_KEY)
        else:
            assert decided.status in (403, 404)
            assert decided.detail
            assert decided.fix


READER_OF_ALL = Principal("r", [Grant(frozenset({Action.POINT}), frozenset({"*"}))])
ABSENT = Problem(ProblemType.UNKNOWN_STORE, "there is no store 'x'", "path", "Stores here: hidden, seen.")
INSIDE = [
    Problem(ProblemType.STORE_ERROR, "cannot read /data/state/1.sst", "/data/state/1.sst", "look at /data"),
    Problem(ProblemType.NOT_INITIALISED, "/data/commits cannot be read", fix="Retry"),
    Problem(ProblemType.INTERNAL, "KeyError: '/data'", fix="Report it"),
]


def test_a_store_that_is_not_there_reads_like_one_that_is_hidden() -> None:
    assert shown_problem(READER, ABSENT).as_dict() == hidden_store("x").as_dict()
    assert shown_problem(ANONYMOUS, ABSENT).as_dict() == hidden_store("x").as_dict()


@pytest.mark.parametrize("problem", INSIDE, ids=lambda problem: problem.type.slug)
def test_a_problem_of_the_inside_names_no_file_to_readers_and_everything_to_operators(problem: Problem) -> None:
    for reader in (READER, READER_OF_ALL, ANONYMOUS):
        shown = shown_problem(reader, problem)
        assert shown.type is problem.type
        assert "/data" not in str(shown.as_dict())
        assert shown.fix
    assert shown_problem(MONITOR, problem) is problem
    assert shown_problem(ANYBODY, problem) is problem
    found = {"status": 200, "key": {"k": problem.type.slug}, "found": True, "value": {"n": 2**63 - 1, "d": 0.1}}
    batch = orjson.dumps({"results": [problem.as_dict(), found]}) + b"\n"
    assert orjson.loads(shown_batch(READER, batch))["results"] == [shown_problem(READER, problem).as_dict(), found]
    assert shown_batch(MONITOR, batch) is batch


def test_what_a_node_said_when_it_was_asked_is_for_operators() -> None:
    candidates: list[dict[str, object]] = [
        {"node_id": "n1", "reason": "store-error", "detail": "cannot read /data/1.sst"}
    ]
    problem = Problem(ProblemType.NO_ACCEPTABLE_REPLICA, "no replica may answer", extra={"candidates": candidates})
    for shown in (
        shown_problem(READER, problem).as_dict(),
        orjson.loads(shown_batch(READER, orjson.dumps({"results": [problem.as_dict()]})))["results"][0],
    ):
        assert shown["candidates"] == [{"node_id": "n1", "reason": "store-error"}]
        assert shown["type"] == "no-acceptable-replica"
    assert shown_problem(MONITOR, problem).as_dict()["candidates"] == candidates
