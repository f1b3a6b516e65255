"""Claims (c) and (d): no answer breaks its bound, no answer is older than it says (pure).

`commit_times` has the reasoning about what can be known of an answer's true age.
"""

from __future__ import annotations

from tests.system.proof.claims import Case, ClaimResult, Tally
from tests.system.proof.history import Read


def bounds_are_kept(case: Case) -> ClaimResult:
    """(c) By what an answer declares and by the truth, it is inside its reader's bound."""
    needed = ("max_lag", "max_staleness_ms", "min_version", "version", "require_active")
    tally = Tally(case, "bounds", "no answer breaks its reader's bound", needed)
    for read in case.answers():
        bounds = read.bounds
        if bounds.max_lag is not None:
            tally.looked("max_lag", read.store)
            _judge_max_lag(case, tally, read, bounds.max_lag)
        if bounds.max_staleness_ms is not None:
            tally.looked("max_staleness_ms", read.store)
            _judge_max_staleness(case, tally, read, bounds.max_staleness_ms)
        _judge_version(tally, read)
        if bounds.require_active:
            tally.looked("require_active", read.store)
            if read.role != "active":
                tally.accuse(read, f"the reader required the active, {read.role or 'no role'} answered")
        if read.offset_lag is None or (bounds.max_staleness_ms is not None and read.time_lag_ms is None):
            tally.looked("unknown lag", read.store)
            if not bounds.serves_unknown_lag:
                tally.accuse(read, "the lag is unknown, and the reader did not accept that")
    return tally.result()


def _judge_version(tally: Tally, read: Read) -> None:
    least, named = read.bounds.min_version, read.bounds.version
    if least is not None:
        tally.looked("min_version", read.store)
        if read.version is None or read.version < least:
            tally.accuse(read, f"the reader wanted version {least} or later")
    if named is not None:
        tally.looked("version", read.store)
        if read.version != named:
            tally.accuse(read, f"the reader wanted version {named}")


def _judge_max_lag(case: Case, tally: Tally, read: Read, max_lag: int) -> None:
    if read.offset_lag is None:
        return
    if read.offset_lag > max_lag:
        tally.accuse(read, f"declares a lag of {read.offset_lag}, the reader accepted {max_lag}")
    elif read.version is not None:
        age_ms = case.end_expiry_ms if read.time_lag_ms is None else read.time_lag_ms
        true = case.commits.lag_owned_up_to(read.version, read.began_ms, age_ms)
        if true > max_lag:
            tally.accuse(read, f"was behind by {true} versions {age_ms} ms before, the reader accepted {max_lag}")


def _judge_max_staleness(case: Case, tally: Tally, read: Read, max_staleness_ms: int) -> None:
    if read.time_lag_ms is None:
        return
    if read.time_lag_ms > max_staleness_ms:
        tally.accuse(read, f"declares a time lag of {read.time_lag_ms} ms, the reader accepted {max_staleness_ms} ms")
    elif read.version is not None and read.offset_lag is not None:
        true_ms = case.commits.least_time_lag_ms(read.version, read.offset_lag, read.began_ms)
        if true_ms is not None and true_ms > max_staleness_ms:
            tally.accuse(read, f"was stale by {true_ms:.0f} ms, the reader accepted {max_staleness_ms} ms")


def declared_offset_lag_is_true(case: Case) -> ClaimResult:
    """(d) With a lag of L versions and T ms declared, no more than L versions after it were committed T ms before the
    read. A lag of 0 is known for as long as its confirmation counts: T is at most `end_expiry_ms`."""
    tally = Tally(case, "offset lag", "declared lag in versions is never less than the true lag", ("known lag",))
    for read in case.answers():
        if read.version is None or read.offset_lag is None:
            continue
        tally.looked("known lag", read.store)
        age_ms = case.end_expiry_ms if read.time_lag_ms is None else read.time_lag_ms
        true = case.commits.lag_owned_up_to(read.version, read.began_ms, age_ms)
        if true > read.offset_lag:
            tally.accuse(
                read, f"declares a lag of {read.offset_lag}, but was behind by {true} versions {age_ms} ms before it"
            )
        if read.offset_lag == 0 and age_ms > case.end_expiry_ms:
            tally.accuse(read, f"calls a lag known that was confirmed {age_ms} ms ago")
    return tally.result()


def declared_time_lag_is_true(case: Case) -> ClaimResult:
    """(d) With version + 1 committed before the read began, the declared time lag reaches back to that commit.

    Which kinds have answers that are behind is a matter of placement: of the node that a fault hits, the other replicas
    answer. A lag is one of a store partition whatever its kind, so the evidence may be of any.
    """
    says = "declared time lag is never less than the true lag"
    tally = Tally(case, "time lag", says, ("behind",), needs_each_kind=False)
    for read in case.answers():
        if read.version is None or read.offset_lag is None or read.time_lag_ms is None:
            continue
        least_ms = case.commits.least_time_lag_ms(read.version, read.offset_lag, read.began_ms)
        if least_ms is None:
            continue
        tally.looked("behind", read.store)
        if read.time_lag_ms < least_ms:
            tally.accuse(
                read,
                f"declares a time lag of {read.time_lag_ms} ms (and {read.offset_lag} versions), but version "
                f"{read.version + 1} had been there for {least_ms:.0f} ms at least",
            )
    return tally.result()
