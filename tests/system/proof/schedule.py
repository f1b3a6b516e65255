"""Which faults, when, to whom (pure: a seed in, steps out; the same seed gives the same schedule).

A step begins at its time at the earliest: the conductor waits until the one before is healed and everybody says that
it is ready, because the claims promise nothing about two replicas of three being broken at once. Two steps overlap only
where the menu allows it, and never two that both take a replica away.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

TargetKind = Literal["node", "router", "redis", "spark", "store", "all"]
StorageKind = Literal["folder", "s3", "azure", "hdfs"]
"""Where a checkpoint lives."""

_FOLDER: frozenset[StorageKind] = frozenset({"folder"})
_OBJECTS: frozenset[StorageKind] = frozenset({"s3", "azure"})
_HDFS: frozenset[StorageKind] = frozenset({"hdfs"})


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A fault of the menu.

    `short_s` and `long_s`: how long it lasts in the two fixed schedules, and the range of random ones. `takes_replica`:
    while it lasts there is one good replica less. `beside`: faults that may begin and end while it lasts.
    `may_not_open`: problems and reasons of candidates with which a read of another version than the one on show may be
    refused, until the fault is healed and settled: such a version is opened from the store. Nothing else may be refused
    because of a fault. `may_pass_over`: a node may lack the changes of some versions, go on from the next snapshot, and
    say so to watchers. `storage`: where the checkpoint must live for it, `state_format`: how the query must keep its
    state, and `signed`: whether gossip must be signed (world.py); None where it does not matter. `other_release`:
    whether another release of Spark than that of the tests must have begun the query.
    """

    name: str
    target: TargetKind
    short_s: float
    long_s: float
    takes_replica: bool = False
    beside: frozenset[str] = frozenset()
    may_not_open: frozenset[str] = frozenset()
    may_pass_over: bool = False
    storage: frozenset[StorageKind] | None = None
    state_format: str | None = None
    signed: bool | None = None
    other_release: bool = False


_BESIDE_REDIS = frozenset({"kill-active", "stop-active", "kill-router", "cut-node", "slow-node", "clock-jump"})
_BESIDE_SPARK = frozenset({"kill-active", "kill-router", "redis-pause", "slow-node", "clock-jump"})
_STORE_FAILS = frozenset({"store-error", "timeout", "deadline", "no-acceptable-replica"})

MENU: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind("kill-active", "node", 5, 20, takes_replica=True),
        FaultKind("stop-active", "node", 5, 20, takes_replica=True),
        FaultKind("kill-router", "router", 4, 10),
        FaultKind("cut-node", "node", 5, 20, takes_replica=True),
        FaultKind("cut-replies", "node", 4, 10, takes_replica=True),
        FaultKind("cut-node-from-redis", "node", 5, 20, takes_replica=True),
        FaultKind("slow-node", "node", 5, 20, takes_replica=True),
        FaultKind("slow-link", "node", 4, 10, takes_replica=True),
        FaultKind("node-answers-500", "node", 4, 10, takes_replica=True),
        FaultKind("refuse-node", "node", 4, 10, takes_replica=True),
        FaultKind("redis-down", "redis", 6, 120, beside=_BESIDE_REDIS),
        FaultKind("redis-pause", "redis", 4, 10),
        FaultKind("redis-flush", "redis", 1, 1),
        FaultKind("redis-refuses-writes", "redis", 6, 20),
        FaultKind("absurd-messages", "redis", 5, 20, signed=False),
        FaultKind("disk-full", "node", 5, 20, takes_replica=True),
        FaultKind("corrupt-changelog", "node", 4, 10, takes_replica=True, storage=_FOLDER, may_pass_over=True),
        FaultKind("delete-changelog", "node", 4, 10, takes_replica=True, storage=_FOLDER, may_pass_over=True),
        FaultKind("damaged-local-copy", "node", 5, 10, takes_replica=True, state_format="hdfs"),
        FaultKind("clock-jump", "node", 5, 20),
        FaultKind("rolling-restart", "all", 20, 30, takes_replica=True),
        FaultKind("checkpoint-gone", "node", 5, 20, takes_replica=True, storage=_FOLDER),
        FaultKind("store-throttles", "store", 8, 20, storage=_OBJECTS, may_not_open=_STORE_FAILS),
        FaultKind("store-hangs", "store", 8, 20, storage=_OBJECTS | _HDFS, may_not_open=_STORE_FAILS),
        FaultKind("cut-node-from-store", "node", 6, 20, takes_replica=True, storage=_OBJECTS | _HDFS),
        FaultKind("kill-restoring", "node", 5, 10, takes_replica=True, storage=_OBJECTS),
        FaultKind("namenode-stops", "store", 8, 20, storage=_HDFS, may_not_open=_STORE_FAILS),
        FaultKind("datanode-stops", "store", 6, 8, storage=_HDFS, may_not_open=_STORE_FAILS),
        FaultKind("hostile-connections", "node", 6, 20),
        FaultKind("cancelling-reader", "node", 6, 20),
        FaultKind("forked-checkpoint", "node", 5, 20, takes_replica=True, storage=_FOLDER),
        FaultKind("unsigned-lease", "node", 10, 20, takes_replica=True, signed=True),
        FaultKind("other-spark", "spark", 3, 10, other_release=True),
        FaultKind("added-variable", "spark", 3, 10, state_format="rocksdb-v1"),
        FaultKind("kill-spark", "spark", 12, 40, beside=_BESIDE_SPARK),
    )
}


def faults_in(
    storage: StorageKind, state_format: str = "rocksdb", *, signed: bool = False, other_release: bool = False
) -> tuple[str, ...]:
    """The menu where the checkpoint lives there, of a query that keeps its state so, with gossip signed or not, and
    begun by another release of Spark or not.
    """
    return tuple(
        name
        for name, kind in MENU.items()
        if (kind.storage is None or storage in kind.storage)
        and kind.state_format in (None, state_format)
        and kind.signed in (None, signed)
        and kind.other_release <= other_release
    )


@dataclass(frozen=True, slots=True)
class Step:
    """Inject `fault` into `target` (the name of a process, or the kind where there is but one) at `at_s` seconds after
    the load began, at the earliest, and heal it `duration_s` after it was injected."""

    at_s: float
    fault: str
    target: str
    duration_s: float

    @property
    def until_s(self) -> float:
        return self.at_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps in the order of their times, then quiet until `ends_s`, in which everything heals and is compared."""

    name: str
    seed: int
    steps: tuple[Step, ...]
    ends_s: float

    def to_json(self) -> dict[str, Any]:
        steps = [[step.at_s, step.fault, step.target, step.duration_s] for step in self.steps]
        return {"name": self.name, "seed": self.seed, "steps": steps, "ends_s": self.ends_s}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Schedule:
        """What `to_json` gave; ValueError when it is not a schedule that may be run."""
        steps = tuple(Step(*fields) for fields in document["steps"])
        schedule = cls(document["name"], document["seed"], steps, document["ends_s"])
        if wrong := objections(schedule):
            raise ValueError("; ".join(wrong))
        return schedule


@dataclass(frozen=True, slots=True)
class Cast:
    """The services and links that a fault can hit."""

    nodes: tuple[str, ...] = ("node-1", "node-2", "node-3")
    routers: tuple[str, ...] = ("router-1", "router-2")

    def targets(self, kind: TargetKind) -> tuple[str, ...]:
        return {"node": self.nodes, "router": self.routers}.get(kind, (kind,))


CAST = Cast()
IN_A_FOLDER = faults_in("folder")
WARM_UP_S = 5.0
HEALING_S = 10.0
MAX_RANDOM_S = 30.0
COMPANION_GAP_S = 6.0
MIN_GAP_S = 2.0
"""Quiet between two steps: two heartbeats, so that every table knows of the healing before the next blow."""


def short(seed: int, cast: Cast = CAST, faults: Sequence[str] = IN_A_FOLDER) -> Schedule:
    """Every fault once, alone, in the order of the menu: three to four minutes. The seed chooses the targets."""
    dice = random.Random(seed)
    steps = _one_after_another(((MENU[name], MENU[name].short_s) for name in faults), cast, dice, gap_s=2.5)
    return _finished("short", seed, steps)


def long(seed: int, cast: Cast = CAST, faults: Sequence[str] = IN_A_FOLDER) -> Schedule:
    """Every fault for longer, in an order of the seed, and what the menu allows beside it: about ten minutes."""
    dice = random.Random(seed)
    kinds = dice.sample([MENU[name] for name in faults], len(faults))
    steps = _one_after_another(((kind, kind.long_s) for kind in kinds), cast, dice, gap_s=8.0)
    for step in tuple(steps):
        steps += _companions(step, sorted(MENU[step.fault].beside & set(faults)), cast, dice)
    return _finished("long", seed, steps)


def random_schedule(minutes: float, seed: int, cast: Cast = CAST, faults: Sequence[str] = IN_A_FOLDER) -> Schedule:
    """Faults for `minutes`: none comes again before all have come, durations between a short and a long one."""
    dice = random.Random(seed)
    steps: list[Step] = []
    at_s = WARM_UP_S
    for kind in _shuffled_for_ever([MENU[name] for name in faults], dice):
        duration_s = _tenths(dice.uniform(kind.short_s, min(kind.long_s, MAX_RANDOM_S)))
        if at_s + duration_s + HEALING_S > minutes * 60:
            break
        step = Step(at_s, kind.name, dice.choice(cast.targets(kind.target)), duration_s)
        beside = sorted(kind.beside & set(faults))
        steps += [step, *_companions(step, dice.sample(beside, min(1, len(beside))), cast, dice)]
        at_s = _tenths(step.until_s + dice.uniform(MIN_GAP_S, 8.0))
    return _finished("random", seed, steps)


def objections(schedule: Schedule) -> list[str]:
    """Why a schedule may not be run; nothing when it may."""
    wrong = [f"there is no fault {step.fault!r}" for step in schedule.steps if step.fault not in MENU]
    wrong += [f"{step} lasts no time" for step in schedule.steps if step.duration_s <= 0]
    if wrong:
        return wrong
    if list(schedule.steps) != sorted(schedule.steps, key=lambda step: step.at_s):
        wrong.append("the steps are not in the order of their times")
    for index, earlier in enumerate(schedule.steps):
        for later in schedule.steps[index + 1 :]:
            if later.at_s < earlier.until_s + MIN_GAP_S and not _may_overlap(earlier, later):
                wrong.append(f"{later.fault} at {later.at_s} s meets {earlier.fault} until {earlier.until_s} s")
    if any(step.until_s > schedule.ends_s for step in schedule.steps):
        wrong.append("a step lasts beyond the end")
    return wrong


def _may_overlap(earlier: Step, later: Step) -> bool:
    """A companion lies within the step that it accompanies."""
    return later.fault in MENU[earlier.fault].beside and later.until_s <= earlier.until_s


def _one_after_another(
    kinds: Iterator[tuple[FaultKind, float]], cast: Cast, dice: random.Random, *, gap_s: float
) -> list[Step]:
    steps, at_s = [], WARM_UP_S
    for kind, duration_s in kinds:
        steps.append(Step(at_s, kind.name, dice.choice(cast.targets(kind.target)), duration_s))
        at_s += duration_s + gap_s
    return steps


def _companions(outer: Step, faults: Sequence[str], cast: Cast, dice: random.Random) -> list[Step]:
    """Short faults within `outer`, one after another, as many as have room."""
    found: list[Step] = []
    at_s = _tenths(outer.at_s + MIN_GAP_S)
    for kind in (MENU[name] for name in faults):
        step = Step(at_s, kind.name, dice.choice(cast.targets(kind.target)), kind.short_s)
        if step.until_s > outer.until_s:
            break
        found.append(step)
        at_s = _tenths(step.until_s + COMPANION_GAP_S)
    return found


def _shuffled_for_ever(kinds: Sequence[FaultKind], dice: random.Random) -> Iterator[FaultKind]:
    while kinds:
        yield from dice.sample(kinds, len(kinds))


def _finished(name: str, seed: int, steps: Sequence[Step]) -> Schedule:
    last_s = max((step.until_s for step in steps), default=WARM_UP_S)
    return Schedule(name, seed, tuple(sorted(steps, key=lambda step: step.at_s)), _tenths(last_s + HEALING_S))


def _tenths(seconds: float) -> float:
    """Round up to tenths of a second, so that a gap never becomes smaller."""
    return math.ceil(seconds * 10) / 10
