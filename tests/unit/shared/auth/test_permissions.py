"""Who may ask what is decided by the decoded route: no way to write a path leads around it."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.auth.permissions import Need, NeedKind, granted, need_of
from understudy_shared.auth.principals import ANONYMOUS, EVERY_KEY, PEER, Action, Authorization, Grant, Principal
from understudy_shared.http.problems import ProblemError, ProblemType
from understudy_shared.http.target import split_path

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
        ("GET", "/readyz", Need(NeedKind.NOTHING)),
        ("GET", "/", Need(NeedKind.NOTHING)),
        ("GET", "/admin", Need(NeedKind.NOTHING)),
        ("GET", "/admin/static/abc/page.js", Need(NeedKind.NOTHING)),
        ("GET", "/openapi.json", Need(NeedKind.IDENTITY)),
        ("GET", "/docs", Need(NeedKind.IDENTITY)),
        ("GET", "/v1/stores", Need(NeedKind.IDENTITY)),
        ("GET", "/v1/stores/seen", SEE),
        ("GET", "/v1/stores/s%65en", SEE),
        ("GET", "/v1/stores/seen/keys/a", POINT),
        ("HEAD", "/v1/stores/seen/keys/a%2Fb", POINT),
        ("POST", "/v1/stores/seen/lookup", POINT),
        ("DELETE", "/v1/stores/seen/lookup", POINT),
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
        ("GET", "/internal/v1/anything", Need(NeedKind.PEER)),
        ("GET", "/internal", Need(NeedKind.PEER)),
        ("GET", "//admin/v1/lag", Need(NeedKind.UNLISTED)),
        ("GET", "//livez", Need(NeedKind.UNLISTED)),
        ("GET", "/livez/", Need(NeedKind.UNLISTED)),
        ("GET", "/LIVEZ", Need(NeedKind.UNLISTED)),
        ("GET", "/v2/stores", Need(NeedKind.UNLISTED)),
        ("OPTIONS", "*", Need(NeedKind.UNLISTED)),
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
