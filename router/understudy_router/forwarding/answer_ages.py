"""The age of the answers that readers got, and whether each kept its bound, counted from the lag in the answers.

This code runs for every lookup: many answers have the same text about their lag, so each text is parsed once, and
answers are counted by their text. While there are very many reads without a bound, one in `STRIDE` is sampled.

The router checks each answer against its reader's bound again, after the node. An answer beyond its bound would be a
bug of Understudy, and must not go unnoticed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from understudy_router.forwarding.fallback import Results
from understudy_shared.base.words import LagInfo, Role
from understudy_shared.http.problems import Problem, ProblemType
from understudy_shared.questions.lookup.hop import FOUND, HopOutcome
from understudy_shared.reads.bounds import NO_BOUND, Bound, refusal
from understudy_shared.telemetry.metrics import OFFSET_LAG_BOUNDS, STALENESS_BOUNDS_MS, Histogram

EXACT = 4096
"""The number of reads without a bound between two readings of the counts that are all counted."""

STRIDE = 7
"""The sampling interval beyond `EXACT`. It is a prime, so that it does not fall into step with readers who take
turns.
"""

MAX_TEXTS = 1024
"""Most texts that are kept until they are counted: that is about a millisecond of work."""

MAX_STORES = 4096
"""Most stores with counts of their own. Names of stores may change as long as the process runs."""

TEXT_BYTES = 176
"""Bytes of the text of a lag: more than any lag that our nodes print; the bytes after it are the same for all answers
of a replica."""

_LAG = b'"lag":{'
_FIELDS = re.compile(
    rb'"lag":\{"current_offset_position":(\d{1,19}),"end_offset_position":(\d{1,19}|null),'
    rb'"offset_lag":(\d{1,19}|null),"time_lag_ms":(\d{1,19}|null)\}'
)


class _AnswerCount:
    """The count of answers with one text. `violates`: they are beyond `bound`, the last one compared."""

    __slots__ = ("bound", "count", "lag", "violates")

    def __init__(self, lag: LagInfo) -> None:
        self.lag = lag
        self.count = 0
        self.bound = NO_BOUND
        self.violates = False


class StoreReads:
    """The counts of one store. `kept` are answers that are not counted yet, by the text of their lag."""

    __slots__ = ("answers", "kept", "refused_by_bound", "staleness_ms")

    def __init__(self) -> None:
        self.answers = 0
        self.refused_by_bound = 0
        self.staleness_ms = Histogram(STALENESS_BOUNDS_MS)
        self.kept: dict[bytes, _AnswerCount] = {}

    def failed(self, problem: Problem) -> None:
        """Count a read without an answer, if its bound is the reason."""
        self.refused_by_bound += _is_refused_by_bound(problem)


class ServedReads:
    """The counts of one router. `violations` are answers beyond the requested bound: it must stay 0."""

    def __init__(self) -> None:
        self.violations = 0
        self.refused_by_bound = 0
        """The number of reads that no replica was allowed to answer within the reader's bound."""
        self.errors = 0
        """The number of reads without an answer for any other reason, except readers' mistakes."""
        self.unreadable = 0
        """The number of answers with a lag that did not parse, because a node of another release wrote it."""
        self._staleness_ms = Histogram(STALENESS_BOUNDS_MS)
        self._offset_lag = Histogram(OFFSET_LAG_BOUNDS)
        self._answers = self._unknown = 0
        self._stores: dict[str, StoreReads] = {}
        self._unnamed = StoreReads()
        """The counts of reads without a store."""
        self._texts, self._uncounted = 0, list[StoreReads]()
        """The number of all kept texts, and the stores that keep any."""
        self._exact, self._turn = EXACT, 0

    def __repr__(self) -> str:
        return f"ServedReads({self.answers} answers, {self.violations} beyond their bound)"

    # ---- called for every lookup

    def of(self, store: str) -> StoreReads:
        """Return the counts of a store. Beyond MAX_STORES, the other stores share their counts."""
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
            if tail:  # a problem has no tail
                self._count(HopOutcome(FOUND, b"", tail), bound, count, store)

    def failed(self, problem: Problem) -> None:
        """Count a read without an answer; a mistake of the reader is not counted."""
        if problem.refusal is not None:
            self.refused_by_bound += _is_refused_by_bound(problem)
        else:
            self.errors += problem.status >= 500 or problem.type is ProblemType.OVERLOADED

    def _first(self, text: bytes, store: StoreReads) -> _AnswerCount | None:
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
        kept = store.kept[text] = _AnswerCount(LagInfo(version, end, offset_lag, time_lag_ms))
        return kept

    # ---- for metrics and reports

    @property
    def staleness_ms(self) -> Histogram:
        """The time lag of answers, as the nodes measured it; without the answers of unknown time lag."""
        self._read()
        return self._staleness_ms

    @property
    def offset_lag(self) -> Histogram:
        """The lag of answers in versions; without the answers of unknown lag."""
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
    """Whether a bound forbids an answer of this lag. The role is not compared: it is not in the lag."""
    if bound is NO_BOUND:
        return False
    version = lag.current_offset_position
    return refusal(bound, lag=lag, role=Role.ACTIVE, version=version, position_committed_at_us=None) is not None
