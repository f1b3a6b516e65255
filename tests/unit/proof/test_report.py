"""The report says what was examined, what broke, how long reads took, and which faults there were."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.system.proof.checker import Verdict, check
from tests.system.proof.claim_availability import percentile
from tests.system.proof.history import FaultEvent, History
from tests.system.proof.report import as_json, as_text
from tests.unit.proof.model import Model


def run(*, broken: bool) -> tuple[History, Verdict]:
    model = Model(7)
    history = model.history
    history.faults.append(FaultEvent(1.0, "disk-full", "node-3", "skipped", "mount is not allowed"))
    if broken:
        history.reads = [replace(read, outcome="failed", detail="gone") for read in history.reads]
    return history, check(history, model.truth)


def test_a_run_without_fault_is_reported_in_one_page() -> None:
    history, verdict = run(broken=False)
    text = as_text(history, verdict)
    assert text.endswith("every claim holds\n")
    assert "BROKEN" not in text
    for said in ("answers", "time lag", "quiet", "kill-active", "node-2", "mount is not allowed"):
        assert said in text


def test_what_is_broken_is_named_with_its_first_violations_and_the_seed() -> None:
    text = as_text(*run(broken=True))
    assert "failed: gone" in text
    assert "and 245 more" in text
    assert "nothing was examined of: found" in text
    assert text.endswith("BROKEN (seed 7)\n")


@pytest.mark.parametrize("broken", [False, True])
def test_the_json_says_the_same(broken: bool) -> None:
    history, verdict = run(broken=broken)
    document = json.loads(as_json(history, verdict))
    assert document["holds"] is not broken
    assert {claim["name"]: claim["found"] for claim in document["claims"]} == {
        name: claim.found for name, claim in verdict.claims.items()
    }
    assert document["latencies"][0]["reads"] == len(history.reads)
    assert document["meta"]["schedule"] == history.meta.schedule


@pytest.mark.parametrize(("percent", "value"), [(50, 5), (90, 9), (99, 10), (99.9, 10), (1, 1)])
def test_a_percentile_is_the_nearest_rank(percent: float, value: float) -> None:
    assert percentile(range(1, 11), percent) == value


def test_latencies_are_reported_for_all_for_the_quiet_and_for_each_fault() -> None:
    _, verdict = run(broken=False)
    counts = {phase.phase: phase.reads for phase in verdict.latencies}
    faults = ["hostile-connections", "kill-active"]
    assert list(counts) == ["all", "quiet", *faults]
    assert all(0 < counts[fault] <= counts["all"] - counts["quiet"] for fault in faults)
