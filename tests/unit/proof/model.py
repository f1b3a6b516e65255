"""A small world that does everything right, and records it: commits, nodes that poll and lag, readers with bounds.

Every time is a number of milliseconds; nothing runs. Nodes look at the commit log now and then, show a version some
time after they have seen its commit, sometimes much later, and declare their lag by its definition.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from random import Random

from tests.system.proof.claim_memory import FILLING
from tests.system.proof.client_ways import DIRECTLY, WAYS
from tests.system.proof.every_read import AT_ONCE
from tests.system.proof.history import (
    AskedAtOnce,
    Bounds,
    Commit,
    FaultEvent,
    FinalReplica,
    History,
    Memory,
    Meta,
    Read,
    Scan,
    SnapshotRead,
    Told,
    Value,
    Watch,
)
from tests.system.proof.schedule import short
from tests.system.proof.truth_of_state import Truth

STORE = "words"
KEYS = tuple(f'["k{number}"]' for number in range(12))
PARTITIONS = 3
NODES = ("node-1", "node-2", "node-3")
SETTLED_MS = 100_000.0
BOUNDS = (
    Bounds(),
    Bounds(max_lag=0),
    Bounds(max_lag=3),
    Bounds(max_staleness_ms=300),
    Bounds(max_staleness_ms=5_000),
    Bounds(max_lag=2, unknown_lag="serve"),
    Bounds(require_active=True),
    Bounds(unknown_lag="refuse"),
)


@dataclass(frozen=True)
class Appearance:
    """A commit file: written at `mtime_ms` by the storage's clock, there from `at_ms` on."""

    version: int
    mtime_ms: float
    at_ms: float


class Node:
    """Polls at `polls_ms`; shows version v from `visible_ms[v - 1]` on."""

    def __init__(self, dice: Random, log: list[Appearance], until_ms: float, *, counts_from: str) -> None:
        self._log, self._counts_from = log, counts_from
        self._times_ms = [each.at_ms for each in log]
        self._polls_ms = [0.0]
        while self._polls_ms[-1] < until_ms:
            self._polls_ms.append(self._polls_ms[-1] + dice.choice((dice.uniform(2, 20), dice.uniform(2, 1_000))))
        self._visible_ms: list[float] = []
        for each in log:
            seen_ms = self._polls_ms[min(bisect_right(self._polls_ms, each.at_ms), len(self._polls_ms) - 1)]
            shown_ms = seen_ms + dice.choice((1.0, 1.0, 30.0, 400.0, 3_000.0))
            self._visible_ms.append(max([shown_ms, *self._visible_ms[-1:]]))

    def version_at(self, at_ms: float) -> int:
        return bisect_right(self._visible_ms, at_ms)

    def lag_at(self, at_ms: float, version: int) -> tuple[int | None, int | None]:
        """(offset lag, time lag) by the definition."""
        poll_ms = self._polls_ms[bisect_right(self._polls_ms, at_ms) - 1]
        end = max(version, bisect_right(self._times_ms, poll_ms))
        if at_ms - poll_ms > 10_000:
            return None, None
        if end == version:
            return 0, round(at_ms - poll_ms)
        blind = [each for each in self._polls_ms if each < self._times_ms[end - 1]]
        if not blind:
            return end - version, None
        behind_ms = max(0.0, self._log[end - 1].mtime_ms - self._log[version].mtime_ms)
        since_ms = blind[-1] if self._counts_from == "unseen" else poll_ms
        return end - version, round(behind_ms + at_ms - since_ms)


class Model:
    """`history` and `truth` of a run in which nothing is wrong.

    `counts_from="confirmed"` plants one thing: time lag counts from the last poll that confirmed the end.
    """

    def __init__(self, seed: int, *, commits: int = 30, reads: int = 250, counts_from: str = "unseen") -> None:
        self._dice = Random(seed)
        self.log = self._appearances(commits)
        self.ends_ms = self.log[-1].at_ms + 2_000
        self.truth = self._true_states(commits)
        self._nodes = {name: Node(self._dice, self.log, SETTLED_MS, counts_from=counts_from) for name in NODES}
        meta = Meta(seed=seed, schedule=short(seed).to_json())
        self.history = History(meta, commits=self._watched(), watched_until_ms=SETTLED_MS)
        self.history.faults = [
            FaultEvent(self.ends_ms / 3, "kill-active", "node-2", "injected"),
            FaultEvent(self.ends_ms / 2, "kill-active", "node-2", "healed"),
        ]
        self.history.faults += [
            FaultEvent(self.ends_ms * 0.7, FILLING[0], "node-1", "injected"),
            FaultEvent(self.ends_ms * 0.8, FILLING[0], "node-1", "healed"),
        ]
        self.history.memory = [
            Memory(self.ends_ms * step / 100, name, 17, (100 << 20) + self._dice.randrange(1 << 20))
            for step in range(100)
            for name in NODES
        ]
        self.history.reads = self._reads(reads)
        self.history.scans = self._scans(reads // 5)
        self.history.snapshots = self._snapshot_reads(reads // 5)
        self.history.watches = [self._watch(number) for number in range(1, 13)]
        self.history.finals = self._finals(commits)
        self.history.asked_at_once = [
            AskedAtOnce(SETTLED_MS, name, kind, number, number)
            for name in ("router-1", "router-2")
            for kind, number in AT_ONCE.items()
        ]

    def _appearances(self, commits: int) -> list[Appearance]:
        """The storage's clock is minutes off and counts in steps of 4 ms; a rename takes up to 61 ms."""
        found, at_ms = [], 100.0
        for version in range(1, commits + 1):
            written_ms = at_ms + self._dice.choice((0.0, 5.0, 60.0))
            found.append(Appearance(version, written_ms // 4 * 4 + 300_000, at_ms + 61))
            at_ms += self._dice.choice((80.0, 500.0, 1_500.0))
        return found

    def _true_states(self, commits: int) -> Truth:
        changes: dict[str, list[tuple[int, Value | None]]] = {key: [] for key in KEYS}
        for version in range(1, commits + 1):
            for key in self._dice.sample(KEYS, 5):
                value = None if self._dice.random() < 0.2 else {"count": version, "word": key}
                changes[key].append((version, value))
        return Truth({STORE: changes}, first=1, last=commits)

    def _watched(self) -> list[Commit]:
        found, looked_ms, next_ms = [], 50.0, 60.0
        for each in self.log:
            while next_ms < each.at_ms:
                looked_ms, next_ms = next_ms, next_ms + self._dice.choice((2.0, 10.0, 90.0))
            found.append(Commit(each.version, next_ms + 0.5, looked_ms, int(each.mtime_ms * 1000)))
        return found

    def _reads(self, number: int) -> list[Read]:
        found: list[Read] = []
        for seq in range(number):
            session = self._dice.randrange(6)
            began_ms = self._dice.uniform(self.log[0].at_ms + 4_000, self.ends_ms)
            found.append(self._read(session, seq, began_ms, None))
        found.sort(key=lambda read: read.began_ms)
        carried: list[Read] = []
        for read in found:  # half of the sessions carry what they have seen
            seen = [
                each.version
                for each in carried
                if each.session == read.session and each.ended_ms <= read.began_ms and each.version
            ]
            carries = read.session % 2 and seen
            carried.append(self._read(read.session, read.seq, read.began_ms, max(seen)) if carries else read)
        # A tenth of those without another bound name the version that answers them.
        return [
            replace(read, bounds=Bounds(version=read.version))
            if read.bounds == Bounds() and read.seq % 10 == 0
            else read
            for read in carried
        ]

    def _scans(self, number: int) -> list[Scan]:
        found = []
        for seq in range(1, number + 1):
            dice = Random(f"{self.history.meta.seed} scan {seq}")
            began_ms = dice.uniform(self.log[0].at_ms + 4_000, self.ends_ms)
            version = self._nodes["node-1"].version_at(began_ms)
            below = dice.choice((None, "k3", "k5"))
            rows = self.truth.state(STORE, version).items()
            shown = [(key, value) for key, value in rows if below is None or key[2:-2] < below]
            asked = version if dice.random() < 0.3 else None
            pages = dice.choice((1, 3))
            of = (seq, began_ms, began_ms + 5, STORE, asked, below)
            found.append(
                Scan(*of, "whole", pages=pages, versions=(version,), rows=tuple(shown), is_export=seq % 4 == 0)
            )
        return found

    def _watch(self, number: int) -> Watch:
        """A watch of some keys or of all, from the present values or behind a version, until a later one."""
        dice = Random(f"{self.history.meta.seed} watch {number}")
        first, last = dice.randint(4, 12), dice.randint(16, len(self.log) - 4)
        prefix = "[]" if number % 3 == 0 else None
        keys = () if prefix else tuple(dice.sample(KEYS, 4))
        after = first if number % 2 else None
        events: list[Told] = []
        for version in range(first if after is None else first + 1, last + 1):
            at_ms = self.log[version - 1].at_ms + 200
            now, before = self.truth.state(STORE, version), self.truth.state(STORE, version - 1)
            is_first = version == first
            news = [
                Told(at_ms, _kind(now.get(key), is_first=is_first), key, version, None, now.get(key))
                for key in keys or KEYS
                if (is_first and (key in now or keys)) or (not is_first and now.get(key) != before.get(key))
            ]
            events += news or [Told(at_ms, "version", "", version, version)]
            events[-1] = replace(events[-1], position=version)
        times_ms = (self.log[first - 1].at_ms, events[-1].at_ms + 50)
        way, told = dice.choice(("sync", "async")), tuple(events)
        return Watch(number, *times_ms, way, STORE, keys, prefix, after, "ended", events=told)

    def _read(self, session: int, seq: int, began_ms: float, min_version: int | None) -> Read:
        dice = Random(f"{self.history.meta.seed} {session} {seq}")
        served_ms = began_ms + dice.choice((0.3, 5.0, 200.0))
        key, bounds = dice.choice(KEYS), dice.choice(BOUNDS)
        if min_version is not None:
            bounds = replace(bounds, min_version=min_version)
        partition = KEYS.index(key) % PARTITIONS
        holders = [NODES[partition], NODES[(partition + 1) % len(NODES)]]
        refusals = []
        way = ("", *WAYS)[seq % 5]
        router = DIRECTLY if way.endswith("direct") else "router-1"
        ended_ms = served_ms + dice.choice((0.2, 3.0))
        read = Read(session, seq, began_ms, ended_ms, router, STORE, key, bounds, 503, "refused", way=way)
        for role, node in zip(("active", "standby"), holders, strict=True):
            version = self._nodes[node].version_at(served_ms)
            offset_lag, time_lag_ms = self._nodes[node].lag_at(served_ms, version)
            why = _refusal(bounds, version, offset_lag, time_lag_ms, role)
            if why is None:
                value = self.truth.at(STORE, key, version)
                mtime_us = int(self.log[version - 1].mtime_ms * 1000)
                return replace(
                    read,
                    status=404 if value is None else 200,
                    outcome="absent" if value is None else "found",
                    value=value,
                    version=version,
                    committed_at_us=mtime_us,
                    offset_lag=offset_lag,
                    time_lag_ms=time_lag_ms,
                    partition=partition,
                    node=node,
                    role=role,
                    position_version=version,
                )
            refusals.append((node, why))
        return replace(read, problem="no-acceptable-replica", candidates=tuple(refusals))

    def _snapshot_reads(self, number: int) -> list[SnapshotRead]:
        found = []
        for seq in range(1, number + 1):
            dice = Random(f"{self.history.meta.seed} snapshot {seq}")
            began_ms = dice.uniform(self.log[0].at_ms + 4_000, self.ends_ms)
            version = self._nodes["node-1"].version_at(began_ms)
            asked = version if dice.random() < 0.3 else None
            results = tuple(
                (STORE, key, version, self.truth.at(STORE, key, version), "") for key in dice.sample(KEYS, 3)
            )
            of = (seq, began_ms, began_ms + 5, asked)
            is_lease = seq % 6 == 0
            read = SnapshotRead(*of, "whole", version=version, results=() if is_lease else results)
            found.append(replace(read, is_lease=is_lease))
        return found

    def _finals(self, last: int) -> list[FinalReplica]:
        state = self.truth.state(STORE, last)
        found = []
        for partition in range(PARTITIONS):
            values = {key: state.get(key) for key in KEYS if KEYS.index(key) % PARTITIONS == partition}
            for role, offset in (("active", 0), ("standby", 1)):
                node = NODES[(partition + offset) % len(NODES)]
                found.append(FinalReplica(node, STORE, partition, last, dict(values), role))
        return found


def _kind(value: Value | None, *, is_first: bool) -> str:
    return "snapshot" if is_first else "deleted" if value is None else "value"


def _refusal(bounds: Bounds, version: int, offset_lag: int | None, time_lag_ms: int | None, role: str) -> str | None:
    if bounds.require_active and role != "active":
        return "not-active"
    if bounds.min_version is not None and version < bounds.min_version:
        return "below-min-position"
    if bounds.max_lag is not None and offset_lag is not None and offset_lag > bounds.max_lag:
        return "lag-exceeded"
    if bounds.max_staleness_ms is not None and time_lag_ms is not None and time_lag_ms > bounds.max_staleness_ms:
        return "lag-exceeded"
    is_unknown = offset_lag is None or (bounds.max_staleness_ms is not None and time_lag_ms is None)
    return "lag-unknown" if is_unknown and not bounds.serves_unknown_lag else None
