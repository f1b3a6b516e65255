"""The claims about watches and clients find each planted bug."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import pytest
from tests.system.proof.checker import check
from tests.system.proof.client_ways import DIRECTLY
from tests.system.proof.history import FaultEvent, Told, Watch
from tests.unit.proof.model import Model

GOOD = Model(7)
WATCH = next(each for each in GOOD.history.watches if each.after is None and each.prefix is None)
OF_PREFIX = next(each for each in GOOD.history.watches if each.after is None and each.prefix is not None)


def event(watch: Watch, kind: str) -> int:
    """The place of an event of a kind that has no position, and so is not the only one of its version."""
    return next(at for at, each in enumerate(watch.events) if each.kind == kind and each.position is None)


def at(watch: Watch, place: int, *events: Told) -> Watch:
    """The watch with other events in place of one."""
    return replace(watch, events=(*watch.events[:place], *events, *watch.events[place + 1 :]))


def first(watch: Watch, kind: str) -> Told:
    return watch.events[event(watch, kind)]


def ahead(watch: Watch) -> Watch:
    """A watch whose positions are of the next version."""
    return replace(
        watch,
        events=tuple(
            replace(each, position=None if each.position is None else each.position + 1) for each in watch.events
        ),
    )


SPOILT: dict[str, Callable[[], Watch]] = {
    "a missed change": lambda: at(WATCH, event(WATCH, "value")),
    "a missed change of a prefix": lambda: at(OF_PREFIX, event(OF_PREFIX, "value")),
    "a change told twice": lambda: at(WATCH, event(WATCH, "value"), *[first(WATCH, "value")] * 2),
    "changes out of order": lambda: replace(WATCH, events=(*WATCH.events[:4], *reversed(WATCH.events[4:]))),
    "another value": lambda: at(WATCH, event(WATCH, "value"), replace(first(WATCH, "value"), value={"count": -1})),
    "a version that did not change the key": lambda: at(
        WATCH, event(WATCH, "value"), replace(first(WATCH, "value"), version=(first(WATCH, "value").version or 0) + 1)
    ),
    "positions before their events": lambda: ahead(WATCH),
    "positions before their events of a prefix": lambda: ahead(OF_PREFIX),
    "a snapshot that lacks a key": lambda: at(OF_PREFIX, 0),
    "a key that is not watched": lambda: at(WATCH, 0, WATCH.events[0], replace(WATCH.events[0], key='["other"]')),
    "versions that are passed over": lambda: at(
        WATCH, event(WATCH, "value"), replace(first(WATCH, "value"), kind="coalesced", first_version=5)
    ),
    "another history": lambda: replace(WATCH, events=(*WATCH.events, replace(WATCH.events[-1], kind="reset"))),
    "a failure": lambda: replace(WATCH, outcome="failed", detail="no server"),
    "silence": lambda: replace(WATCH, ended_ms=90_000.0),
}


@pytest.mark.parametrize("spoilt", SPOILT.values(), ids=SPOILT.keys())
def test_a_planted_bug_in_one_watch_is_found(spoilt: Callable[[], Watch]) -> None:
    history = copy(GOOD.history)
    history.watches = [*GOOD.history.watches, spoilt()]
    claim = check(history, GOOD.truth).claims["watches"]
    assert claim.found, "the bug was not seen"
    assert all(f"watch {spoilt().number} " in violation.text for violation in claim.violations)


def test_a_wrong_answer_of_a_node_that_was_asked_directly_is_found() -> None:
    place = next(at for at, read in enumerate(GOOD.history.reads) if read.router == DIRECTLY and read.value)
    history = copy(GOOD.history)
    history.reads = [*GOOD.history.reads]
    history.reads[place] = replace(history.reads[place], outcome="absent", value=None)
    claim = check(history, GOOD.truth).claims["clients"]
    assert (claim.found, "direct" in claim.violations[0].text) == (1, True)


@pytest.mark.parametrize("is_told", [True, False])
def test_behind_versions_that_are_passed_over_comes_the_value_that_one_of_them_gave(is_told: bool) -> None:
    """Only the last of them is named, though another one changed the key."""
    changed = {(each.key, each.version) for each in WATCH.events}
    place, told, version = next(
        (place, each, each.version)
        for place, each in enumerate(WATCH.events)
        if each.kind == "value" and not each.position and each.version and (each.key, each.version + 1) not in changed
    )
    later_ms = next(each.at_ms for each in WATCH.events if each.version == version + 1)
    value = replace(told, version=version + 1, at_ms=later_ms)
    passed = replace(value, kind="coalesced", first_version=version, value=None)
    history = copy(GOOD.history)
    history.faults = [FaultEvent(0, "delete-changelog", "node-1", "injected")]
    history.watches = [at(WATCH, place, *([passed, value] if is_told else [value]))]
    claim = check(history, GOOD.truth).claims["watches"]
    assert any("did not change" in each.text for each in claim.violations) is not is_told


@pytest.mark.parametrize(
    ("after", "prefix", "fault", "is_excused"),
    [
        (3, None, "store-hangs", True),
        (None, '["w1"]', "store-throttles", True),
        (None, None, "store-hangs", False),
        (3, None, "redis-pause", False),
    ],
    ids=["goes on", "of a prefix", "of keys", "another fault"],
)
def test_a_watch_that_needs_the_store_may_not_begin_while_that_fails(
    after: int | None, prefix: str | None, fault: str, is_excused: bool
) -> None:
    history = copy(GOOD.history)
    history.faults = [FaultEvent(0, fault, "store", "injected"), FaultEvent(9_000, fault, "store", "healed")]
    asked = replace(WATCH, after=after, prefix=prefix, began_ms=1_000.0, ended_ms=6_000.0, events=())
    history.watches = [*GOOD.history.watches, replace(asked, outcome="failed", detail="UnavailableError: store-error")]
    claim = check(history, GOOD.truth).claims["watches"]
    assert any("failed: UnavailableError" in each.text for each in claim.violations) is not is_excused
