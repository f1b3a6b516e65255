"""One run of the proof over three queries in one cluster: a fault of one query must not reach the others.

Each query is read by a load of its own. First the store of one query hangs, then a reader of that query cancels. Then
another query is deleted, and starts again with other rows. Then the third is taken from the nodes' files, and comes
back. The load of a query stops before the query goes away, and a new load starts when it is back: so two queries are
read in two parts. Each part is judged like a run of one query.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.system.proof import faults
from tests.system.proof.checker import CLAIMS, Verdict, check
from tests.system.proof.finals import final_replicas
from tests.system.proof.fleet_world import FleetWorld, fleet_world
from tests.system.proof.history import AskedAtOnce, FaultEvent, FaultPhase, FinalReplica, History, Seen
from tests.system.proof.history_file import HistoryWriter, load
from tests.system.proof.places import asked_at_once
from tests.system.proof.run import TRUTH_NAME, RunOptions, Say, reading, recording
from tests.system.proof.schedule import Schedule, StorageKind
from tests.system.proof.subjects import COUNTS, KINDS
from tests.system.proof.truth_of_state import Truth
from tests.system.proof.world import FORMATS, NODES, WorldOptions

STORED: Final = "stored"
RENEWED: Final = "renewed"
VISITING: Final = "visiting"

HANG: Final = "store-hangs"
CANCEL: Final = "cancelling-reader"
BEGIN_AGAIN: Final = "checkpoint-renewed"
LEAVE: Final = "application-removed"
READ_OUT: Final = "truth-is-read"
"""No fault: Spark reads every version of a query, and takes a core for it."""

QUIET_S: Final = 30.0
HANGS_S: Final = 10.0
CANCELS_S: Final = 10.0
AWAY_S: Final = 8.0
BETWEEN_S: Final = 5.0

OF_A_NEIGHBOUR: Final = " of a neighbour"
"""Behind the name of a fault in the histories of the others, for which it excuses nothing."""


def queries(storage: StorageKind) -> Mapping[str, WorldOptions]:
    """The query of each application: of several operators, of both providers, in a folder and in a store. They commit
    rarely, because three Sparks share a machine with all that is judged.
    """
    return {
        STORED: WorldOptions(FORMATS["rocksdb"], 4_000, COUNTS.name, storage),
        RENEWED: WorldOptions(FORMATS["hdfs"], 4_000, COUNTS.name),
        VISITING: WorldOptions(FORMATS["rocksdb"], 8_000, KINDS.name),
    }


@dataclass(slots=True)
class Life:
    """A query from its first batch to its last. Another one on its checkpoint's place is another life."""

    truth: Path
    seen: list[Seen | FinalReplica | AskedAtOnce] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Part:
    """What one load read of an application; its history is in `folder`. `is_last`: the load read until the query ended,
    so that the last state of the query belongs to this part.
    """

    application: str
    folder: Path
    life: Life
    is_last: bool

    def judged(self) -> tuple[History, Verdict]:
        """Judge the part by each claim but `memory`, whose faults this run does not have; and by `convergence` only if
        it is the last part.
        """
        history = load(self.folder)
        for each in self.life.seen:
            history.add(each)
        claims = CLAIMS.keys() - {"memory"} - (set() if self.is_last else {"convergence"})
        return history, check(history, Truth.load(self.life.truth), claims=claims)


def run_fleet(folder: Path, storage: StorageKind, rate: float, seed: int, say: Say) -> list[Part]:
    """Run it; each query is read `rate` times a second."""
    lives: dict[str, Life] = {}
    options = queries(storage)
    for application in options:
        lives[application] = Life(folder / f"{application}-1-{TRUTH_NAME}")

    def record(application: str, seen: Seen) -> None:
        lives[application].seen.append(seen)

    say(f"starting three Sparks, nodes and routers; logs are in {folder}")
    with fleet_world(folder, options, record) as world, ExitStack() as stack:
        running = _Run(world, folder, options, lives, rate, seed, say)
        stack.callback(running.stop_reading)
        running.run()
        running.stop_reading()
        running.ask_at_once()
        for application in options:
            running.end_life(application)
    return running.parts


class _Run:
    """A run as far as it has come."""

    def __init__(  # noqa: PLR0917  # what a run has
        self,
        world: FleetWorld,
        folder: Path,
        options: Mapping[str, WorldOptions],
        lives: dict[str, Life],
        rate: float,
        seed: int,
        say: Say,
    ) -> None:
        self.parts: list[Part] = []
        self._world, self._folder, self._options, self._lives = world, folder, options, lives
        self._rate, self._seed, self._say = rate, seed, say
        self._reading: dict[str, tuple[Path, HistoryWriter, ExitStack]] = {}

    def run(self) -> None:
        """Read, and inject one fault after the other."""
        for application in self._options:
            self._read(application)
        time.sleep(QUIET_S)
        with self._hit(HANG, STORED):
            fault = faults.make(self._world.worlds[STORED], HANG, "store")
            fault.inject()
            time.sleep(HANGS_S)
            fault.heal()
        with self._hit(CANCEL, STORED):
            fault = faults.make(self._world.worlds[STORED], CANCEL, NODES[0])
            fault.inject()
            time.sleep(CANCELS_S)
            fault.heal()
        self._stop(RENEWED, is_last=True)
        with self._hit(READ_OUT, RENEWED):
            self.end_life(RENEWED)
        with self._hit(BEGIN_AGAIN, RENEWED):
            self._lives[RENEWED] = Life(self._folder / f"{RENEWED}-2-{TRUTH_NAME}")
            self._world.begin_again(RENEWED)
        self._read(RENEWED)
        self._stop(VISITING, is_last=False)
        with self._hit(LEAVE, VISITING):
            self._world.let_go(VISITING)
            time.sleep(AWAY_S)
            self._world.serve(*self._options)
        self._read(VISITING)
        time.sleep(QUIET_S)

    def stop_reading(self) -> None:
        """Stop all loads that still run."""
        for application in [*self._reading]:
            self._stop(application, is_last=True)

    def ask_at_once(self) -> None:
        """Ask the routers for every kind of read of each query, as often at once as may be."""
        for application, one in self._world.worlds.items():
            self._say(f"asking each router for many reads of {application} at once")
            self._lives[application].seen += asked_at_once(one.routers.values(), application)

    def end_life(self, application: str) -> None:
        """Stop the query, have Spark write the truth, and ask every node for all of it."""
        one, life = self._world.worlds[application], self._lives[application]
        self._say(f"asking Spark for the truth of every version of {application}")
        one.spark.write_truth(life.truth)
        one.watch.end()
        life.seen += final_replicas(one.nodes.values(), Truth.load(life.truth), application)

    def _read(self, application: str) -> None:
        number = sum(part.application == application for part in self.parts) + 1
        folder = self._folder / f"{application}-{number}"
        (folder / "logs").mkdir(parents=True)
        options = RunOptions(self._rate, self._options[application])
        stack = ExitStack()
        writer = stack.enter_context(recording(folder, Schedule("fleet", self._seed, (), 0.0), options))
        stack.enter_context(reading(self._world.worlds[application], folder, self._rate, self._seed))
        self._reading[application] = folder, writer, stack

    def _stop(self, application: str, *, is_last: bool) -> None:
        folder, _, stack = self._reading.pop(application)
        stack.close()
        self.parts.append(Part(application, folder, self._lives[application], is_last))

    @contextmanager
    def _hit(self, fault: str, application: str) -> Iterator[None]:
        """Note a fault of one application where any is read; it is healed when all is well with each."""
        self._say(f"{fault}: {application}")
        self._note(fault, application, "injected")
        yield
        self._world.settle()
        self._note(fault, application, "healed")
        time.sleep(BETWEEN_S)

    def _note(self, fault: str, application: str, phase: FaultPhase) -> None:
        for each, (_, writer, _) in self._reading.items():
            name = fault if each == application else fault + OF_A_NEIGHBOUR
            writer.write(FaultEvent(time.monotonic() * 1000, name, application, phase))
