"""`python -m tests.system.proof run | check | replay`: run the proof, judge a recorded run, run a recorded one again.

Exit code 1 when a claim is broken, 2 when what is asked for cannot be run.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from tests.support.oracle.releases import BEFORE_METADATA
from tests.system.proof.checker import check
from tests.system.proof.history_file import load
from tests.system.proof.report import as_json, as_text
from tests.system.proof.run import TRUTH_NAME, RunOptions, run
from tests.system.proof.schedule import Schedule, StorageKind, faults_in, long, random_schedule, short
from tests.system.proof.storage import missing
from tests.system.proof.subjects import COUNTS, KINDS, MOODS, SCATTERED
from tests.system.proof.truth_of_state import Truth
from tests.system.proof.world import options_of

from understudy_shared.base.words import KeyPlacement

OF_EVERY_KIND = {KeyPlacement.BY_HASH.value: KINDS, KeyPlacement.SCATTERED.value: SCATTERED}
"""The query of every kind of state, by how it places keys."""


def main() -> int:
    """Do what the command line says; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was recorded is saved then, too
    arguments = _parser().parse_args()
    if arguments.command == "check":
        return judge(arguments.folder, is_json=arguments.json)
    try:
        schedule, options = _again(arguments.recorded) if arguments.command == "replay" else _chosen(arguments)
        if why := missing(options.world.storage):
            raise ValueError(f"no server of that storage: {why}")
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="understudy-proof-"))
    _say(f"schedule {schedule.name}, seed {schedule.seed}, {schedule.ends_s:g} s, history in {folder}")
    run(schedule, folder, options, _say)
    return judge(folder, is_json=arguments.json)


def judge(folder: Path, *, is_json: bool) -> int:
    """Check what a run recorded and print the report."""
    history = load(folder)
    verdict = check(history, Truth.load(folder / TRUTH_NAME))
    sys.stdout.write(as_json(history, verdict) if is_json else as_text(history, verdict))
    return 0 if verdict.holds else 1


def _schedule(arguments: argparse.Namespace) -> Schedule:
    other_release = bool(arguments.spark)
    there = faults_in(arguments.checkpoint, _format(arguments), signed=arguments.signed, other_release=other_release)
    faults: Sequence[str] = arguments.faults.split(",") if arguments.faults else there
    if unknown := sorted(set(faults) - set(there)):
        place = f"with --checkpoint {arguments.checkpoint} --format {_format(arguments)}"
        place += " --signed" if arguments.signed else ""
        raise ValueError(f"there is no fault {unknown[0]!r} {place}; there are {', '.join(there)}")
    match arguments.schedule:
        case "short":
            return short(arguments.seed, faults=faults)
        case "long":
            return long(arguments.seed, faults=faults)
        case _:
            return random_schedule(arguments.minutes, arguments.seed, faults=faults)


def _chosen(arguments: argparse.Namespace) -> tuple[Schedule, RunOptions]:
    subject = MOODS if arguments.added_variable else OF_EVERY_KIND.get(arguments.kinds, COUNTS)
    world = options_of(
        subject, _format(arguments), storage=arguments.checkpoint, signed=arguments.signed, line=arguments.spark
    )
    return _schedule(arguments), RunOptions(arguments.rate, world)


def _format(arguments: argparse.Namespace) -> str:
    format_of_moods: str = MOODS.formats[0]
    if arguments.spark and arguments.format == "rocksdb":
        return "rocksdb-v1"  # Spark 3 has no other
    return format_of_moods if arguments.added_variable else str(arguments.format)


def _again(recorded: Path) -> tuple[Schedule, RunOptions]:
    meta = load(recorded).meta
    return Schedule.from_json(meta.schedule), RunOptions.from_settings(meta.settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.system.proof", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    started = commands.add_parser("run", help="run a schedule and judge it")
    started.add_argument("--schedule", choices=("short", "long", "random"), default="short")
    started.add_argument("--seed", type=int, default=1)
    started.add_argument("--minutes", type=float, default=30, help="of a random schedule")
    started.add_argument("--faults", default="", metavar="A,B", help="only these of the menu")
    replayed = commands.add_parser("replay", help="run the schedule of a recorded run again")
    replayed.add_argument("recorded", type=Path, metavar="FOLDER", help="of the recorded run")
    started.add_argument("--rate", type=float, default=300, help="reads per second")
    started.add_argument(
        "--kinds",
        nargs="?",
        choices=OF_EVERY_KIND,
        const=KeyPlacement.BY_HASH.value,
        help="a query of every kind of state, not only of counts, and how it places keys: by-hash by default",
    )
    started.add_argument(
        "--added-variable", action="store_true", help="a query that gets a state variable at a restart"
    )
    started.add_argument("--format", choices=COUNTS.formats, default="rocksdb", help="of the query's state")
    started.add_argument("--checkpoint", choices=get_args(StorageKind), default="folder", help="where it lives")
    started.add_argument("--spark", choices=BEFORE_METADATA, default="", help="the release line that begins the query")
    started.add_argument("--signed", action="store_true", help="nodes and routers have a gossip key")
    for running in (started, replayed):
        running.add_argument("--folder", type=Path, help="for history, truth and logs; default: a new one")
    checked = commands.add_parser("check", help="judge a recorded run")
    checked.add_argument("folder", type=Path)
    for command in (started, replayed, checked):
        command.add_argument("--json", action="store_true", help="the report as JSON")
    return parser


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
