"""Claim (g): hostile connections do not fill a service (pure)."""

from __future__ import annotations

from tests.system.proof.claims import Case, ClaimResult, Tally
from tests.system.proof.history import Memory

FILLING = ("hostile-connections",)
"""The faults that a service without limits would be filled by."""

MAX_GROWTH_BYTES = 64 << 20


def memory_is_kept(case: Case) -> ClaimResult:
    """(g) While hostile connections come, no service uses 64 MiB more than just before."""
    says = "hostile connections take at most 64 MiB of a service"
    tally = Tally(case, "memory", says, ("samples",), is_of_stores=False)
    for _ in case.history.memory:
        tally.looked("samples")
    for window in case.faults.windows:
        if window.fault not in FILLING:
            continue
        before: dict[tuple[str, int], Memory] = {}
        accused: set[tuple[str, int]] = set()
        for each in case.history.memory:
            life = (each.service, each.pid)
            if each.at_ms <= window.from_ms:
                before[life] = each
            elif each.at_ms <= window.until_ms and life in before and life not in accused:
                tally.looked("samples under attack")
                grown = each.used_bytes - before[life].used_bytes
                if grown > MAX_GROWTH_BYTES:
                    accused.add(life)
                    tally.accuse_at(each.at_ms, f"{each.service} grew by {grown >> 20} MiB during {window}")
    return tally.result()
