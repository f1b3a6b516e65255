"""The Python processes of the accelerator jar, asked by their pipes as the jar asks them."""

from __future__ import annotations

import base64
import json
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.spark.queries import wait_until
from tools.build_jar import SOURCES

from understudy_aligned.accelerator.serving import BEAT, DATA, ERROR, PROTOCOL, REPLY, REQUEST

PLANNER, READER = "understudy_aligned.accelerator.planner", "understudy_aligned.accelerator.reader"
_LIMIT_S = 60
_HEAD = struct.Struct(">cI")


class Frame(NamedTuple):
    kind: bytes
    payload: bytes


class Asked:
    """A process, and the jar's end of its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._requests, self._frames = process.stdin, process.stdout

    def send(self, request: bytes) -> None:
        self._requests.write(_HEAD.pack(REQUEST, len(request)) + request)
        self._requests.flush()

    def next(self) -> Frame:
        kind, size = _HEAD.unpack(self._frames.read(_HEAD.size))
        return Frame(kind, self._frames.read(size))

    def answer(self, request: bytes) -> tuple[list[bytes], Frame]:
        """The data that comes, and what ends it. Beats are left out."""
        self.send(request)
        data = []
        while (frame := self.next()).kind in (DATA, BEAT):
            data += [frame.payload] if frame.kind == DATA else []
        return data, frame

    def call(self, name: str, **arguments: object) -> dict[str, Any]:
        _, reply = self.answer(json.dumps({"call": name, **arguments}).encode())
        assert reply.kind == REPLY, reply.payload.decode()
        found: dict[str, Any] = json.loads(reply.payload)
        return found

    def error(self, name: str, **arguments: object) -> str:
        _, reply = self.answer(json.dumps({"call": name, **arguments}).encode())
        assert reply.kind == ERROR
        return reply.payload.decode()

    def load(self, options: dict[str, str]) -> dict[str, Any]:
        return self.call("load", options=options, has_schema=False, is_batch=False)

    def has_loaded(self, package: str) -> bool:
        """Whether it has imported a compiled module of a package."""
        return f"/{package}/" in Path(f"/proc/{self.process.pid}/maps").read_text()

    def close(self) -> int:
        """Close the pipe, as the jar does and as a JVM that is killed; return the exit code."""
        self._requests.close()
        return self.process.wait(_LIMIT_S)


@contextmanager
def asked(module: str, *arguments: str, protocol: str = str(PROTOCOL)) -> Iterator[Asked]:
    command = [sys.executable, "-m", module, protocol, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield Asked(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def weather() -> Iterator[str]:
    """One topic of a partition with three records, of which one has no time."""
    with redis_server() as running:
        for value in ('{"at": 1}', "{}", '{"at": 3}'):
            running.command("XADD", "weather:0", "*", "value", value)
        yield running.url


@pytest.fixture
def options(weather: str, tmp_path: Path) -> dict[str, str]:
    found = {"redis": weather, "topics": "weather", "timestamp": "json:at", "undecodable": "aside"}
    return {**found, "undecodable_path": str(tmp_path / "aside"), "spool": str(tmp_path / "spool")}


def test_a_batch_goes_into_the_spool_as_rows_and_the_same_rows_come_from_the_input(
    options: dict[str, str], tmp_path: Path
) -> None:
    with asked(PLANNER) as planner:
        loaded = planner.load(options)
        assert "merge_order struct<" in loaded["schema"]
        start = planner.call("initial")["offset"]
        end = planner.call("latest", start=start, is_everything=False)["offset"]
        assert planner.call("latest", start=end, is_everything=False) == {"offset": None}
        (task,) = planner.call("tasks", start=start, end=end)["tasks"]
        with pa.OSFile(task["file"]) as file, pa.ipc.open_file(file) as batches:
            spooled = pa.Table.from_batches([batches.get_batch(number) for number in task["batches"]])
        assert [row["value"] for row in spooled.to_pylist()] == [b'{"at": 1}', b'{"at": 3}']
        (letters,) = (tmp_path / "aside").iterdir()
        aside = letters.read_bytes()
        assert json.loads(planner.call("metrics")["metrics"])["records-total"] == 3
        assert not planner.has_loaded("pandas")
        assert planner.close() == 0
    assert list((tmp_path / "spool").iterdir()) == [], "it removed its spool"
    letters.unlink()
    with asked(READER) as reader:
        for _ in range(2):
            data, end_frame = reader.answer(base64.b64decode(task["task"]))
            assert end_frame == Frame(REPLY, b"")
            with pa.ipc.open_stream(b"".join(data)) as stream:
                assert stream.read_all().equals(spooled)
        assert letters.read_bytes() == aside
        assert not reader.has_loaded("pandas")
        assert reader.close() == 0


def test_options_are_parsed_once_and_another_process_takes_them_over(options: dict[str, str]) -> None:
    with asked(PLANNER) as planner, asked(PLANNER) as other:
        parsed = planner.load({**options, "max_poll_records": "2"})
        assert (parsed["max_rows"], "max_bytes" in parsed) == (2, False)
        other.call("open", options=parsed["options"])
        assert other.call("initial") == planner.call("initial")


def test_errors_have_their_text_and_a_bug_its_traceback(options: dict[str, str]) -> None:
    with asked(PLANNER) as planner:
        wrong = {**options, "max_task_idle": "1"}
        error = planner.error("load", options=wrong, has_schema=False, is_batch=False)
        assert error.startswith("SettingsError: ")
        assert "Did you mean 'max_task_idle_ms'" in error
        assert "columns of this source are fixed" in planner.error(
            "load", options=options, has_schema=True, is_batch=False
        )
        assert "reads streams only" in planner.error("load", options=options, has_schema=False, is_batch=True)
        assert "Traceback" in planner.error("no such call")
        planner.load(options)


def test_a_jar_of_another_protocol_is_refused_and_the_jar_of_these_sources_is_not() -> None:
    with asked(PLANNER, protocol="0") as planner:
        _, errors = planner.process.communicate(timeout=_LIMIT_S)
    assert f"the jar speaks version 0 of the protocol, and this package version {PROTOCOL}" in errors.decode()
    command = (SOURCES / "understudy" / "spark" / "PythonCommand.java").read_text()
    assert f'PROTOCOL = "{PROTOCOL}"' in command


def test_a_process_that_works_sends_beats_and_ends_although_it_works_when_the_pipe_ends() -> None:
    away = {"kafka": "127.0.0.1:1", "topics": "weather", "request_timeout_ms": "60000"}
    request = {"call": "load", "options": away, "has_schema": False, "is_batch": False}
    with asked(PLANNER) as planner:
        planner.send(json.dumps(request).encode())
        assert planner.next() == Frame(BEAT, b"")
        assert planner.close() == 0


def test_a_process_that_is_started_before_there_is_a_query_imports_the_inputs_of_the_last_one(
    options: dict[str, str],
) -> None:
    with asked(PLANNER, "kafka") as planner, asked(PLANNER) as other:
        wait_until(lambda: planner.has_loaded("confluent_kafka"), what="Kafka's client")
        assert planner.load(options)["inputs"] == ["redis"]
        other.load(options)
        assert not other.has_loaded("confluent_kafka")
        assert (planner.close(), other.close()) == (0, 0)


def test_sigterm_ends_a_planner_and_its_spool(options: dict[str, str], tmp_path: Path) -> None:
    with asked(PLANNER) as planner:
        planner.load(options)
        start = planner.call("initial")["offset"]
        planner.call("latest", start=start, is_everything=False)
        assert len(list((tmp_path / "spool").iterdir())) == 1
        planner.process.terminate()
        assert planner.process.wait(_LIMIT_S) == 128 + signal.SIGTERM
    wait_until(lambda: list((tmp_path / "spool").iterdir()) == [], what="the spool's removal")
