"""Answers of every kind of state are compared whole: what is wrong in one is found, and counted for its kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from tests.system.proof.checker import check
from tests.system.proof.claims import ClaimResult
from tests.system.proof.history import NO_BOUNDS, Commit, History, Meta, Read
from tests.system.proof.http_talk import HttpReply
from tests.system.proof.kinds_keys import STORES
from tests.system.proof.question import Question, key_text, said_by, with_next_page
from tests.system.proof.sessions import Asked
from tests.system.proof.truth_of_state import Truth
from tests.unit.proof.model import Model

from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.tokens import Position

Said = dict[str, Any]

RIGHT: dict[str, Said] = {
    "value": {"value": {"n": 3, "latest_ms": 17}},
    "list": {"values": [{"value": {"number": number}} for number in (4, 9, 9, 2)]},
    "map": {"entries": [{"key": {"place": place}, "value": {"visits": len(place)}} for place in ("a", "bb", "ccc")]},
    "timers": {"timers": ["2026-01-01T00:00:06.000000Z", "2026-01-01T00:00:07.000000Z"]},
    "session": {
        "sessions": [
            {"start": f"2026-01-01T00:00:0{at}Z", "end": f"2026-01-01T00:00:0{at + 2}Z", "value": {"visits": at},
             "expired": at == 1}
            for at in (1, 4)
        ]
    },
    "join-side": {
        "rows": [{"value": {"number": number}, "matched": number == 2, "expired": None} for number in (2, 4)]
    },
    "set": {"expires_at": "2026-01-01T00:00:09Z", "expired": False},
}  # fmt: skip
"""What an answer says of a key, for each kind of state."""


PLANTS: dict[str, tuple[str, str, Callable[[Any], object]]] = {
    "another number": ("value", "value", lambda value: {**value, "n": 4}),
    "a lost element": ("list", "values", lambda values: [values[0], *values[2:]]),
    "an element twice": ("list", "values", lambda values: [*values, values[-1]]),
    "elements in another order": ("list", "values", lambda values: values[::-1]),
    "a cut list": ("list", "values", lambda values: values[:2]),
    "an entry of another key": (
        "map", "entries", lambda entries: [{**entries[0], "value": entries[1]["value"]}, *entries[1:]],
    ),
    "a lost entry": ("map", "entries", lambda entries: entries[:-1]),
    "a forgotten timer": ("timers", "timers", lambda timers: timers[:-1]),
    "a session that ends late": (
        "session", "sessions", lambda sessions: [sessions[0], {**sessions[1], "end": "2026-01-01T00:00:07Z"}],
    ),
    "a session that expired": (
        "session", "sessions", lambda sessions: [sessions[0], {**sessions[1], "expired": True}],
    ),
    "cut sessions": ("session", "sessions", lambda sessions: sessions[:-1]),
    "a wrong matched flag": ("join-side", "rows", lambda rows: [{**rows[0], "matched": False}, *rows[1:]]),
    "rows in another order": ("join-side", "rows", lambda rows: rows[::-1]),
    "a later expiry": ("set", "expires_at", lambda _: "2026-01-01T00:00:10Z"),
    "an expiry that was passed": ("set", "expired", lambda _: True),
}  # fmt: skip
"""The kind of state, the member that is wrong, and what becomes of it."""


def reply_of(said: Said, *, version: int = 1, next_cursor: str | None = None) -> HttpReply:
    """An answer of a router."""
    body = {
        "store": "it", "key": {"word": "w"}, "found": True, **said, "partition": 0, "version": version,
        "committed_at": "1970-01-01T00:00:00.001000Z", "watermark": None, "next_cursor": next_cursor,
        "position": Position(ApplicationId("proof"), Lineage("life"), version, 1000).encode(),
        "lag": {"offset_lag": 0, "time_lag_ms": 3}, "served_by": {"node_id": "node-1", "role": "active"},
    }  # fmt: skip
    return HttpReply(200, "application/json", orjson.dumps(body))


def read_of(said: Said, *, version: int = 1) -> Read:
    """What a reader records of such an answer."""
    asked = Asked(1, 1, 20.0, Question("it", ("w",)), NO_BOUNDS)
    return asked.replied(30.0, "router-1", reply_of(said, version=version)).read


def judged(read: Read, kind: str) -> ClaimResult:
    """What the checker says of one answer, where `RIGHT` is the truth."""
    true = orjson.loads(orjson.dumps(said_by(RIGHT[kind])))
    history = History(Meta(1, {}, kinds={"it": kind}), commits=[Commit(1, 10, 5, 1000)], watched_until_ms=100)
    history.reads = [read]
    truth = Truth({"it": {key_text("w"): [(1, true)]}}, first=1, last=1)
    return check(history, truth, claims=("answers",)).claims["answers"]


@pytest.mark.parametrize("kind", RIGHT)
def test_a_right_answer_of_any_kind_is_not_accused(kind: str) -> None:
    assert set(RIGHT) == {each for each, *_ in PLANTS.values()} == set(STORES.values())
    claim = judged(read_of(RIGHT[kind]), kind)
    assert (claim.found, claim.kinds[kind].examined["found"], claim.kinds[kind].found) == (0, 1, 0)


@pytest.mark.parametrize(("kind", "member", "change"), PLANTS.values(), ids=PLANTS)
def test_what_is_planted_in_an_answer_is_found_and_counted_for_its_kind(
    kind: str, member: str, change: Callable[[Any], object]
) -> None:
    wrong = {**RIGHT[kind], member: change(RIGHT[kind][member])}
    claim = judged(read_of(wrong), kind)
    assert (claim.found, claim.kinds[kind].found) == (1, 1)
    assert "read 1/1 of it" in claim.violations[0].text


def test_a_page_of_another_version_fails_the_read_and_a_refused_page_refuses_it() -> None:
    first = read_of({"values": RIGHT["list"]["values"][:2]})
    mixed = with_next_page(first, read_of({"values": RIGHT["list"]["values"][2:]}, version=2))
    assert (mixed.outcome, mixed.detail) == ("failed", "page 2 is of version 2, the first of 1")
    problem = orjson.dumps({"type": "no-acceptable-replica", "candidates": [{"node_id": "n", "reason": "dead"}]})
    asked = Asked(1, 1, 25.0, Question("it", ("w",)), NO_BOUNDS)
    refused = asked.replied(40.0, "router-1", HttpReply(503, "application/problem+json", problem)).read
    whole = with_next_page(first, refused)
    assert (whole.outcome, whole.began_ms, whole.ended_ms, whole.candidates) == (
        "refused",
        20.0,
        40.0,
        (("n", "dead"),),
    )


def test_a_kind_of_which_a_claim_saw_nothing_breaks_it() -> None:
    model = Model(7)
    model.history.meta.kinds.update({"words": "value", "recent": "list"})
    claims = check(model.history, model.truth).claims
    assert "found of list" in claims["answers"].vacuous
    assert "require_active of list" in claims["bounds"].vacuous
    assert "keys of list" in claims["convergence"].vacuous
    of_any_kind = {"time lag", "scans", "snapshots", "watches", "clients"}
    assert {name for name, claim in claims.items() if claim.holds} == {"memory", "places"} | of_any_kind
    of_stores = claims.keys() - {"memory", "places"}
    assert all(claims[name].kinds["value"].found == 0 for name in of_stores)


@pytest.mark.parametrize(
    ("kind", "partitions", "wrong"),
    [
        ("value", [0, 1, 1], 1),
        ("scattered", [0, 1, 1], 1),
        ("value", [None, 1, 1], 1),
        ("scattered", [None, 1, 1], 0),
        ("scattered", [None, None], 0),
    ],
)
def test_only_an_absent_key_of_a_scattered_store_is_in_no_partition(
    kind: str, partitions: list[int | None], wrong: int
) -> None:
    read = replace(read_of(RIGHT["value"]), outcome="absent", value=None)
    history = History(Meta(1, {}, kinds={"it": kind}), commits=[Commit(1, 10, 5, 1000)], watched_until_ms=100)
    history.reads = [replace(read, partition=each) for each in partitions]
    claims = check(history, Truth({"it": {}}, first=1, last=1), claims=("answers",)).claims
    assert claims["answers"].found == wrong
