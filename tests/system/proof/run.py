"""One run of the proof: start the world, read all the while, inject what the schedule says, compare at the end.

What was recorded is saved even after an error: `history.jsonl.gz` and `truth.json.gz` in the run's folder.
"""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from tests.support.spark.formats import StateFormat
from tests.system.proof.conductor import Conductor
from tests.system.proof.finals import final_replicas
from tests.system.proof.history import FaultEvent, Meta
from tests.system.proof.history_file import HISTORY_NAME, HistoryWriter
from tests.system.proof.places import LIMIT_S, asked_at_once
from tests.system.proof.processes import Talking
from tests.system.proof.schedule import Schedule
from tests.system.proof.truth_of_state import Truth
from tests.system.proof.world import World, WorldOptions, world

TRUTH_NAME = "truth.json.gz"
PRINT_EVERY_S = 5.0
LOAD_END_LIMIT_S = 30

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How hard it is read, in reads per second, and what world it is read from."""

    rate: float = 300.0
    world: WorldOptions = field(default_factory=WorldOptions)

    def to_settings(self) -> dict[str, Any]:
        """The options as the history stores them."""
        return {**asdict(self.world), "rate": self.rate}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> RunOptions:
        """What `to_settings` gave."""
        state_format = StateFormat(**settings["state_format"])
        storage = settings.get("storage", "folder")
        return cls(
            settings["rate"],
            WorldOptions(
                state_format,
                settings["every_ms"],
                settings["query"],
                storage,
                settings.get("short_lived_bases", False),
                settings.get("signed", False),
                settings.get("line", ""),
            ),
        )


def run(schedule: Schedule, folder: Path, options: RunOptions, say: Say) -> None:
    """Run a schedule; the history and the truth are in `folder` then, which must be empty or new."""
    folder.mkdir(parents=True, exist_ok=True)
    with recording(folder, schedule, options) as writer:
        say(f"starting Spark, Redis, nodes and routers; logs are in {folder / 'logs'}")
        with world(folder, options.world, writer.write) as running:
            try:
                with reading(running, folder, options.rate, schedule.seed) as load:
                    conduct(running, schedule, load, writer, say)
                ask_at_once(running, writer, say)
            finally:  # what was read until something broke is worth judging, too
                compare(running, writer, say)


def conduct(running: World, schedule: Schedule, load: Talking, writer: HistoryWriter, say: Say) -> None:
    """Inject and heal what the schedule says; nothing stays injected, even after an error."""
    progress = ProgressPrinter(load, say)
    conductor = Conductor(running, progress.also_print(writer.write), progress.tick)
    try:
        conductor.run(schedule)
    finally:
        conductor.end()


def ask_at_once(running: World, writer: HistoryWriter, say: Say, limit_s: float = LIMIT_S) -> None:
    """Ask the routers for every kind of read, as often at once as may be, when others have ended."""
    say("asking each router for many reads of every kind at once")
    for asked in asked_at_once(running.routers.values(), running.application, limit_s):
        writer.write(asked)


@contextmanager
def recording(folder: Path, schedule: Schedule, options: RunOptions) -> Iterator[HistoryWriter]:
    """The history of a run; what the load recorded is put behind it at the end."""
    load = folder / "load"
    load.mkdir()
    writer = HistoryWriter(folder)
    versions = {"python": platform.python_version(), "spark": pyspark.__version__, "machine": platform.platform()}
    kinds = dict(options.world.subject.kinds)
    writer.write(Meta(schedule.seed, schedule.to_json(), options.to_settings(), versions, kinds=kinds))
    try:
        yield writer
    finally:
        packed = writer.close()
        for reads in load.glob(HISTORY_NAME + ".gz"):  # gzip files in a row are one
            with packed.open("ab") as whole, reads.open("rb") as part:
                shutil.copyfileobj(part, whole)
            reads.unlink()


@contextmanager
def reading(running: World, folder: Path, rate: float, seed: int, *mutant: str) -> Iterator[Talking]:
    """Readers at work until the end of the block. Their clients have the bugs of a mutant."""
    routers = json.dumps({name: router.port for name, router in running.routers.items()})
    arguments = [running.subject.name, routers, str(folder / "load"), str(rate), str(seed), running.application]
    arguments += mutant
    load = Talking("the load", "tests.system.proof.load", arguments, folder / "logs" / "load.log")
    running.ask_also = lambda store: load.order(f"also {store}")
    try:
        yield load
    finally:
        load.end(LOAD_END_LIMIT_S)


def compare(running: World, writer: HistoryWriter, say: Say) -> None:
    """Stop the query, have Spark read the truth, and ask every node for all of it."""
    path = running.folder / TRUTH_NAME
    say("asking Spark for the truth of every version")
    running.spark.write_truth(path)
    running.watch.end()
    truth = Truth.load(path)
    for replica in final_replicas(running.nodes.values(), truth):
        writer.write(replica)


class ProgressPrinter:
    """Says what happens, and every few seconds what came of the reads."""

    def __init__(self, load: Talking, say: Say) -> None:
        self._load = load
        self._say = say
        self._began_s = time.monotonic()
        self._next_s = 0.0

    def also_print(self, write: Callable[[FaultEvent], None]) -> Callable[[FaultEvent], None]:
        def write_and_print(event: FaultEvent) -> None:
            write(event)
            self._line(f"{event.fault} {event.target} {event.phase} {event.detail}".rstrip())

        return write_and_print

    def tick(self) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PRINT_EVERY_S
            counts = json.loads(self._load.order("counts"))
            self._line(", ".join(f"{name} {count:g}" for name, count in counts.items()))

    def _line(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:6.1f} s  {text}")
