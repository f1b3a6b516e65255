"""Each principal has a bucket: who asks too often waits, and nobody else does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.services.guarded import Keys, bearer

from understudy_shared.auth import rates as module
from understudy_shared.auth.access import Access
from understudy_shared.auth.credentials import StoredLimits, parse_credentials
from understudy_shared.auth.presented import presented_in
from understudy_shared.auth.principals import Authorization
from understudy_shared.auth.rates import Limited, RateLimiter
from understudy_shared.base.files import WatchedFile
from understudy_shared.http.problems import Problem

TARGET = b"/v1/stores/words/keys/a"
NAMED = b"/v1/applications/%b/stores/words/keys/a"


class World:
    def __init__(self, folder: Path, limits: str) -> None:
        self.now_s = 1_000_000.0
        self.keys = Keys(folder / "credentials.toml")
        self.keys.path.write_text(f"[limits]\n{limits}\n")
        for name in ("ann", "bob", "export"):
            self.keys.add(name, "reader")
        file = WatchedFile(self.keys.path, parse_credentials)
        self.access = Access(credentials=file, now_s=lambda: self.now_s)

    def directly(self, who: str, target: bytes = TARGET) -> bool:
        return self.access.lookup(target, presented_in([bearer(self.keys[who])])) is not None

    def by_asgi(self, who: str, path: bytes = TARGET) -> Authorization | Problem:
        return self.access.decide("GET", path, presented_in([bearer(self.keys[who])]))[0]


def test_who_asks_too_often_is_told_when_to_ask_again_and_nobody_else_waits(tmp_path: Path) -> None:
    world = World(tmp_path, "requests_per_s = 2\nprincipals = {export = 0.1}")
    assert [world.directly("ann") for _ in range(5)] == [True] * 4 + [False]
    refused = world.by_asgi("ann")
    assert isinstance(refused, Problem)
    assert (refused.type.slug, refused.status) == ("rate-limited", 429)
    assert (b"retry-after", b"1") in refused.headers
    assert world.access.refused == {"rate-limited": 1}
    assert world.directly("bob")
    assert world.directly("export")
    slow = world.by_asgi("export")
    assert isinstance(slow, Problem)
    assert (b"retry-after", b"10") in slow.headers
    world.now_s += 0.5
    assert [world.directly("ann"), world.directly("ann")] == [True, False]
    assert isinstance(world.by_asgi("ann", b"/livez"), Authorization)


def test_an_application_that_is_asked_too_often_is_refused_and_no_other_one(tmp_path: Path) -> None:
    world = World(tmp_path, 'burst_s = 1\napplications = {"orders-eu" = 5, "orders-*" = 2}')
    world.access.applications.choose = lambda path, _: path.split(b"/")[3].decode()
    asked = {name: NAMED % name.encode() for name in ("orders-us", "orders-eu", "clicks")}
    assert [world.directly(who, asked["orders-us"]) for who in ("ann", "bob", "ann")] == [True, True, False]
    refused = world.by_asgi("bob", asked["orders-us"])
    assert isinstance(refused, Problem)
    assert (refused.status, refused.detail.split()[1]) == (429, "application")
    assert [world.directly("ann", asked["orders-eu"]) for _ in range(6)] == [True] * 5 + [False]
    assert all(world.directly("ann", asked["clicks"]) for _ in range(20))
    assert not world.directly("ann"), "an unnamed path of a fleet is chosen first"
    world.now_s += 0.5
    assert isinstance(world.by_asgi("ann", asked["orders-us"]), Authorization)


def test_a_limit_comes_and_goes_with_the_file_and_other_changes_leave_what_was_counted(tmp_path: Path) -> None:
    world = World(tmp_path, "requests_per_s = 1\nburst_s = 1")
    assert [world.directly("ann"), world.directly("ann")] == [True, False]
    world.keys.add("eve", "reader")
    world.access.look()
    assert not world.directly("ann")
    world.keys.path.write_text(world.keys.path.read_text().replace("requests_per_s = 1\nburst_s = 1", ""))
    world.access.look()
    assert all(world.directly("ann") for _ in range(50))


@given(st.lists(st.tuples(st.sampled_from(["ann", "bob", "free"]), st.floats(0, 2)), max_size=80), st.floats(0.5, 20))
def test_nobody_is_answered_oftener_than_his_rate_and_his_burst_allow(
    steps: list[tuple[str, float]], per_s: float
) -> None:
    rates, now_s, answered = (
        RateLimiter(StoredLimits(principals={"ann": per_s, "bob": 1.0})),
        0.0,
        {"ann": 0, "bob": 0, "free": 0},
    )
    for who, gap_s in steps:
        now_s += gap_s
        wait_s = rates.wait_s(Limited.PRINCIPAL, who, now_s)
        answered[who] += not wait_s
        assert who != "free" or not wait_s
        assert answered["ann"] <= max(1, per_s * 2) + per_s * now_s + 1e-6
        assert answered["bob"] <= 2 + now_s + 1e-6
        assert not wait_s or not rates.wait_s(Limited.PRINCIPAL, who, now_s + wait_s)
        now_s += wait_s


def test_the_table_has_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BUCKETS", 3)
    rates = RateLimiter(StoredLimits(requests_per_s=1.0))
    for number in range(100):
        rates.wait_s(Limited.PRINCIPAL, f"user-{number}", 0.0)
        assert len(rates._buckets) <= 3
