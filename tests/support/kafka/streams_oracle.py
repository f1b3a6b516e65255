"""Kafka's own `PartitionGroup` (Kafka Streams 4.1.0), driven by the commands of `partition_group`.

Its jars come through Maven, as the broker's do. Where there is no Maven or no Java compiler, the test is skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.support.kafka.maven import fetched_jars
from tests.support.kafka.partition_group import Turn

SOURCES = Path(__file__).parent / "streams"
MAIN = "org.apache.kafka.streams.processor.internals.PartitionGroupDriver"

_COMPILE_LIMIT_S = 120
_RUN_LIMIT_S = 600
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class PartitionGroupDriver:
    """The compiled driver. `folder` is for its classes."""

    def __init__(self, folder: Path) -> None:
        jars = fetched_jars(SOURCES / "pom.xml", "kafka-streams-jars")
        if isinstance(jars, str):
            pytest.skip(jars)
        compiler, java = shutil.which("javac"), shutil.which("java")
        if compiler is None or java is None:
            pytest.skip("no Java compiler")
        source = SOURCES / "PartitionGroupDriver.java"
        command = [compiler, "-Xlint:-options", "-cp", f"{jars}/*", "-d", str(folder), str(source)]
        _run(command, limit_s=_COMPILE_LIMIT_S)
        self._command = [java, *_JAVA_OPTIONS, "-cp", f"{folder}:{jars}/*", MAIN]

    def answers(self, commands: Iterable[str]) -> list[Turn]:
        output = _run(self._command, limit_s=_RUN_LIMIT_S, commands="".join(f"{line}\n" for line in commands))
        return [Turn.parse(line) for line in output.splitlines()]


def _run(command: list[str], *, limit_s: float, commands: str = "") -> str:
    done = subprocess.run(command, input=commands, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, (done.stdout[-500:] + done.stderr)[-3000:]
    return done.stdout
