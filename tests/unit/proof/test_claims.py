"""The claims find each planted bug, name the read, and never accuse a world that does everything right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace

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


def served(model: Model) -> Iterator[tuple[int, Read, int]]:
    """The answered reads that state a version, with their places and versions."""
    for place, read in enumerate(model.history.reads):
        if read.answered and read.version is not None:
            yield place, read, read.version


def at_version(model: Model, read: Read, version: int) -> Read:
    """The read, answered rightly at another version."""
    value = model.truth.at(STORE, read.key, version)
    mtime_us = model.history.commits[version - 1].mtime_us
    answer = replace(read, value=value, version=version, committed_at_us=mtime_us, position_version=version)
    return replace(answer, outcome="absent" if value is None else "found")


def serves_uncommitted(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, version in served(model):
        for commit in model.history.commits[version:]:
            if commit.not_before_ms is not None and commit.not_before_ms >= read.ended_ms:
                yield place, at_version(model, read, commit.version)
                break


def states_the_version_before(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, version in served(model):
        if version > 1 and model.truth.at(STORE, read.key, version - 1) != read.value:
            yield place, replace(read, version=version - 1, committed_at_us=None)


def ignores_max_lag(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, _ in served(model):
        if read.offset_lag:
            yield place, replace(read, bounds=replace(read.bounds, max_lag=read.offset_lag - 1))


def hides_that_it_breaks_max_lag(model: Model) -> Iterator[tuple[int, Read]]:
    """It calls itself up to date, which it was not for long."""
    for place, read, version in served(model):
        if version < len(model.log) and model.history.commits[version].seen_ms < read.began_ms - 50:
            fresh = replace(read, offset_lag=0, time_lag_ms=1, bounds=replace(read.bounds, max_lag=0))
            yield place, fresh


def ignores_max_staleness(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, _ in served(model):
        if read.time_lag_ms:
            yield place, replace(read, bounds=replace(read.bounds, max_staleness_ms=read.time_lag_ms - 1))


def hides_that_it_breaks_max_staleness(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, version in served(model):
        if version < len(model.log) and model.history.commits[version].seen_ms < read.began_ms - 1_000:
            yield place, replace(read, offset_lag=0, time_lag_ms=1, bounds=Bounds(max_staleness_ms=100))


def ignores_require_active(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, _ in served(model):
        if read.role == "standby":
            yield place, replace(read, bounds=replace(read.bounds, require_active=True))


def serves_unknown_lag_to_a_bounded_reader(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, _ in served(model):
        if read.bounds.limits_lag and read.bounds.unknown_lag is None:
            yield place, replace(read, offset_lag=None, time_lag_ms=None)


def forgets_missing_versions(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, version in served(model):
        if read.offset_lag and model.history.commits[version].seen_ms < read.began_ms - 100:
            yield place, replace(read, offset_lag=0, time_lag_ms=50)


def compares_clocks(model: Model) -> Iterator[tuple[int, Read]]:
    """Its clock was set back by an hour, so what is old looks new."""
    for place, read, version in served(model):
        if read.offset_lag and read.time_lag_ms and model.history.commits[version].seen_ms < read.began_ms - 1_000:
            since_us = model.history.commits[version].mtime_us
            wall_us = int((read.began_ms + 300_000 - 3_600_000) * 1000)
            yield place, replace(read, time_lag_ms=max(0, (wall_us - since_us) // 1000))


def confirms_for_ever(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, _ in served(model):
        if read.offset_lag == 0:
            yield place, replace(read, time_lag_ms=10_001)


def says_absent_from_a_wrong_host(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, _ in served(model):
        if read.outcome == "found":
            yield place, replace(read, outcome="absent", status=404, value=None)


def says_rightly_absent_from_a_wrong_host(model: Model) -> Iterator[tuple[int, Read]]:
    """The key is absent, and only the partition shows that the replica that said so could not know."""
    for place, read, _ in served(model):
        same = sum(1 for _, other, _ in served(model) if other.key == read.key)
        if read.outcome == "absent" and same > 2 and read.partition is not None:
            yield place, replace(read, partition=(read.partition + 1) % PARTITIONS)


def forgets_the_session(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, _ in served(model):
        if read.bounds.min_version is not None and read.bounds.min_version > 1:
            older = at_version(model, read, read.bounds.min_version - 1)
            yield place, replace(older, position_version=read.bounds.min_version)


def carries_an_old_token(model: Model) -> Iterator[tuple[int, Read]]:
    """The reader's own mistake; the session went back all the same."""
    for place, read, _ in served(model):
        if read.bounds.min_version is not None and read.bounds.min_version > 1:
            older = at_version(model, read, read.bounds.min_version - 1)
            yield place, replace(older, bounds=replace(read.bounds, min_version=1))


def forgets_the_token(model: Model) -> Iterator[tuple[int, Read]]:
    """The same bug, in a session that hands a token of its own to every read."""
    for place, read, version in served(model):
        yield place, replace(read, bounds=replace(read.bounds, min_version=version + 1))


def loses_the_position(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, version in served(model):
        if read.bounds.min_version is not None:
            yield place, replace(read, position_version=version - 1)


def states_another_commit_time(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, version in served(model):
        yield place, replace(read, committed_at_us=model.history.commits[version - 1].mtime_us + 1)


def states_no_version(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, _ in served(model):
        yield place, replace(read, version=None)


def answers_from_a_store_that_spark_does_not_have(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, _ in served(model):
        if read.outcome == "absent":
            yield place, replace(read, store="words-2")


def fails(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, _ in served(model):
        yield place, replace(read, outcome="failed", status=0, version=None, detail="no reply in 5000 ms")


def refuses_without_cause(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, _ in served(model):
        if not read.bounds.limits_lag:
            candidates = (("node-1", "lag-exceeded"), ("node-2", "dead"))
            yield place, replace(read, outcome="refused", status=503, candidates=candidates, problem="deadline")


def reads_another_version(model: Model) -> Iterator[tuple[int, Read]]:
    for place, read, version in served(model):
        if read.bounds.version is not None and version > 1:
            yield place, at_version(model, read, version - 1)


Plant = Callable[[Model], Iterator[tuple[int, Read]]]
"""Every read of a right run that can be made wrong in one way: its place, and what it becomes."""

PLANTS: dict[Plant, str] = {
    serves_uncommitted: "answers",
    states_the_version_before: "answers",
    says_absent_from_a_wrong_host: "answers",
    says_rightly_absent_from_a_wrong_host: "answers",
    states_another_commit_time: "answers",
    states_no_version: "answers",
    answers_from_a_store_that_spark_does_not_have: "answers",
    forgets_the_session: "sessions",
    carries_an_old_token: "sessions",
    forgets_the_token: "bounds",
    reads_another_version: "bounds",
    loses_the_position: "sessions",
    ignores_max_lag: "bounds",
    hides_that_it_breaks_max_lag: "bounds",
    ignores_max_staleness: "bounds",
    hides_that_it_breaks_max_staleness: "bounds",
    ignores_require_active: "bounds",
    serves_unknown_lag_to_a_bounded_reader: "bounds",
    forgets_missing_versions: "offset lag",
    confirms_for_ever: "offset lag",
    compares_clocks: "time lag",
    fails: "availability",
    refuses_without_cause: "availability",
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
@settings(max_examples=10, phases=AS_DRAWN)
@given(seed=SEEDS, choice=st.integers(0, 1000))
def test_a_planted_bug_in_one_read_is_found_and_the_read_is_named(plant: Plant, seed: int, choice: int) -> None:
    model = Model(seed, commits=20, reads=120)
    planted = list(plant(model))
    assume(planted)
    place, read = planted[choice % len(planted)]
    model.history.reads[place] = read
    claim = check(model.history, model.truth).claims[PLANTS[plant]]
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
