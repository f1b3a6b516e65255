"""Judges a recorded run: every claim against the history and the truth (pure).

The claims, by their letters in docs/proof.md:

- (a) `answers`: every answer is Spark's state at the version it states;
- (b) `sessions`: no session goes back;
- (c) `bounds`: no answer breaks its bound;
- (d) `offset lag`, `time lag`: declared lag is never less than the true lag;
- (e) `convergence`: after healing all replicas hold the final state;
- (f) `availability`: every read is answered;
- (g) `memory`: hostile connections do not fill a service;
- (h) `scans`: a scan has every key of one version once;
- (i) `snapshots`: reads of several stores are of one version;
- (j) `watches`: a watch tells each version that changed a key once, in order, before its position;
- (k) `clients`: both clients give the truth, by routers and directly;
- (l) `places`: whatever was cancelled, no router has lost a place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tests.system.proof.claim_age import bounds_are_kept, declared_offset_lag_is_true, declared_time_lag_is_true
from tests.system.proof.claim_answers import answers_are_the_truth, no_session_goes_back, replicas_converge
from tests.system.proof.claim_availability import Latencies, latencies, reads_are_answered
from tests.system.proof.claim_memory import memory_is_kept
from tests.system.proof.claim_places import no_place_is_lost
from tests.system.proof.claim_scans import scans_are_the_truth, snapshots_agree
from tests.system.proof.claim_watches import clients_read_the_truth, watches_tell_each_change
from tests.system.proof.claims import Case, ClaimResult, Limits
from tests.system.proof.history import History
from tests.system.proof.truth_of_state import Truth

CLAIMS: dict[str, Callable[[Case], ClaimResult]] = {
    "answers": answers_are_the_truth,
    "sessions": no_session_goes_back,
    "bounds": bounds_are_kept,
    "offset lag": declared_offset_lag_is_true,
    "time lag": declared_time_lag_is_true,
    "convergence": replicas_converge,
    "availability": reads_are_answered,
    "memory": memory_is_kept,
    "scans": scans_are_the_truth,
    "snapshots": snapshots_agree,
    "watches": watches_tell_each_change,
    "clients": clients_read_the_truth,
    "places": no_place_is_lost,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Each claim's result by its name, and how long reads took in each phase."""

    claims: dict[str, ClaimResult]
    latencies: list[Latencies]

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims.values())


def check(
    history: History, truth: Truth, limits: Limits | None = None, claims: Collection[str] = tuple(CLAIMS)
) -> Verdict:
    """Judge a run. `claims` names the ones to judge: a run without load, say, shows nothing of sessions."""
    case = Case(history, truth, limits or Limits())
    return Verdict({name: claim(case) for name, claim in CLAIMS.items() if name in claims}, latencies(case))
