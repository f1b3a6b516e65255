"""The health of each node, judged by the requests that this router sends to it (pure: time is passed in).

    ok ---- a failure, silence, a slow answer ----> suspect ---- one good answer ----> ok
    suspect ---- 5 bad results in a row, or suspected 5 times within a minute ----> quarantined
    quarantined ---- its hold is over, and then 3 good answers in a row ----> ok

Health only orders the candidates; it never excludes one, so the last replica is asked however bad it is. A heartbeat
changes nothing here: it shows that the node reaches the bus, not that this router reaches the node.
docs/decisions/0009-health.md explains the numbers.

Outliers are nodes that take much longer than the others. Medians are compared with medians: one large batch or one
pause makes no outlier, and a few slow nodes do not change what is normal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median_low
from typing import NamedTuple

MAX_BAD_IN_A_ROW = 5
"""Bad results in a row that put a node in quarantine. With one probe per heartbeat that is about five heartbeats after
it went bad; Envoy has the same default."""

MAX_SUSPICIONS = 5
SUSPICIONS_MS = 60_000
"""The number of suspicions within SUSPICIONS_MS that put a node in quarantine: it answers only now and then, and each
time it is trusted again a reader pays."""

GOOD_TO_LEAVE = 3
"""Good results in a row that end a quarantine: one may be luck."""

RESULT_GAP_MS = 100
"""Milliseconds within which results count as one: all requests in flight fail at once when a connection breaks."""

HOLD_MS = 1000
MAX_HOLD_MS = 30_000
"""Milliseconds from the start of a quarantine while good results do not count; doubled for each relapse, up to the
limit.
"""

FORGIVEN_MS = 60_000
"""Milliseconds out of quarantine that take back one relapse."""

MAX_PROBE_GAP_MS = 10_000
"""Most milliseconds between two probes of a node in quarantine that does not answer them: the router notices its return
that late."""


OUTLIER_FACTOR = 5
OUTLIER_MS = 50
"""Limits of an outlier: a node is one when its median is above this factor of the others' median, and above this time.
"""

RECENT = 15
MIN_RECENT = 5
RECENT_MS = 30_000
"""Most and fewest answers for a median, and the milliseconds that they count."""

MEDIANS_MS = 250
"""Milliseconds to cache the medians: each slow answer needs them, and there may be thousands a second."""


def usual_ms(recent: Sequence[float]) -> float | None:
    """Return the median latency of a node's answers in ms; `None` while there are too few."""
    return median_low(recent) if len(recent) >= MIN_RECENT else None


class Medians:
    """The median latency of each node, cached for a moment."""

    def __init__(self) -> None:
        self._by_node: dict[str, float] = {}
        self._ranked: list[float] = []
        self._found_ms = float("-inf")

    def forget(self) -> None:
        """Drop the cache: the set of nodes that count has changed."""
        self._found_ms = float("-inf")

    def is_outdated(self, now_ms: float) -> bool:
        return now_ms - self._found_ms > MEDIANS_MS

    def find(self, now_ms: float, recent: Iterator[tuple[str, Sequence[float]]]) -> None:
        """Compute the medians from the recent answers of the nodes that count."""
        found = ((node_id, usual_ms(answers)) for node_id, answers in recent)
        self._by_node = {node_id: median_ms for node_id, median_ms in found if median_ms is not None}
        self._ranked = sorted(self._by_node.values())
        self._found_ms = now_ms

    def limit_ms(self, node_id: str) -> float | None:
        """Return the median, in ms, above which a node is an outlier among the others, if there are any."""
        own_ms = self._by_node.get(node_id)
        others = len(self._ranked) - (own_ms is not None)
        if others == 0:
            return None
        middle = (others - 1) // 2
        if own_ms is not None and bisect_left(self._ranked, own_ms) <= middle:
            middle += 1
        return max(OUTLIER_MS, OUTLIER_FACTOR * self._ranked[middle])


class Health(StrEnum):
    """The conclusion of this router about a node, from its own requests alone."""

    OK = "ok"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"


RANK = {health: place for place, health in enumerate(Health)}
"""The place of each health in the order of candidates: a node with a higher rank is asked later."""


class HealthChange(NamedTuple):
    """The new health of a node, and the reason."""

    health: Health
    why: str


@dataclass(slots=True)
class _Record:
    """The record of one node. Times are monotonic; an event that never happened has the time minus infinity."""

    health: Health = Health.OK
    why: str = ""
    since_ms: float = 0.0
    bad: int = 0
    """Bad results since the last good one."""
    good: int = 0
    """Good results in a row, in quarantine."""
    counted_ms: float = float("-inf")
    """The time when `bad` or `good` last grew."""
    misses: int = 0
    """Bad results in a row, in quarantine."""
    hold_until_ms: float = 0.0
    probe_ms: float = 0.0
    """The time when the next probe is due, unless the node is ok."""
    relapses: int = 0
    left_ms: float = float("-inf")
    """The time when its last quarantine ended."""
    suspicions: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SUSPICIONS))
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    answered_ms: float = float("-inf")


class HealthTable:
    """The health of nodes, by node id; an unknown node is ok. `entered` counts changes by the health they led to."""

    def __init__(self, *, suspect_after_ms: float) -> None:
        """Judge an answer that takes longer than `suspect_after_ms` as a bad result."""
        self.suspect_after_ms = suspect_after_ms
        self.entered: Counter[Health] = Counter()
        self._records: dict[str, _Record] = {}
        self._doubted: dict[str, _Record] = {}
        """Records of the nodes that are not ok."""
        self._unremarkable_ms = min(OUTLIER_MS, suspect_after_ms)
        self._medians = Medians()

    def __len__(self) -> int:
        return len(self._records)

    def of(self, node_id: str) -> HealthChange:
        """Return a node's health and its reason, which is empty for a node that is ok."""
        record = self._doubted.get(node_id)
        return _FINE if record is None else HealthChange(record.health, record.why)

    def answered(self, node_id: str, now_ms: float, took_ms: float) -> HealthChange | None:
        """Take in an answer, as each hop does: the usual case first. Return the change of health, if any."""
        record = self._records.get(node_id)
        if record is None:
            record = self._records[node_id] = _Record()
        record.recent.append(took_ms)
        record.answered_ms = now_ms
        if record.health is Health.OK:
            if took_ms <= self._unremarkable_ms:
                record.bad = 0
                return None
            return self._slow_while_ok(node_id, record, now_ms, took_ms)
        if took_ms > self._good_ms(node_id, now_ms):
            return self._bad(node_id, record, now_ms, f"slow: {took_ms:.0f} ms")
        return self._good(node_id, record, now_ms, took_ms)

    def failed(self, node_id: str, now_ms: float, why: str) -> HealthChange | None:
        """Take in a failed request. Return the change of health, if any."""
        return self._bad(node_id, self._records.setdefault(node_id, _Record()), now_ms, why)

    def silent(self, node_id: str, now_ms: float, for_ms: float) -> HealthChange | None:
        """Take in that a node is silent while others answer. That is not a result: it may still answer."""
        record = self._records.setdefault(node_id, _Record())
        if record.health is not Health.OK:
            return None
        return self._suspect(node_id, record, now_ms, f"silent for {for_ms:.0f} ms while others answered")

    def forget(self, node_id: str) -> None:
        """Forget a node that is gone, or has lost its id to another process."""
        self._records.pop(node_id, None)
        self._doubted.pop(node_id, None)
        self._medians.forget()

    def due(self, now_ms: float) -> list[str]:
        """Return the nodes to probe now, the longest overdue first; the list is empty while all are ok."""
        due = [(record.probe_ms, node_id) for node_id, record in self._doubted.items() if record.probe_ms <= now_ms]
        return [node_id for _, node_id in sorted(due)]

    def probe_sent(self, node_id: str, now_ms: float, *, heartbeat_ms: float, jitter: float) -> None:
        """Schedule the next probe: one was sent. Its result comes like any other. `jitter` is a factor near 1."""
        record = self._doubted.get(node_id)
        if record is not None:
            gap_ms = heartbeat_ms * 2 ** min(record.misses, 16)
            record.probe_ms = now_ms + max(heartbeat_ms, min(gap_ms, MAX_PROBE_GAP_MS)) * jitter

    def _slow_while_ok(self, node_id: str, record: _Record, now_ms: float, took_ms: float) -> HealthChange | None:
        """Judge a slow answer of an ok node: it may be slow by itself, or make the node's median an outlier."""
        if took_ms > self.suspect_after_ms:
            return self._bad(node_id, record, now_ms, f"slow: {took_ms:.0f} ms")
        record.bad = 0
        limit_ms, median_ms = self._outlier_ms(node_id, now_ms), usual_ms(record.recent)
        if limit_ms is None or median_ms is None or median_ms <= limit_ms:
            return None
        why = f"slow: {median_ms:.0f} ms in the median, above the {limit_ms:.0f} ms that the other nodes allow"
        return self._bad(node_id, record, now_ms, why)

    def _bad(self, node_id: str, record: _Record, now_ms: float, why: str) -> HealthChange | None:
        if record.health is not Health.OK and now_ms - record.counted_ms < RESULT_GAP_MS and not record.good:
            return None
        record.counted_ms = now_ms
        record.good = 0
        record.bad += 1
        if record.health is Health.OK:
            return self._suspect(node_id, record, now_ms, why)
        if record.health is Health.QUARANTINED:
            record.misses += 1
            return None
        if record.bad < MAX_BAD_IN_A_ROW:
            return None
        return self._quarantine(node_id, record, now_ms, f"{record.bad} bad results in a row, the last: {why}")

    def _good(self, node_id: str, record: _Record, now_ms: float, took_ms: float) -> HealthChange | None:
        """Judge an answer in time. If its request was sent before the doubt began, it does not count."""
        if now_ms - took_ms < record.since_ms:
            return None
        if record.health is Health.QUARANTINED:
            if now_ms < record.hold_until_ms or (record.good and now_ms - record.counted_ms < RESULT_GAP_MS):
                return None
            record.counted_ms = now_ms
            record.good += 1
            record.misses = 0
            if record.good < GOOD_TO_LEAVE:
                return None
            record.left_ms = now_ms
        record.bad = record.good = 0
        record.recent.clear()  # old latencies would make it an outlier again at once
        del self._doubted[node_id]
        return self._change(record, now_ms, Health.OK, "")

    def _suspect(self, node_id: str, record: _Record, now_ms: float, why: str) -> HealthChange:
        record.suspicions.append(now_ms)
        record.probe_ms = now_ms
        self._doubted[node_id] = record
        if len(record.suspicions) == MAX_SUSPICIONS and now_ms - record.suspicions[0] <= SUSPICIONS_MS:
            return self._quarantine(
                node_id, record, now_ms, f"suspect {MAX_SUSPICIONS} times within a minute, at last: {why}"
            )
        return self._change(record, now_ms, Health.SUSPECT, why)

    def _quarantine(self, node_id: str, record: _Record, now_ms: float, why: str) -> HealthChange:
        if record.left_ms > float("-inf"):
            record.relapses = max(0, record.relapses + 1 - int((now_ms - record.left_ms) // FORGIVEN_MS))
        record.hold_until_ms = record.probe_ms = now_ms + min(MAX_HOLD_MS, HOLD_MS * 2 ** min(record.relapses, 16))
        record.good = record.misses = 0
        self._doubted[node_id] = record
        return self._change(record, now_ms, Health.QUARANTINED, why)

    def _change(self, record: _Record, now_ms: float, health: Health, why: str) -> HealthChange:
        record.health, record.why, record.since_ms = health, why, now_ms
        self.entered[health] += 1
        self._medians.forget()
        return HealthChange(health, why)

    def _good_ms(self, node_id: str, now_ms: float) -> float:
        """Return the longest latency, in ms, that counts as good for a node in doubt."""
        limit_ms = self._outlier_ms(node_id, now_ms)
        return self.suspect_after_ms if limit_ms is None else min(self.suspect_after_ms, limit_ms)

    def _outlier_ms(self, node_id: str, now_ms: float) -> float | None:
        """Return the median, in ms, above which this node is an outlier among the ok nodes, if any."""
        if self._medians.is_outdated(now_ms):
            recent = (
                (each, record.recent)
                for each, record in self._records.items()
                if record.health is Health.OK and now_ms - record.answered_ms <= RECENT_MS
            )
            self._medians.find(now_ms, recent)
        return self._medians.limit_ms(node_id)


_FINE = HealthChange(Health.OK, "")
