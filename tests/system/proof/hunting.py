"""Plants bugs in running services, one after the other in one world, and judges what readers saw of each.

One Spark, one Redis and one commit log for all that are hunted in one place; the truth is read once, at the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from tests.support.spark.queries import wait_until
from tests.system.proof import faults
from tests.system.proof.checker import check
from tests.system.proof.claims import ClaimResult
from tests.system.proof.finals import final_replicas
from tests.system.proof.history import FaultEvent, FinalReplica, Outcome, Seen
from tests.system.proof.history_file import HistoryWriter, load
from tests.system.proof.mutants import MUTANTS
from tests.system.proof.processes import Talking
from tests.system.proof.run import TRUTH_NAME, RunOptions, Say, ask_at_once, reading, recording
from tests.system.proof.schedule import MENU, Schedule
from tests.system.proof.subjects import KINDS, SCATTERED, SUBJECTS
from tests.system.proof.truth_of_state import Truth
from tests.system.proof.world import NODES, ROUTERS, World, options_of, world

RATE = 150.0
"""Reads per second in a test, which has others beside it: half of what the proof has when it runs alone."""

READ_S = 6.0
READ_UNDER_FAULT_S = 15.0
"""A fault needs a moment to show, and silence is death only after three heartbeats."""

NEEDS_LIMIT_S = 60.0
ENOUGH = 2
"""How often what a mutant needs has to have happened: a scan may have ended before the bug can show in it."""

READY_LIMIT_S = 60.0

SETTLE_LIMIT_S = 10.0
"""Some bugs keep the nodes from settling. Replicas are compared later, with a limit of its own."""

CONVERGENCE = "convergence"
"""The claim about what each node holds at the end of a hunt: only the last mutant of a place can be judged by it."""

PLACES = "places"
"""The claim about what routers answer when readers have left."""

PLACES_LIMIT_S = 15.0
"""Those that a bug keeps do not come back."""

MIN_EVERY_MS = {KINDS.name: 4000, SCATTERED.name: 4000}
"""What is true of every kind takes Spark some three seconds a version, and a hunt lasts minutes: fewer versions do."""


def hunt(names: Sequence[str], folder: Path, say: Say) -> dict[str, ClaimResult]:
    """What the checker says of the claim that each mutant must break, by mutant."""
    found: dict[str, ClaimResult] = {}
    for place in dict.fromkeys(MUTANTS[name].place for name in names):
        query, state_format, short_lived_bases, signed = place
        options = options_of(SUBJECTS[query], state_format, short_lived_bases=short_lived_bases, signed=signed)
        every_ms = max(options.every_ms, MIN_EVERY_MS.get(query, 0))
        own = [name for name in names if MUTANTS[name].place == place]
        within = folder / "-".join(map(str, place))
        found |= _hunt(own, within, say, RunOptions(world=replace(options, every_ms=every_ms), rate=RATE))
    return found


def _hunt(names: Sequence[str], folder: Path, say: Say, options: RunOptions) -> dict[str, ClaimResult]:
    """The same of mutants that are hunted in the same place."""
    assert CONVERGENCE not in {MUTANTS[name].breaks for name in names[:-1]}, "only the last one's nodes run at the end"
    seen: list[Seen | FinalReplica] = []
    folder.mkdir()
    with world(folder, options.world, seen.append) as running:
        running.settle_limit_s = SETTLE_LIMIT_S
        for name in names:
            say(f"planting {name}")
            needs = MUTANTS[name].needs
            read_s = MUTANTS[name].read_s or (READ_S if MUTANTS[name].fault is None else READ_UNDER_FAULT_S)
            own = folder / "mutants" / name
            (own / "logs").mkdir(parents=True)
            with planted(running, name), recording(own, Schedule(name, 1, (), read_s), options) as writer:
                with (
                    reading(running, own, options.rate, 1, name) as readers,
                    hit(running, MUTANTS[name].fault, writer),
                ):
                    wait_until(partial(_has_read, readers), what="the first reads", limit_s=READY_LIMIT_S)
                    time.sleep(read_s)
                    with suppress(AssertionError):  # what was examined will say so
                        wait_until(partial(_has_made, readers, needs), what=needs, limit_s=NEEDS_LIMIT_S)
                if MUTANTS[name].breaks == PLACES:
                    ask_at_once(running, writer, say, PLACES_LIMIT_S)
        running.spark.write_truth(folder / TRUTH_NAME)
        running.watch.end()
        truth = Truth.load(folder / TRUTH_NAME)
        if MUTANTS[names[-1]].breaks == CONVERGENCE:  # its nodes still run
            seen += final_replicas(running.nodes.values(), truth)
    return {name: _judge(folder / "mutants" / name, seen, truth, MUTANTS[name].breaks) for name in names}


def _has_made(readers: Talking, needs: str) -> bool:
    return not needs or json.loads(readers.order("counts")).get(needs, 0) >= ENOUGH


def _has_read(readers: Talking) -> bool:
    counts = json.loads(readers.order("counts"))
    return any(counts.get(outcome) for outcome in get_args(Outcome))


@contextmanager
def planted(running: World, name: str) -> Iterator[None]:
    """Nodes and routers have the bug during the block; after it they still run, to be replaced."""
    services = (*running.nodes.values(), *running.routers.values())
    launchers = [service.launcher for service in services]
    try:
        for service in services:
            service.kill()
            service.launcher = ("tests.system.proof.mutants", name)
            service.start()
        until_s = time.monotonic() + READY_LIMIT_S
        while not all(service.is_ready for service in services):
            assert time.monotonic() < until_s, f"the services do not get ready with {name}"
            time.sleep(0.1)
        yield
    finally:
        for service, launcher in zip(services, launchers, strict=True):
            service.launcher = launcher


@contextmanager
def hit(running: World, fault: str | None, writer: HistoryWriter) -> Iterator[None]:
    """The fault under which a bug shows, if it takes one, during the block."""
    if fault is None:
        yield
        return
    target = MENU[fault].target
    made = faults.make(running, fault, {"node": NODES[0], "router": ROUTERS[0]}.get(target, target))
    writer.write(FaultEvent(time.monotonic() * 1000, fault, made.target, "injected"))
    made.inject()
    try:
        yield
    finally:
        made.heal()
        writer.write(FaultEvent(time.monotonic() * 1000, fault, made.target, "healed"))
        running.redis.flush()  # what was believed is not the next one's to meet


def _judge(folder: Path, seen: Sequence[Seen | FinalReplica], truth: Truth, claim: str) -> ClaimResult:
    history = load(folder)
    for each in seen:
        history.add(each)
    return check(history, truth, claims=(claim,)).claims[claim]
