"""Writes checkpoints with a query in Scala, in a JVM of its own.

PySpark brings Scala's compiler among its jars. Classes are kept by what they were compiled from.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark
from tests.support.repository import ROOT
from tests.support.spark.formats import StateFormat
from tests.support.spark.kinds import KINDS_SCHEMA, kinds_batches
from tests.support.spark.queries import InputFolder, QueryOptions
from tests.support.spark.session import SOCKET_NAME, java_environment, spark_conf

from understudy_shared.base.sockets import private_socket_dir

SOURCES = Path(__file__).parent / "scala"
PYSPARK = Path(pyspark.__file__).parent

VARIABLES: Mapping[str, Mapping[str, str]] = {
    "diary": {
        "weather": "value",
        "seen": "value",
        "mood": "value",
        "trips": "list",
        "fading": "list",
        "places": "map",
        "rumours": "map",
        "promises": "map",
    },
    "alarms": {"weather": "value", "calls": "list"},
    "tally": {"total": "value"},
}
"""The state variables of each operator of the job, by kind; one name is of two."""

IN_REAL_TIME = {"diary": VARIABLES["diary"]}
"""The same of the one operator that runs in Real-Time Mode."""

_LIMIT_S = 600


def write_in_scala(
    folder: Path, formats: Sequence[StateFormat], options: QueryOptions, *, batches: int, in_real_time: bool = False
) -> list[Path]:
    """A checkpoint in each of the formats, by the same query over the same input."""
    feed = InputFolder(folder / "input")
    for rows in kinds_batches(batches=batches, rows_per_batch=30):
        feed.add(rows)
    checkpoints = [folder / state_format.id for state_format in formats]
    for checkpoint, state_format in zip(checkpoints, formats, strict=True):
        said = {name: value for name, value in {**options.conf(), **state_format.conf()}.items() if value is not None}
        lines = [f"{name}={value}\n" for name, value in said.items()]
        Path(f"{checkpoint}.properties").write_text("".join(lines))
    jobs = ["TransformJob", "RealTimeJob"] if in_real_time else ["TransformJob"]
    _run(folder, jobs, [str(feed.path), KINDS_SCHEMA, *map(str, checkpoints)])
    return checkpoints


def _run(folder: Path, jobs: Sequence[str], arguments: Sequence[str]) -> None:
    with private_socket_dir(SOCKET_NAME) as sockets:
        conf = spark_conf(folder, sockets)
        command = [str(PYSPARK / "bin" / "spark-submit"), "--master", "local[4]", "--class", f"understudy.{jobs[-1]}"]
        command += ["--driver-class-path", str(_compiled(jobs))]
        for name, value in conf.items():
            command += ["--conf", f"{name}={value}"]
        # Spark's own word for "no jar": the class is on the path already.
        _finish([*command, "spark-internal", *arguments], folder / "scala.txt")


def _compiled(jobs: Sequence[str]) -> Path:
    """The folder of the jobs' classes; compiled when it is first asked for. An older Spark lacks what some jobs use."""
    files = [SOURCES / f"{job}.scala" for job in jobs]
    source = b"".join(file.read_bytes() for file in files) + pyspark.__version__.encode()
    folder = ROOT / ".cache" / "scala" / hashlib.sha256(source).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    classes, done = folder / "classes", folder / "done"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            classes.mkdir(exist_ok=True)
            java = Path(java_environment()["JAVA_HOME"]) / "bin" / "java"
            compiler = [str(java), "-cp", str(PYSPARK / "jars" / "*"), "scala.tools.nsc.Main", "-usejavacp"]
            _finish([*compiler, "-d", str(classes), *map(str, files)], folder / "compiler.txt")
            done.touch()
    return classes


def _finish(command: Sequence[str], output: Path) -> None:
    """Run a command to its end; fail with what it said."""
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    with output.open("wb") as said:
        done = subprocess.run(
            command,
            check=False,
            env={**inherited, **java_environment()},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
        )
    assert done.returncode == 0, output.read_text()[-4000:]
