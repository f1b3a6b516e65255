"""The claims find each planted bug, name the read, and never accuse a world that does everything right."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from tests.system.proof.checker import CLAIMS, check
from tests.system.proof.claims import Limits
from tests.system.proof.history import Bounds, FaultEvent, History, Read
from tests.system.proof.truth_of_state import Truth
from tests.unit.proof.model import KEYS, PARTITIONS, STORE, Model

SEEDS = st.integers(0, 10**9)
AS_DRAWN = (Phase.explicit, Phase.reuse, Phase.generate)
"""A smaller seed makes no simpler world."""

GOOD = Model(7)


@settings(max_examples=60, phases=AS_DRAWN)
@given(seed=SEEDS)
def test_a_world_that_does_everything_right_is_never_accused(seed: int) -> None:
    model = Model(seed)
    verdict = check(model.history, model.truth)
    assert [violation.text for claim in verdict.claims.values() for violation in claim.violations] == []


def test_a_good_run_shows_every_claim_on_what_it_is_about() -> None:
    verdict = check(GOOD.history, GOOD.truth)
    assert {name: claim.vacuous for name, claim in verdict.claims.items()} == dict.fromkeys(CLAIMS, ())
    assert verdict.holds


def at_version(model: Model, read: Read, version: int) -> Read:
    """The read, answered rightly at another version."""
    value = model.truth.at(STORE, read.key, version)
    mtime_us = model.history.commits[version - 1].mtime_us
    answer = replace(read, value=value, version=version, committed_at_us=mtime_us, position_version=version)
    return replace(answer, outcome="absent" if value is None else "found")


def bounded(read: Read, **bounds: Any) -> Read:
    """The same answer to a reader with other bounds."""
    return replace(read, bounds=replace(read.bounds, **bounds))


def is_old(model: Model, read: Read, version: int, ms: float) -> bool:
    """Whether the next version had been there for so long when the read began."""
    return version < len(model.log) and model.history.commits[version].seen_ms < read.began_ms - ms


def serves_uncommitted(model: Model, read: Read, version: int) -> Read | None:
    for commit in model.history.commits[version:]:
        if commit.not_before_ms is not None and commit.not_before_ms >= read.ended_ms:
            return at_version(model, read, commit.version)
    return None


def forgets_the_session(model: Model, read: Read, _: int) -> Read | None:
    wanted = read.bounds.min_version or 0
    return replace(at_version(model, read, wanted - 1), position_version=wanted) if wanted > 1 else None


def compares_clocks(model: Model, read: Read, version: int) -> Read | None:
    """Its clock was set back by an hour, so what is old looks new."""
    if not (read.offset_lag and read.time_lag_ms and is_old(model, read, version, 1_000)):
        return None
    wall_us = int((read.began_ms + 300_000 - 3_600_000) * 1000)
    return replace(read, time_lag_ms=max(0, (wall_us - model.history.commits[version].mtime_us) // 1000))


def says_rightly_absent_from_a_wrong_host(model: Model, read: Read, _: int) -> Read | None:
    """The key is absent, and only the partition shows that the replica that said so could not know."""
    same = sum(other.key == read.key and other.answered and other.version is not None for other in model.history.reads)
    if read.outcome != "absent" or same <= 2 or read.partition is None:
        return None
    return replace(read, partition=(read.partition + 1) % PARTITIONS)


def refuses_without_cause(_: Model, read: Read, __: int) -> Read | None:
    candidates = (("node-1", "lag-exceeded"), ("node-2", "dead"))
    refused = replace(read, outcome="refused", status=503, candidates=candidates, problem="deadline")
    return None if read.bounds.limits_lag else refused


Plant = Callable[[Model, Read, int], object]
"""What one bug makes of an answered read that states a version; anything else than a read where it cannot."""

PLANTS: dict[str, tuple[str, Plant]] = {
    "serves uncommitted": ("answers", serves_uncommitted),
    "states the version before": (
        "answers",
        lambda model, read, version: (
            version > 1
            and model.truth.at(STORE, read.key, version - 1) != read.value
            and replace(read, version=version - 1, committed_at_us=None)
        ),
    ),
    "says absent from a wrong host": (
        "answers",
        lambda _, read, __: read.outcome == "found" and replace(read, outcome="absent", status=404, value=None),
    ),
    "says rightly absent from a wrong host": ("answers", says_rightly_absent_from_a_wrong_host),
    "states another commit time": (
        "answers",
        lambda model, read, version: replace(read, committed_at_us=model.history.commits[version - 1].mtime_us + 1),
    ),
    "states no version": ("answers", lambda _, read, __: replace(read, version=None)),
    "answers from a store that Spark does not have": (
        "answers",
        lambda _, read, __: read.outcome == "absent" and replace(read, store="words-2"),
    ),
    "forgets the session": ("sessions", forgets_the_session),
    "carries an old token": (  # the reader's own mistake; the session went back all the same
        "sessions",
        lambda model, read, version: (
            (older := forgets_the_session(model, read, version))
            and bounded(replace(older, position_version=older.version), min_version=1)
        ),
    ),
    "forgets the token": ("bounds", lambda _, read, version: bounded(read, min_version=version + 1)),
    "reads another version": (
        "bounds",
        lambda model, read, version: (
            read.bounds.version is not None and version > 1 and at_version(model, read, version - 1)
        ),
    ),
    "loses the position": (
        "sessions",
        lambda _, read, version: read.bounds.min_version is not None and replace(read, position_version=version - 1),
    ),
    "ignores max_lag": (
        "bounds",
        lambda _, read, __: read.offset_lag and bounded(read, max_lag=read.offset_lag - 1),
    ),
    "hides that it breaks max_lag": (
        "bounds",
        lambda model, read, version: (
            is_old(model, read, version, 50) and bounded(replace(read, offset_lag=0, time_lag_ms=1), max_lag=0)
        ),
    ),
    "ignores max_staleness": (
        "bounds",
        lambda _, read, __: read.time_lag_ms and bounded(read, max_staleness_ms=read.time_lag_ms - 1),
    ),
    "hides that it breaks max_staleness": (
        "bounds",
        lambda model, read, version: (
            is_old(model, read, version, 1_000)
            and replace(read, offset_lag=0, time_lag_ms=1, bounds=Bounds(max_staleness_ms=100))
        ),
    ),
    "ignores require_active": (
        "bounds",
        lambda _, read, __: read.role == "standby" and bounded(read, require_active=True),
    ),
    "serves unknown lag to a bounded reader": (
        "bounds",
        lambda _, read, __: (
            read.bounds.limits_lag
            and read.bounds.unknown_lag is None
            and replace(read, offset_lag=None, time_lag_ms=None)
        ),
    ),
    "forgets missing versions": (
        "offset lag",
        lambda model, read, version: (
            read.offset_lag and is_old(model, read, version, 100) and replace(read, offset_lag=0, time_lag_ms=50)
        ),
    ),
    "confirms for ever": ("offset lag", lambda _, read, __: read.offset_lag == 0 and replace(read, time_lag_ms=10_001)),
    "compares clocks": ("time lag", compares_clocks),
    "fails": (
        "availability",
        lambda _, read, __: replace(read, outcome="failed", status=0, version=None, detail="no reply in 5000 ms"),
    ),
    "refuses without cause": ("availability", refuses_without_cause),
}


@pytest.mark.parametrize("name", PLANTS)
@settings(max_examples=10, phases=AS_DRAWN)
@given(seed=SEEDS, choice=st.integers(0, 1000))
def test_a_planted_bug_in_one_read_is_found_and_the_read_is_named(name: str, seed: int, choice: int) -> None:
    claimed, plant = PLANTS[name]
    model = Model(seed, commits=20, reads=120)
    places = [place for place, read in enumerate(model.history.reads) if read.answered and read.version is not None]
    wrong = {place: plant(model, read, read.version or 0) for place in places for read in [model.history.reads[place]]}
    planted = [(place, read) for place, read in wrong.items() if isinstance(read, Read)]
    assume(planted)
    place, read = planted[choice % len(planted)]
    model.history.reads[place] = read
    claim = check(model.history, model.truth).claims[claimed]
    assert not claim.holds
    assert any(f"read {read.session}/{read.seq} of {read.store}" in violation.text for violation in claim.violations)


def test_a_time_lag_that_counts_from_the_last_confirmation_is_found() -> None:
    """The last confirmation of an end that stands still says nothing of how long a replica has been behind it."""
    model = Model(7, counts_from="confirmed")
    assert check(model.history, model.truth).claims["time lag"].found


def test_a_service_that_grows_under_attack_is_found_and_one_that_began_a_new_life_is_not() -> None:
    during = next(number for number, each in enumerate(GOOD.history.memory) if each.at_ms > GOOD.ends_ms * 0.75)
    memory = list(GOOD.history.memory)
    grown = replace(memory[during], used_bytes=200 << 20)
    for sample, found in ((grown, 1), (replace(grown, pid=18), 0)):
        memory[during] = sample
        claim = check(changed(memory=memory), GOOD.truth).claims["memory"]
        assert claim.found == found
        assert not found or grown.service in claim.violations[0].text


def test_a_router_that_has_lost_a_place_is_found() -> None:
    asked = list(GOOD.history.asked_at_once)
    asked[3] = replace(asked[3], answered=asked[3].asked - 1, detail="504 deadline")
    (violation,) = check(changed(asked_at_once=asked), GOOD.truth).claims["places"].violations
    assert f"router-1 answered {asked[3].answered} of {asked[3].asked} {asked[3].kind}" in violation.text
    assert violation.text.endswith("504 deadline")


def changed(**parts: object) -> History:
    """The good run with other parts."""
    history = copy(GOOD.history)
    for name, value in parts.items():
        setattr(history, name, value)
    return history


LOST = {
    "a replica that stayed behind": lambda final: replace(final, version=final.version - 1),
    "a replica of a store that Spark does not have": lambda final: replace(final, store="words-2"),
    "a replica that never came back": lambda final: None,
    "a replica with another value": lambda final: replace(final, values={**final.values, KEYS[0]: {"count": -1}}),
    "a replica without a key": lambda final: replace(
        final, values={key: value for key, value in final.values.items() if value is None}
    ),
    "a replica with a key that Spark does not have": lambda final: replace(
        final, values={**final.values, '["none"]': {"count": 1}}
    ),
}


@pytest.mark.parametrize("lose", LOST.values(), ids=LOST.keys())
def test_lost_convergence_is_found(lose: Callable[[object], object]) -> None:
    finals = [lose(GOOD.history.finals[0]), *GOOD.history.finals[1:]]
    verdict = check(changed(finals=[final for final in finals if final is not None]), GOOD.truth)
    assert verdict.claims["convergence"].found
    assert [name for name, claim in verdict.claims.items() if not claim.holds] == ["convergence"]


def test_a_truth_that_does_not_reach_the_last_version_shows_no_convergence() -> None:
    states = {key: [(1, {"count": 1})] for key in KEYS}
    claim = check(GOOD.history, Truth({STORE: states}, first=1, last=2)).claims["convergence"]
    assert [violation.text for violation in claim.violations] == ["the truth covers versions 1 to 2, the last is 30"]


def test_a_claim_that_examined_nothing_fails() -> None:
    verdict = check(
        changed(reads=[], scans=[], snapshots=[], finals=[], memory=[], watches=[], asked_at_once=[]),
        GOOD.truth,
        claims=set(CLAIMS) - {"convergence"},
    )
    assert {name: claim.found for name, claim in verdict.claims.items()} == dict.fromkeys(verdict.claims, 0)
    assert not any(claim.holds for claim in verdict.claims.values())
    assert verdict.claims["bounds"].vacuous == (
        "max_lag",
        "max_staleness_ms",
        "min_version",
        "version",
        "require_active",
    )


@pytest.mark.parametrize(("version", "excused"), [(5, {1_500.0, 2_400.0}), (None, set())], ids=["named", "shown"])
def test_a_store_that_fails_excuses_reads_of_named_versions_while_it_fails_and_settles(
    version: int | None, excused: set[float]
) -> None:
    faults = [
        FaultEvent(1_000, "store-throttles", "store", "injected"),
        FaultEvent(2_000, "store-throttles", "store", "healed"),
    ]
    asked, said = Bounds(version=version), (("node-1", "store-error"),)
    refused = Read(1, 1, 0.0, 0.0, "router-1", STORE, KEYS[0], asked, 503, "refused", candidates=said)
    times = (500.0, 1_500.0, 2_400.0, 2_600.0)
    reads = [replace(refused, seq=seq, began_ms=at_ms, ended_ms=at_ms + 1) for seq, at_ms in enumerate(times)]
    claim = check(changed(reads=reads, faults=faults), GOOD.truth, Limits(settle_ms=500)).claims["availability"]
    assert {violation.at_ms for violation in claim.violations} == {*times} - excused


@pytest.mark.parametrize(
    ("bounds", "fault", "is_excused"),
    [
        (Bounds(require_active=True), "stop-active", True),
        (Bounds(require_active=True), "redis-pause", False),
        (Bounds(), "stop-active", False),
    ],
)
def test_a_client_that_wants_the_active_alone_may_give_up_while_a_node_is_away(
    bounds: Bounds, fault: str, is_excused: bool
) -> None:
    read = Read(1, 1, 1_000.0, 6_000.0, "router-1", STORE, KEYS[0], bounds, 504, "refused", problem="deadline")
    faults = [FaultEvent(0, fault, "node-1", "injected"), FaultEvent(6_000, fault, "node-1", "healed")]
    assert check(changed(reads=[read], faults=faults), GOOD.truth).claims["availability"].holds is is_excused
