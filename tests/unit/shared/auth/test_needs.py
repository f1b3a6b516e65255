"""Who may ask what is decided by the decoded route: no way to write a path leads around it."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.auth.needs import Kind, Need, granted, hidden_store, need_of
from understudy_shared.auth.principals import ANONYMOUS, EVERY_KEY, PEER, Action, Authorization, Grant, Principal
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import split_path

READER = Principal("r", [Grant(frozenset({Action.POINT}), frozenset({"seen"}))])
SCANNER = Principal("s", [Grant(frozenset({Action.SCAN}), frozenset({"seen"}))])
MONITOR = Principal("m", [Grant(frozenset({Action.MONITOR}), frozenset({"*"}))])
ADMIN = Principal("a", [Grant(frozenset({Action.ADMIN}), frozenset({"*"}))])
EVERYBODY = (ANONYMOUS, READER, SCANNER, MONITOR, ADMIN, PEER)

SEE, POINT = Need(Kind.STORE, None, "seen"), Need(Kind.STORE, Action.POINT, "seen")
MONITORING, ADMINISTERING = Need(Kind.SERVICE, Action.MONITOR), Need(Kind.SERVICE, Action.ADMIN)


@pytest.mark.parametrize(
    ("method", "path", "need"),
    [
        ("GET", "/livez", Need(Kind.NOTHING)),
        ("GET", "/readyz", Need(Kind.NOTHING)),
        ("GET", "/", Need(Kind.NOTHING)),
        ("GET", "/admin", Need(Kind.NOTHING)),
        ("GET", "/admin/static/abc/page.js", Need(Kind.NOTHING)),
        ("GET", "/openapi.json", Need(Kind.IDENTITY)),
        ("GET", "/docs", Need(Kind.IDENTITY)),
        ("GET", "/v1/stores", Need(Kind.IDENTITY)),
        ("GET", "/v1/stores/seen", SEE),
        ("GET", "/v1/stores/s%65en", SEE),
        ("GET", "/v1/stores/seen/keys/a", POINT),
        ("HEAD", "/v1/stores/seen/keys/a%2Fb", POINT),
        ("POST", "/v1/stores/seen/lookup", POINT),
        ("DELETE", "/v1/stores/seen/lookup", POINT),
        ("GET", "/v1/stores/seen/metadata/a", POINT),
        ("GET", "/v1/stores/seen/scan", Need(Kind.STORE, Action.SCAN, "seen")),
        ("GET", "/v1/stores/seen/windows/a", Need(Kind.STORE, Action.SCAN, "seen")),
        ("GET", "/v1/stores/seen/watch/a", Need(Kind.STORE, Action.WATCH, "seen")),
        ("GET", "/v1/stores/seen/later", Need(Kind.UNLISTED)),
        ("GET", "/metrics", MONITORING),
        ("GET", "/admin/", MONITORING),
        ("GET", "/admin/v1/lag", MONITORING),
        ("HEAD", "/admin/v1/nodes/n%201/safe-to-stop", MONITORING),
        ("POST", "/admin/v1/nodes/n1/drain", ADMINISTERING),
        ("PUT", "/admin/anything", ADMINISTERING),
        ("POST", "/admin/v1/drain", Need(Kind.SERVICE, Action.ADMIN, peers=True)),
        ("POST", "/internal/v1/lookup", Need(Kind.PEER)),
        ("GET", "/internal/v1/anything", Need(Kind.PEER)),
        ("GET", "/internal", Need(Kind.PEER)),
        ("GET", "//admin/v1/lag", Need(Kind.UNLISTED)),
        ("GET", "//livez", Need(Kind.UNLISTED)),
        ("GET", "/livez/", Need(Kind.UNLISTED)),
        ("GET", "/LIVEZ", Need(Kind.UNLISTED)),
        ("GET", "/v2/stores", Need(Kind.UNLISTED)),
        ("OPTIONS", "*", Need(Kind.UNLISTED)),
    ],
)
def test_each_route_needs_what_its_line_says(method: str, path: str, need: Need) -> None:
    assert need_of(method, path.encode()) == need


@pytest.mark.parametrize(
    "path",
    ["/%61dmin/v1/lag", "/admin%2Fv1%2Flag", "/v1%2Fstores", "/%69nternal/v1/lookup", "/v1/stores/a%2Fb/keys/k",
     "/v1/stores/seen/%6beys/a", "/v1/stores/%zz", "/v1/stores/%ff", "/live%7a"],
)  # fmt: skip
def test_a_path_with_two_meanings_has_no_need_it_is_a_bad_request(path: str) -> None:
    with pytest.raises(ProblemError) as caught:
        need_of("GET", path.encode())
    assert caught.value.problem.type is ProblemType.BAD_REQUEST


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
    if isinstance(decided, Authorization) and need.kind not in {Kind.NOTHING, Kind.IDENTITY}:
        assert split_path(raw)[:3] == ["v1", "stores", "seen"]


@pytest.mark.parametrize("principal", EVERYBODY, ids=repr)
def test_a_store_that_is_hidden_is_answered_as_one_that_is_not_there(principal: Principal) -> None:
    for action in (None, *Action):
        decided = granted(principal, Need(Kind.STORE, action, "hidden"), b"/v1/stores/hidden")
        if not principal.sees("hidden"):
            assert decided == hidden_store("hidden")
            assert isinstance(decided, Problem)
            assert decided.status == 404


@pytest.mark.parametrize(
    ("need", "allowed"),
    [
        (Need(Kind.NOTHING), EVERYBODY),
        (SEE, (READER, SCANNER, MONITOR, ADMIN)),
        (POINT, (READER,)),
        (Need(Kind.STORE, Action.SCAN, "seen"), (SCANNER,)),
        (MONITORING, (MONITOR, ADMIN)),
        (ADMINISTERING, (ADMIN,)),
        (Need(Kind.SERVICE, Action.ADMIN, peers=True), (ADMIN, PEER)),
        (Need(Kind.PEER), (PEER,)),
        (Need(Kind.UNLISTED), (ADMIN,)),
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
