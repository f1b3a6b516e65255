"""How old the answers were that readers got, and whether each kept its bound: counted from what the answers say.

It is on the way of every lookup: what an answer says of its lag is the same for many answers, so it is parsed once and
counted by its text. While there are very many reads without a bound, one in `STRIDE` of them is looked at, and stands
for the others.

The router compares each answer with the bound of its reader again although the node has measured it. An answer beyond
its bound would be a bug of ours, and must not stay unseen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from understudy_router.forwarding.results import Results
from understudy_shared.base.words import LagInfo, Role
from understudy_shared.http.problems import Problem, ProblemType
from understudy_shared.reads.bounds import NO_BOUND, Bound, refusal
from understudy_shared.reads.hop_columns import FOUND, HopOutcome
from understudy_shared.telemetry.histogram import OFFSET_LAG_BOUNDS, STALENESS_BOUNDS_MS, Histogram

EXACT = 4096
"""Reads without a bound of which each one is looked at, between two readings of the counts."""

STRIDE = 7
"""Beyond `EXACT`, one read of so many is looked at. It is a prime, so that it does not fall into step with readers
who take turns.
"""

MAX_TEXTS = 1024
"""Texts that are kept until they are counted: about a millisecond of work then."""

MAX_STORES = 4096
"""Stores with counts of their own. Names of stores may change as long as the process runs."""

TEXT_BYTES = 176
"""Longer than any lag that a node of ours prints; what follows it is the same for all answers of a replica."""

_LAG = b'"lag":{'
_FIELDS = re.compile(
    rb'"lag":\{"current_offset_position":(\d{1,19}),"end_offset_position":(\d{1,19}|null),'
    rb'"offset_lag":(\d{1,19}|null),"time_lag_ms":(\d{1,19}|null)\}'
)


class _Kept:
    """Answers of one text. `violates`: whether they are beyond `bound`, the one they were compared with last."""

    __slots__ = ("bound", "count", "lag", "violates")

    def __init__(self, lag: LagInfo) -> None:
        self.lag = lag
        self.count = 0
        self.bound = NO_BOUND
        self.violates = False


class StoreReads:
    """Counts of one store. `kept` are answers that are not counted yet, by the text of their lag."""

    __slots__ = ("answers", "kept", "refused_by_bound", "staleness_ms")

    def __init__(self) -> None:
        self.answers = 0
        self.refused_by_bound = 0
        self.staleness_ms = Histogram(STALENESS_BOUNDS_MS)
        self.kept: dict[bytes, _Kept] = {}

    def failed(self, problem: Problem) -> None:
        """Count a read that got no answer, if its bound is why."""
        self.refused_by_bound += _is_refused_by_bound(problem)


class ServedReads:
    """Counts of one router. `violations` are answers beyond the bound that was asked for: it stays 0."""

    def __init__(self) -> None:
        self.violations = 0
        self.refused_by_bound = 0
        """Reads that no replica was allowed to answer within the reader's bound."""
        self.errors = 0
        """Reads without an answer for any other reason that is not the reader's."""
        self.unreadable = 0
        """Answers whose lag did not parse: of a node of another release."""
        self._staleness_ms = Histogram(STALENESS_BOUNDS_MS)
        self._offset_lag = Histogram(OFFSET_LAG_BOUNDS)
        self._answers = self._unknown = 0
        self._stores: dict[str, StoreReads] = {}
        self._unnamed = StoreReads()
        """Reads of which nobody says the store."""
        self._texts, self._uncounted = 0, list[StoreReads]()
        """Texts that are kept in all, and the stores that keep some."""
        self._exact, self._turn = EXACT, 0

    def __repr__(self) -> str:
        return f"ServedReads({self.answers} answers, {self.violations} beyond their bound)"

    # ---- on the way of every lookup

    def of(self, store: str) -> StoreReads:
        """The counts of a store. Of very many stores the last ones share theirs."""
        found = self._stores.get(store)
        if found is None and len(self._stores) < MAX_STORES:
            found = self._stores[store] = StoreReads()
        return found or self._unnamed

    def answered(self, outcome: HopOutcome, bound: Bound, store: StoreReads | None = None) -> None:
        """Count the answer to a reader who asked for `bound`."""
        if bound is NO_BOUND:
            if not self._exact:
                self._turn += 1
                if self._turn % STRIDE == 0:
                    self._count(outcome, bound, STRIDE, store or self._unnamed)
                return
            self._exact -= 1
        self._count(outcome, bound, 1, store or self._unnamed)

    def _count(self, outcome: HopOutcome, bound: Bound, times: int, store: StoreReads) -> None:
        """Count so many answers of one outcome."""
        tail = outcome[2]
        start = tail.find(_LAG)
        text = tail[start : start + TEXT_BYTES]
        kept = store.kept.get(text) or self._first(text, store)
        if kept is None:
            self.unreadable += times
            store.answers += times
            return
        kept.count += times
        if kept.bound is not bound:
            kept.bound, kept.violates = bound, is_beyond(kept.lag, bound)
        if kept.violates:
            self.violations += times

    def answered_many(self, results: Results, bound: Bound, store: StoreReads | None = None) -> None:
        """Count the results of a batch. Those of one partition share their tail."""
        store = store or self._unnamed
        for problem in results.problems.values():
            self.failed(problem)
            store.failed(problem)
        for tail, count in Counter(results.tails).items():
            if tail:  # a problem has none
                self._count(HopOutcome(FOUND, b"", tail), bound, count, store)

    def failed(self, problem: Problem) -> None:
        """Count a read that got no answer; one that was the reader's mistake counts in neither."""
        if problem.refusal is not None:
            self.refused_by_bound += _is_refused_by_bound(problem)
        else:
            self.errors += problem.status >= 500 or problem.type is ProblemType.OVERLOADED

    def _first(self, text: bytes, store: StoreReads) -> _Kept | None:
        found = _FIELDS.match(text)
        if found is None:
            return None
        if self._texts >= MAX_TEXTS:
            self._fold()
        if not store.kept:
            self._uncounted.append(store)
        self._texts += 1
        version, end, offset_lag, time_lag_ms = (None if part == b"null" else int(part) for part in found.groups())
        assert version is not None, "the pattern wants digits"
        kept = store.kept[text] = _Kept(LagInfo(version, end, offset_lag, time_lag_ms))
        return kept

    # ---- for metrics and reports

    @property
    def staleness_ms(self) -> Histogram:
        """The time lag of answers, as the nodes measured it; without the answers of unknown time lag."""
        self._read()
        return self._staleness_ms

    @property
    def offset_lag(self) -> Histogram:
        """How many versions behind the answers were; without those of unknown lag."""
        self._read()
        return self._offset_lag

    @property
    def answers(self) -> int:
        """Answers to readers, found and absent."""
        self._read()
        return self._answers + self.unreadable

    @property
    def unknown(self) -> int:
        """Answers of unknown lag."""
        self._read()
        return self._unknown

    @property
    def stores(self) -> Mapping[str, StoreReads]:
        """The counts of each store that was read."""
        self._read()
        return self._stores

    def _read(self) -> None:
        self._fold()
        self._exact = EXACT

    def _fold(self) -> None:
        for store in self._uncounted:
            for kept in store.kept.values():
                self._add(store, kept.count, kept.lag)
            store.kept.clear()
        self._uncounted.clear()
        self._texts = 0

    def _add(self, store: StoreReads, count: int, lag: LagInfo) -> None:
        self._answers += count
        store.answers += count
        if lag.offset_lag is None:
            self._unknown += count
        else:
            self._offset_lag.observe_many(lag.offset_lag, count)
        if lag.time_lag_ms is not None:
            self._staleness_ms.observe_many(lag.time_lag_ms, count)
            store.staleness_ms.observe_many(lag.time_lag_ms, count)


def _is_refused_by_bound(problem: Problem) -> bool:
    return problem.refusal is not None and problem.type is ProblemType.NO_ACCEPTABLE_REPLICA


def is_beyond(lag: LagInfo, bound: Bound) -> bool:
    """Whether a bound forbids an answer of this lag. The role is not compared, an answer's lag does not tell it."""
    if bound is NO_BOUND:
        return False
    version = lag.current_offset_position
    return refusal(bound, lag=lag, role=Role.ACTIVE, version=version, position_committed_at_us=None) is not None
