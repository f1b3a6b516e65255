"""What readers of a store got lately: the share within its bound and the age, unknown where nobody read."""

from __future__ import annotations

from understudy_router.admin.rates import (
    StoreReadRates,
    StoreServed,
)
from understudy_router.forwarding.answer_ages import StoreReads


class Reads(StoreReads):
    def __init__(self, *, answers: int = 0, refused_by_bound: int = 0) -> None:
        super().__init__()
        self.answers, self.refused_by_bound = answers, refused_by_bound

    def read(self, *ages_ms: float) -> None:
        for age_ms in ages_ms:
            self.answers += 1
            self.staleness_ms.observe(age_ms)


def test_the_share_within_the_bound_counts_what_was_refused_by_it() -> None:
    reads, rates = Reads(), StoreReadRates()
    rates.see(0, {"one": reads})
    reads.read(3, 3, 20)
    reads.refused_by_bound = 1
    assert rates.see(1000, {"one": reads}) == {"one": StoreServed(75.0, 25)}
