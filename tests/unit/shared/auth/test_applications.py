"""A grant that is limited to applications does not exist in others, however a request is written."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.services.guarded_fleet import FLEET, World, fleet_world

from understudy_shared.auth.access import authorization_of, regranted
from understudy_shared.auth.principals import EVERY_STORE, Action, Grant, Principal, matches

LETTERS = st.text("ab*", max_size=8)


@given(LETTERS, st.text("ab", max_size=8))
def test_a_star_stands_for_any_characters_and_every_other_one_for_itself(pattern: str, name: str) -> None:
    def fits(pattern: str, name: str) -> bool:
        if not pattern:
            return not name
        if pattern[0] == "*":
            return any(fits(pattern[1:], name[cut:]) for cut in range(len(name) + 1))
        return name[:1] == pattern[0] and fits(pattern[1:], name[1:])

    assert matches(pattern, name) == fits(pattern, name)


def test_what_a_principal_may_everywhere_is_what_no_grant_limits() -> None:
    everywhere = Grant(frozenset({Action.POINT}), frozenset({"a"}))
    limited = Grant(frozenset({Action.MONITOR}), frozenset({EVERY_STORE}), applications=frozenset({"orders-*"}))
    principal = Principal("p", [everywhere, limited])
    assert (principal.may(Action.MONITOR), principal.sees("b"), principal.sees("a")) == (False, False, True)
    inner = principal.within("orders-1")
    assert (inner.may(Action.MONITOR), inner.sees("b"), inner.within("clicks")) == (True, True, inner)
    assert principal.within("orders-1") is inner
    assert principal.within("clicks").grants == (everywhere,)
    assert Principal("q", [everywhere]).within("any").grants == (everywhere,)
    for number in range(3000):
        principal.within(f"application-{number}")
    assert len(principal._within) <= 1024


# ---- a fleet


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return fleet_world(tmp_path_factory.mktemp("fleet"))


LOOKUP = "/v1/applications/{}/stores/{}/keys/k"


@pytest.mark.parametrize(
    ("who", "path", "status"),
    [
        ("orders", LOOKUP.format("orders-1", "op0"), 200),
        ("orders", LOOKUP.format("orders%2D2", "op0"), 200),
        ("orders", LOOKUP.format("clicks", "op0"), 404),
        ("first", LOOKUP.format("orders-1", "only-1"), 404),
        ("late", LOOKUP.format("sp%C3%A4te", "late"), 200),
        ("orders", "/admin/applications/orders-2/", 200),
        ("orders", "/admin/v1/applications/clicks/lag", 404),
        # unnamed: the only application that the reader sees with the store
        ("first", "/v1/stores/op0/keys/k", 200),
        ("orders", "/v1/stores/op0/keys/k", 409),
        ("orders", "/v1/stores/only-1/keys/k", 200),
        ("orders", "/v1/stores/secret/keys/k", 404),
        ("of-op0", "/v1/stores/op0/keys/k", 409),
        # an application within another; an operator reads nothing by it
        ("operator", LOOKUP.format("orders-1/applications/orders-1", "op0"), 404),
        ("admin", "/admin/applications/clicks/v1/applications/clicks/lag", 404),
        ("operator", "/admin/applications/orders-1/applications/clicks/", 404),
        # no segment is resolved, and nothing but a name may be escaped
        ("operator", LOOKUP.format("orders-1/../clicks", "op0"), 200),
        ("orders", LOOKUP.format("clicks/../orders-1", "op0"), 404),
        ("orders", LOOKUP.format("orders-1%2F..%2Fclicks", "op0"), 400),
        ("orders", "/v1/%61pplications/clicks/stores/op0/keys/k", 400),
        ("orders", "/v1/applications//stores/op0/keys/k", 404),
        ("orders", "//v1/applications/clicks/stores/op0/keys/k", 404),
    ],
)
async def test_a_grant_holds_in_its_applications_and_nowhere_else(
    world: World, who: str, path: str, status: int
) -> None:
    got, body, _ = await world.ask(who, path)
    assert got == status, body
    if status == 200 and "/../" in path:
        assert json.loads(body)[:2] == ["orders-1", "/v1/../clicks/stores/op0/keys/k"], "an unknown path of its own"


async def test_the_header_of_internal_calls_leads_a_reader_nowhere(world: World) -> None:
    header = (b"understudy-application", b"clicks")
    _, body, _ = await world.ask("first", "/v1/stores/op0/keys/k", header)
    assert json.loads(body)[0] == "orders-1"
    assert (await world.ask("operator", "/admin/v1/drain", header, method="POST"))[0] == 403
    assert (await world.ask("operator", "/internal/v1/lookup", header, method="POST"))[0] == 403


async def test_in_an_application_a_request_has_the_rights_of_there(world: World) -> None:
    for path in (LOOKUP.format("orders-1", "op0"), "/v1/applications/orders-1"):
        _, _, scope = await world.ask("orders", path)
        assert authorization_of(scope).principal.may(Action.MONITOR), path
    _, _, scope = await world.ask("orders", "/v1/applications")
    principal = authorization_of(scope).principal
    assert not principal.may(Action.MONITOR)
    assert [name for name in FLEET if principal.sees_application(name)] == ["orders-1", "orders-2"]


async def test_only_what_a_reader_sees_makes_a_store_ambiguous_or_is_named(world: World) -> None:
    _, body, _ = await world.ask("orders", "/v1/stores/op0/keys/k")
    assert json.loads(body)["applications"] == ["orders-1", "orders-2"]
    assert "clicks" not in body
    _, body, _ = await world.ask("reader", "/v1/stores/op0/keys/k")
    assert json.loads(body)["applications"] == ["clicks", "orders-1", "orders-2"]


@pytest.mark.parametrize("who", ["first", "orders", "of-op0", "late", "operator"])
@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        (LOOKUP.format("{}", "op0"), "clicks"),
        ("/v1/applications/{}", "clicks"),
        ("/admin/v1/applications/{}/lag", "clicks"),
        ("/admin/applications/{}/", "clicks"),
        ("/v1/stores/{}", "secret"),
        ("/v1/stores/{}/keys/k", "secret"),
    ],
)
async def test_what_is_hidden_is_answered_as_what_does_not_exist(
    world: World, who: str, path: str, hidden: str
) -> None:
    who = "first" if who == "of-op0" and hidden == "clicks" else who  # it holds in every application
    nowhere = "x" * len(hidden)
    for method in ("GET", "HEAD", "POST"):
        found = [await world.ask(who, path.format(name), method=method) for name in (hidden, nowhere)]
        # Who sees one application alone asks it for every store, of whatever name.
        assert (found[0][0], found[0][1].replace(hidden, nowhere)) == (found[1][0], found[1][1])
        assert found[0][0] == 404 or (hidden == "secret" and who in {"late", "operator"})


def test_the_quick_way_grants_named_paths_and_leaves_the_choice_to_the_other(world: World) -> None:
    assert world.quickly("orders", LOOKUP.format("orders-1", "op0"))
    assert world.quickly("orders", LOOKUP.format("orders-2", "op0"))
    assert world.quickly("reader", "/v1/stores/only-1/keys/k")
    for path in (
        LOOKUP.format("clicks", "op0"),
        LOOKUP.format("orders-1?/applications/clicks", "op0"),
        LOOKUP.format("orders-1/applications/clicks", "op0"),
        LOOKUP.format("orders%2D1", "op0"),
        "/v1/applications//stores/op0/keys/k",
        "/v1/applications/orders-1/storesop0/keys/k",
        "/v1/stores/only-1/keys/k",
    ):
        assert not world.quickly("orders", path), path


async def test_a_watch_keeps_its_application_and_loses_a_grant_that_no_longer_holds_there(tmp_path: Path) -> None:
    world = fleet_world(tmp_path)
    _, _, scope = await world.ask("first", "/v1/stores/op0/keys/k")
    before = authorization_of(scope)
    assert regranted(scope, before) is before
    text = world.keys.path.read_text()
    world.keys.path.write_text(text.replace('["orders-1"]}', '["clicks"]}'))
    world.fleet.access.look()
    assert regranted(scope, before) is None, "what it may read now is of another application"
    world.keys.path.write_text(text.replace('actions = ["point"], applications', 'actions = ["scan"], applications'))
    world.fleet.access.look()
    assert regranted(scope, before) is None
    world.keys.path.write_text(text)
    world.fleet.access.look()
    again = regranted(scope, before)
    assert again is not None
    assert again.principal.grants == before.principal.grants


async def test_a_granted_request_goes_to_no_other_application_when_its_own_is_removed(tmp_path: Path) -> None:
    world = fleet_world(tmp_path)
    _, _, scope = await world.ask("orders", "/v1/stores/only-1/keys/k")
    scope["raw_path"] = b"/v1/stores/op0/keys/k"
    world.fleet.remove("orders-1")
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await world.fleet(scope, cast(Any, None), send)
    assert sent[0]["status"] == 404


SEGMENTS = st.one_of(
    st.sampled_from(
        ["v1", "applications", "stores", "admin", "internal", "orders-1", "clicks", "op0", "keys", "lag", "..", ""]
    ),
    st.text("oc%2F?ä", max_size=4).map(lambda text: quote(text, safe="")),
    st.sampled_from(["cl%69cks", "CLICKS", "clicks%00", "orders-1%2Fclicks", "%2e%2e"]),
)


@given(st.lists(SEGMENTS, max_size=9).map("/".join), st.sampled_from(["GET", "HEAD", "POST", "BREW"]))
async def test_however_a_path_is_written_its_application_is_one_in_which_the_grant_holds(
    world: World, path: str, method: str
) -> None:
    status, body, scope = await world.ask("orders", f"/{path}", method=method)
    if status == 200 and body:
        answered = json.loads(body)[0]
        assert answered in {"fleet", "orders-1", "orders-2"}
        if answered == "fleet":
            assert not authorization_of(scope).principal.may(Action.MONITOR) or scope["raw_path"].startswith(
                b"/v1/applications/orders-"
            )
    if world.quickly("orders", f"/{path}"):
        assert path.startswith(("v1/applications/orders-1/stores/", "v1/applications/orders-2/stores/"))
