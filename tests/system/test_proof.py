"""The proof, run: real processes under faults and load, and each claim about what their readers saw.

tests/system/proof is the tool, docs/proof.md says what is proven. A failure leaves the history in the folder that it
names; `python -m tests.system.proof check FOLDER` judges it again, `replay FOLDER` runs it again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.measurements import measured
from tests.support.oracle.releases import NoSparkError
from tests.system.proof.checker import CLAIMS, Verdict, check
from tests.system.proof.claim_answers import LATE_BASES
from tests.system.proof.claims import ClaimResult
from tests.system.proof.fleet_run import RENEWED, STORED, VISITING, run_fleet
from tests.system.proof.history import History
from tests.system.proof.history_file import load
from tests.system.proof.hunting import RATE, hunt
from tests.system.proof.kinds_keys import WITH_PAGES
from tests.system.proof.mutants import MUTANTS
from tests.system.proof.report import as_text
from tests.system.proof.run import TRUTH_NAME, RunOptions, run
from tests.system.proof.schedule import IN_A_FOLDER, Schedule, StorageKind, long, short
from tests.system.proof.storage import missing
from tests.system.proof.subjects import COUNTS, KINDS, MOODS, SCATTERED, Subject
from tests.system.proof.truth_of_state import Truth
from tests.system.proof.world import WorldOptions, options_of

SEED = 4
FAULTS_OF_THE_LONG_RUN = {
    "cut-node",
    "redis-refuses-writes",
    "cut-replies",
    "refuse-node",
    "slow-link",
    "redis-pause",
    "delete-changelog",
    "slow-node",
    "node-answers-500",
    "rolling-restart",
    "absurd-messages",
    "forked-checkpoint",
    "cut-node-from-redis",
    "corrupt-changelog",
    "clock-jump",
    "redis-flush",
    "disk-full",
    "checkpoint-gone",
    "hostile-connections",
}
"""Each is much like another of the menu, or like what test_rolling_restart.py, test_failover.py,
test_absurd_messages.py, test_redis_refuses_writes.py, test_forked_checkpoint.py, test_bad_state_files.py and
test_hostile_connections.py do in every run. Thousands of forged messages take most of a core, as does a second Spark,
and two tests at a time leave none.
"""

FAULTS_OF_EVERY_KIND = (
    "kill-active",
    "stop-active",
    "kill-router",
    "cut-node",
    "redis-down",
    "corrupt-changelog",
    "delete-changelog",
    "checkpoint-gone",
    "hostile-connections",
    "cancelling-reader",
    "kill-spark",
)
"""Those that meet state files, replicas and pages; the others do not know kinds apart."""

FAULTS_WHEN_SCATTERED = (
    "kill-active",
    "stop-active",
    "kill-router",
    "cut-node",
    "redis-down",
    "delete-changelog",
    "cancelling-reader",
    "kill-spark",
)
"""Those that take a replica, of which every read of a key needs one in each partition."""

FAULTS_OF_EVERY_RUN = tuple(fault for fault in IN_A_FOLDER if fault not in FAULTS_OF_THE_LONG_RUN)

_WITH_OBJECTS = (
    "kill-active",
    "redis-down",
    "disk-full",
    "store-throttles",
    "store-hangs",
    "cut-node-from-store",
    "kill-restoring",
    "kill-spark",
)
FAULTS_WITH: dict[StorageKind, Sequence[str]] = {
    "s3": _WITH_OBJECTS,
    "azure": _WITH_OBJECTS,
    "hdfs": (
        "kill-active",
        "disk-full",
        "store-hangs",
        "namenode-stops",
        "datanode-stops",
        "cut-node-from-store",
        "kill-spark",
    ),
}

FAULTS_WITH_HDFS = ("kill-active", "damaged-local-copy", "stop-active", "kill-spark")

FAULTS_WHEN_SIGNED = ("unsigned-lease", "kill-active", "redis-down")

FAULTS_WITH_AN_ADDED_VARIABLE = (
    "added-variable",
    "checkpoint-gone",
    "kill-active",
)  # the second: answers that are behind

FAULTS_OF_RELEASES = (
    "kill-spark",
    "kill-active",
    "kill-router",
    "other-spark",
    "stop-active",
    "other-spark",
    "kill-spark",
)
"""The query goes on with the Spark of the tests, and then again with the one that began it."""

BASES_S = 90.0
"""Each node replaces far more than the bases of the claim in this time."""

Hunted = Callable[[str], ClaimResult]


def say(line: str) -> None:
    """Progress, shown by `pytest -s` and with a failure."""
    sys.stderr.write(line + "\n")


def judged(
    schedule: Schedule, folder: Path, world: WorldOptions | None = None, rate: float = RATE
) -> tuple[History, Verdict]:
    """Run a schedule, judge it, print the report with its percentiles. Other tests run beside it: few reads."""
    run(schedule, folder, RunOptions(world=world or options_of(COUNTS), rate=rate), say)
    history = load(folder)
    verdict = check(history, Truth.load(folder / TRUTH_NAME))
    for line in as_text(history, verdict).splitlines():
        say(line)
        measured(line)
    say(f"the history is in {folder}")
    return history, verdict


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[History, Verdict]:
    """The short schedule of what is in every run, run once for all its claims. The long run has every fault of it."""
    return judged(short(SEED, faults=FAULTS_OF_EVERY_RUN), tmp_path_factory.mktemp("proof"))


@pytest.mark.brief
@pytest.mark.timeout(480)
def test_every_fault_of_the_schedule_was_injected_and_healed_or_could_not_be_had_here(
    short_run: tuple[History, Verdict],
) -> None:
    history, _ = short_run
    assert_injected(history, FAULTS_OF_EVERY_RUN)


@pytest.mark.brief
@pytest.mark.timeout(480)
@pytest.mark.parametrize("claim", CLAIMS)
def test_under_every_fault_the_claim_holds(claim: str, short_run: tuple[History, Verdict]) -> None:
    _, verdict = short_run
    assert_holds(verdict.claims[claim])


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_over_ten_minutes_with_faults_beside_each_other_every_claim_holds(tmp_path: Path) -> None:
    history, verdict = judged(long(SEED), tmp_path)
    assert_proven(history, verdict, IN_A_FOLDER)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("storage", "faults"), FAULTS_WITH.items(), ids=FAULTS_WITH)
def test_with_the_checkpoint_in_a_store_every_claim_holds_under_faults_of_the_store_and_of_others(
    tmp_path: Path, storage: StorageKind, faults: Sequence[str]
) -> None:
    if why := missing(storage):
        pytest.skip(why)
    history, verdict = judged(short(SEED, faults=faults), tmp_path, options_of(COUNTS, storage=storage))
    assert_proven(history, verdict, faults)


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("subject", "faults"),
    [(KINDS, FAULTS_OF_EVERY_KIND), (SCATTERED, FAULTS_WHEN_SCATTERED)],
    ids=["by-hash", "scattered"],
)
def test_over_state_of_every_kind_every_claim_holds_for_each(
    subject: Subject, faults: Sequence[str], tmp_path: Path
) -> None:
    history, verdict = judged(short(SEED, faults=faults), tmp_path, options_of(subject))
    assert_proven(history, verdict, faults)
    answers = verdict.claims["answers"].kinds
    assert answers.keys() == set(subject.kinds.values())
    assert {kind for kind, seen in answers.items() if seen.examined["in pages"]} == WITH_PAGES


@pytest.mark.full
@pytest.mark.timeout(900)
def test_with_hdfs_backed_state_every_claim_holds_under_damage_of_local_copies_and_other_faults(tmp_path: Path) -> None:
    history, verdict = judged(short(SEED, faults=FAULTS_WITH_HDFS), tmp_path, options_of(COUNTS, "hdfs"))
    assert_proven(history, verdict, FAULTS_WITH_HDFS)


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("state_format", ["rocksdb-v1", "hdfs"])
def test_over_a_query_of_spark_3_5_that_dies_moves_to_spark_4_and_moves_back_every_claim_holds(
    state_format: str, tmp_path: Path
) -> None:
    schedule = short(SEED, faults=FAULTS_OF_RELEASES)
    try:
        history, verdict = judged(schedule, tmp_path, options_of(COUNTS, state_format, line="3.5"), rate=2 * RATE)
    except NoSparkError as error:
        pytest.skip(str(error))
    assert_proven(history, verdict, FAULTS_OF_RELEASES)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_with_signed_gossip_every_claim_holds_while_a_process_without_the_key_wants_the_lease(tmp_path: Path) -> None:
    history, verdict = judged(short(SEED, faults=FAULTS_WHEN_SIGNED), tmp_path, options_of(COUNTS, signed=True))
    assert_proven(history, verdict, FAULTS_WHEN_SIGNED)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_when_a_restart_adds_a_state_variable_every_claim_holds_for_it_and_for_the_one_before(tmp_path: Path) -> None:
    schedule = short(SEED, faults=FAULTS_WITH_AN_ADDED_VARIABLE)
    history, verdict = judged(schedule, tmp_path, options_of(MOODS, MOODS.formats[0]))
    assert_proven(history, verdict, FAULTS_WITH_AN_ADDED_VARIABLE)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_after_many_replaced_bases_every_claim_holds(tmp_path: Path) -> None:
    faults = ("slow-link", "hostile-connections", "redis-down", "kill-router")
    schedule = replace(short(SEED, faults=faults), ends_s=BASES_S)
    history, verdict = judged(schedule, tmp_path, options_of(COUNTS, short_lived_bases=True))
    assert_proven(history, verdict, faults)
    assert verdict.claims["answers"].examined[LATE_BASES] > 0


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_what_befalls_one_query_of_a_fleet_is_none_of_the_others_business(tmp_path: Path) -> None:
    stores: Sequence[StorageKind] = ("azure", "s3", "hdfs")
    storage = next((kind for kind in stores if not missing(kind)), None)
    if storage is None:
        pytest.skip(missing(stores[0]))
    parts = run_fleet(tmp_path, storage, RATE / 5, SEED, say)
    assert Counter(part.application for part in parts) == {STORED: 1, RENEWED: 2, VISITING: 2}
    for part in parts:
        history, verdict = part.judged()
        for line in as_text(history, verdict).splitlines():
            say(line)
            measured(f"{part.folder.name}: {line}")
        for claim in verdict.claims.values():
            assert not claim.found, "\n".join([part.folder.name, claim.says, *(each.text for each in claim.violations)])
            assert claim.holds or part.application != STORED, claim.vacuous


@pytest.fixture(scope="module")
def hunted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hunted:
    """What the checker says of a mutant. Those of one place that are asked for in this run share one hunt."""
    chosen = {item.callspec.params.get("mutant") for item in request.session.items if hasattr(item, "callspec")}
    found: dict[object, dict[str, ClaimResult]] = {}

    def of(mutant: str) -> ClaimResult:
        place = MUTANTS[mutant].place
        if place not in found:
            found[place] = {}  # a hunt that fails is not begun again by each of its mutants
            names = [name for name in MUTANTS if name in chosen and MUTANTS[name].place == place]
            found[place] = hunt(names, tmp_path_factory.mktemp("mutants"), say)
        assert mutant in found[place], "the hunt failed, see the first mutant of this place"
        return found[place][mutant]

    return of


@pytest.mark.full
@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_bug_planted_in_the_services_is_found(mutant: str, hunted: Hunted) -> None:
    claim = hunted(mutant)
    assert claim.found > 0, f"{claim.name} examined {claim.examined} and found nothing wrong"
    for kind in MUTANTS[mutant].kinds:
        assert claim.kinds[kind].found > 0, f"{claim.name} found nothing wrong in {kind}: {claim.kinds[kind]}"


def assert_proven(history: History, verdict: Verdict, faults: Iterable[str]) -> None:
    """The faults happened, and every claim holds."""
    assert_injected(history, faults)
    for claim in verdict.claims.values():
        assert_holds(claim)


def assert_injected(history: History, faults: Iterable[str]) -> None:
    """Each of them, and healed, unless the machine does not allow it; nothing else."""
    healed = {event.fault for event in history.faults if event.phase == "healed" and not event.detail}
    skipped = {event.fault: event.detail for event in history.faults if event.phase == "skipped"}
    assert healed | set(skipped) == set(faults), [event for event in history.faults if event.detail]


def assert_holds(claim: ClaimResult) -> None:
    """Fail with the first violations when the claim does not hold."""
    assert claim.holds, "\n".join([claim.says, *claim.vacuous, *(each.text for each in claim.violations[:10])])
