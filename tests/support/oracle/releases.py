"""Other releases of Spark as writers: an environment for each, and the checkpoints that it wrote.

An environment is made when it is first asked for, in `.cache/spark-X.Y`, with `uv`. It has PySpark alone: the process
that writes is this Python, with that PySpark before all else on its path.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.oracle.kinds import Kept, KindsCheckpoint, KindStore
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.session import REPOSITORY

RELEASES = {"4.0": "4.0.5", "4.1": "4.1.4", "4.2": "4.2.1"}
"""The newest of a release line."""

FINISHED, KINDS, RELEASE = "finished.json", "kinds.json", "release"
_INSTALL_LIMIT_S, _WRITE_LIMIT_S = 900, 3600


class NoSparkError(Exception):
    """A release that cannot be had here, with the reason."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a release wrote below `folder`; `release` is its full version."""

    folder: Path
    release: str

    @property
    def line(self) -> tuple[int, ...]:
        """Major and minor version."""
        return tuple(int(part) for part in self.release.split(".")[:2])

    def finished(self) -> tuple[Path, list[dict[str, Any]]]:
        """The checkpoint of the aggregates, and the rows that the query put out."""
        folder = self.folder / "finished"
        return folder / "checkpoint", json.loads((folder / FINISHED).read_text())

    def kinds(self, state_format: StateFormat) -> KindsCheckpoint:
        """The checkpoint of every kind of state, with what that Spark's reader says."""
        folder = self.folder / state_format.id
        document = json.loads((folder / KINDS).read_text())
        stores = {each["name"]: _store(each) for each in document["stores"]}
        return KindsCheckpoint(folder / "checkpoint", state_format, tuple(document["versions"]), stores)


def formats_of(release: tuple[int, ...]) -> tuple[StateFormat, ...]:
    """In which formats a release writes every kind of state.

    Spark 4.0 cannot run a limit in format 2: `assertion failed: ChekpointInfo length: 1, numPartitions: 2`.
    """
    return (HDFS_V1,) if release[:2] <= (4, 0) else (HDFS_V1, ROCKSDB_CHANGELOG_V2)


def written_by(line: str, folder: Path) -> Written:
    """Let the newest Spark of a release line write its checkpoints. Raises NoSparkError where there is none."""
    path = [str(environment(line)), *(each for each in sys.path if each)]
    command = [sys.executable, "-m", "tests.support.spark.jobs.write_release", str(folder)]
    # A JVM of another release is found by its PySpark, unless a variable says otherwise.
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("wb") as output:
        done = subprocess.run(
            command,
            check=False,
            cwd=REPOSITORY,
            env={**inherited, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_WRITE_LIMIT_S,
        )
    assert done.returncode == 0, (folder / "output.txt").read_text()[-4000:]
    return Written(folder, (folder / RELEASE).read_text())


def environment(line: str) -> Path:
    """The packages of the newest Spark of a release line; installed when they are first asked for."""
    folder = REPOSITORY / ".cache" / f"spark-{line}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / RELEASES[line]).exists():
            _install(line, folder)
            (folder / RELEASES[line]).touch()
    return folder / "packages"


def _install(line: str, folder: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    # Without what PySpark needs: that is installed for the tests' own, and works with each of these.
    command = [str(uv), "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    command += ["--target", str(folder / "packages"), f"pyspark=={RELEASES[line]}"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_INSTALL_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoSparkError(f"no Spark {line}: PySpark {RELEASES[line]} could not be installed ({error})") from error


def _store(document: dict[str, Any]) -> KindStore:
    kept = {int(version): [Kept(**each) for each in rows] for version, rows in document.pop("kept").items()}
    return KindStore(**document, kept=kept)
