"""Claim (l): once all is healed, services have all their places again (pure)."""

from __future__ import annotations

from tests.system.proof.claims import Case, ClaimResult, Tally
from tests.system.proof.every_read import AT_ONCE


def no_place_is_lost(case: Case) -> ClaimResult:
    """(l) Once all is healed every router answers each kind of read, as many at once as it may have, whatever readers
    have cancelled before."""
    says = "once all is healed every router answers each kind of read, as many at once as may be"
    tally = Tally(case, "places", says, tuple(AT_ONCE), is_of_stores=False)
    for each in case.history.asked_at_once:
        tally.looked(each.kind)
        if each.answered < each.asked:
            text = f"{each.service} answered {each.answered} of {each.asked} {each.kind} that were asked at once"
            tally.accuse_at(each.at_ms, f"{text}; one of the others: {each.detail}")
    return tally.result()
