"""The demo's pipeline as a process of its own: what its query keeps is what a plain recount of the flights gives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.reader import CheckpointReader
from tests.support.services.process_table import is_there, processes_below
from tests.support.spark.queries import committed_batches, wait_until
from tests.support.spark.session import java_environment

from understudy.demo.flights import Flight, flights_file, load_flights
from understudy_node.stores.stores import naming_of
from understudy_shared.bus.gossip import Names
from understudy_shared.bus.messages import Announcement
from understudy_shared.spark.unsafe_row import compile_row_decoder

FLIGHTS = 3000
START_LIMIT_S = 180.0

State = dict[tuple[object, ...], tuple[object, ...]]


@contextmanager
def demo_process(folder: Path, **settings: object) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m understudy.demo`; its log is `folder/log.txt`. What still runs at the end is killed."""
    given = {"checkpoint": folder / "checkpoint", "driver_memory": "512m", "max_flights": FLIGHTS, **settings}
    environment = {
        **os.environ,
        **java_environment(),
        "TMPDIR": str(folder),
        **{f"UNDERSTUDY_{name.upper()}": str(value) for name, value in given.items()},
    }
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "understudy.demo"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def said(folder: Path) -> str:
    return (folder / "log.txt").read_text()[-4000:]


@pytest.mark.full
def test_a_job_that_is_killed_leaves_no_process_behind_and_one_that_follows_counts_every_flight_once(
    tmp_path: Path,
) -> None:
    checkpoint = tmp_path / "checkpoint"
    with redis_server() as server, redis_server() as bus:
        urls = {"redis": bus.url, "input_redis": server.url}
        with demo_process(tmp_path, **urls) as process:
            wait_for_commits(checkpoint, 2, process)
            started = processes_below(process.pid)
            programs = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in started]
            assert any(b"python_streaming_source_runner" in program for program in programs), programs
            process.kill()
            process.wait()
            wait_until(lambda: not any(map(is_there, started)), what="the end of all its processes", limit_s=60)
        server.flush()
        bus.flush()
        with demo_process(tmp_path, **urls, speed_up=100_000) as process:
            assert process.wait(START_LIMIT_S) == 0, said(tmp_path)
        announced = bus.command("GET", Names("flights").announcement)
        assert server.command("EXISTS", Names("flights").announcement) == 0
        assert bus.command("KEYS", "flights:*") == []
    assert isinstance(announced, bytes)
    state = read_state(checkpoint, tmp_path / "copies", announced)
    assert state == aircraft(load_flights(flights_file())[:FLIGHTS])


def test_a_setting_that_does_not_exist_is_refused_before_spark_starts(tmp_path: Path) -> None:
    with demo_process(tmp_path, speed_up="fast") as process:
        assert process.wait(60) == 1
    assert "speed_up" in said(tmp_path)
    assert not (tmp_path / "checkpoint").exists()


def wait_for_commits(checkpoint: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Return when there are so many commits, or the process has ended."""
    wait_until(
        lambda: len(committed_batches(checkpoint)) >= count or process.poll() is not None,
        what=f"{count} commits",
        limit_s=START_LIMIT_S,
    )


def read_state(checkpoint: Path, copies: Path, announced: bytes) -> State:
    """Keys and values of the store at the last version; its announced name is checked."""
    document = announced.partition(b"announcement\n")[2]
    announcement = Announcement.decode(document, application_id="flights", where="test")
    with closing(CheckpointReader(checkpoint, copies)) as reader:
        aliases = naming_of(reader.description, {}, announcement).aliases
        assert [alias.name for alias in aliases.values()] == ["aircraft"]
        (store,) = reader.stores.values()
        key, value = compile_row_decoder(store.key_schema), compile_row_decoder(store.value_schema)
        return {_tuple(key(row.key)): _tuple(value(row.value)) for row in reader.rows(store, reader.versions()[-1])}


def aircraft(flights: list[Flight]) -> State:
    """(tail number) -> flights, last seen, sum of delays, (sum, count) of the mean, largest delay."""
    grouped: dict[tuple[object, ...], list[Flight]] = defaultdict(list)
    for flight in flights:
        grouped[flight.tailnum,].append(flight)
    return {key: _aircraft_value(group) for key, group in grouped.items()}


def _aircraft_value(group: list[Flight]) -> tuple[object, ...]:
    delays = [flight.dep_delay for flight in group if flight.dep_delay is not None]
    total = sum(delays) if delays else None
    last_seen_us = max(flight.event_time for flight in group) * 1_000_000
    return (len(group), last_seen_us, total, float(sum(delays)), len(delays), max(delays, default=None))


def _tuple(value: object) -> tuple[object, ...]:
    assert isinstance(value, tuple)
    return value
