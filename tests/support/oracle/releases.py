"""Other releases of Spark as writers: an environment for each, and the checkpoints that it wrote, with what its own
state reader says of them.

An environment is made when it is first asked for, in `.cache/spark-X.Y`. It has PySpark alone: the process
that writes is this Python, with that PySpark before all else on its path.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.oracle.kinds import Kept, KindsCheckpoint, KindStore
from tests.support.packages import NotInstalledError, installed
from tests.support.repository import ROOT
from tests.support.spark.formats import (
    HDFS_V1,
    ROCKSDB_CHANGELOG_V1,
    ROCKSDB_CHANGELOG_V2,
    ROCKSDB_V1,
    StateFormat,
)
from tests.support.spark.kinds import BRANCHES

from understudy_shared.bus.messages import AnnouncedStore

RELEASES = {"4.0": "4.0.5", "4.1": "4.1.4", "4.2": "4.2.1"}
"""The newest of a release line."""

BEFORE_METADATA = {"3.2": "3.2.1", "3.3": "3.3.4", "3.4": "3.4.4", "3.5": "3.5.7"}
"""The same of releases that write no operator metadata, and have no reader of their state."""

_OF_SPARK_3 = ("numpy<2", "pandas<2.2", "pyarrow==14.0.2")
"""What Python functions of Spark 3 need."""

IMPATIENT = {"spark.sql.streaming.stateStore.maintenanceShutdownTimeout": "1s"}
"""Spark 4.1 and 4.2 stop their stores under a lock that a maintenance thread may wait for, and give up after this."""

FINISHED, RELEASE = "finished.json", "release"
PYTHON, SCALA, CHANGED = "python", "scala", "changed"
"""Names of checkpoints of `transformWithState`: the language of the query, or that its columns changed."""
_WRITE_LIMIT_S = 3600

NoSparkError = NotInstalledError
"""The error for a release that cannot be had here, with the reason."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a release wrote below `folder`; `release` is its full version."""

    folder: Path
    release: str

    @property
    def line(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.release.split(".")[:2])

    def finished(self) -> tuple[Path, AnnouncedStore, list[dict[str, Any]]]:
        """The checkpoint of the aggregates, what that Spark's plan announces of them, and the rows that it put out."""
        folder = self.folder / "finished"
        document = json.loads((folder / FINISHED).read_text())
        return folder / "checkpoint", AnnouncedStore.model_validate(document["announced"]), document["rows"]

    def oracle(self, name: str, state_format: StateFormat) -> KindsCheckpoint:
        """A checkpoint with what that Spark's reader says, as `keep` has put it there under the name."""
        document = json.loads(_kept_in(self.folder, name, state_format).read_text())
        stores = {each["name"]: _store(each) for each in document["stores"]}
        path = self.folder / document["checkpoint"]
        return KindsCheckpoint(path, state_format, tuple(document["versions"]), stores)


def keep(folder: Path, name: str, oracle: KindsCheckpoint) -> None:
    """Put what Spark's reader says of a checkpoint below `folder` where `Written.oracle` finds it."""
    document = {
        "checkpoint": str(oracle.path.relative_to(folder)),
        "versions": oracle.versions,
        "stores": [asdict(store) for store in oracle.stores.values()],
    }
    _kept_in(folder, name, oracle.state_format).write_text(json.dumps(document))


def _kept_in(folder: Path, name: str, state_format: StateFormat) -> Path:
    return folder / f"{name}-{state_format.id}.json"


def formats_of(release: tuple[int, ...]) -> tuple[StateFormat, ...]:
    """In which formats a release writes every kind of state.

    RocksDB state of Spark 3.2 is not compared yet: by Spark's own reader, too, the row indices of its joins have gaps.

    Spark 4.0 cannot run a limit in format 2: `assertion failed: ChekpointInfo length: 1, numPartitions: 2`.
    """
    if release[:2] < (3, 3):
        return (HDFS_V1,)
    if release[:2] < (4, 0):
        return (HDFS_V1, ROCKSDB_V1, ROCKSDB_CHANGELOG_V1) if release[:2] >= (3, 5) else (HDFS_V1, ROCKSDB_V1)
    return (HDFS_V1,) if release[:2] == (4, 0) else (HDFS_V1, ROCKSDB_CHANGELOG_V2)


def kinds_of(release: tuple[int, ...]) -> tuple[str, ...]:
    """Which kinds of state a release has. Functions in Python of Spark 3.3 and older do not run on Python 3.11."""
    since = {"dedupeWithinWatermark": (3, 5), "applyInPandasWithState": (3, 4)}
    return tuple(kind for kind in BRANCHES if release[:2] >= since.get(kind, (3, 2)))


def custom_formats_of(release: tuple[int, ...]) -> dict[str, StateFormat]:
    """In which formats a release writes `transformWithState`.

    Spark 4.0 cannot read it in format 2: its reader takes the unique id in a file's name for a part of the version.
    """
    changelog = ROCKSDB_CHANGELOG_V1 if release[:2] <= (4, 0) else ROCKSDB_CHANGELOG_V2
    rows = {"plain": ROCKSDB_V1, "changelog": changelog}
    return {**rows, **{f"{name}-avro": replace(each, encoding="avro") for name, each in rows.items()}}


CUSTOM_FORMS = {PYTHON: ("plain", "changelog", "changelog-avro"), SCALA: ("plain", "changelog", "plain-avro")}
"""Names of `custom_formats_of` by the language of the query: each layout in each language, and every pair of language,
layout and encoding.
"""


def has_transform(release: tuple[int, ...]) -> bool:
    """Whether PySpark has `transformWithState`. That of Spark 4.0 has `transformWithStateInPandas` alone."""
    return release[:2] > (4, 0)


def operators_of(release: tuple[int, ...]) -> tuple[str, ...]:
    return ("diary", "alarms") if has_transform(release) else ("alarms",)


def written_by(line: str, folder: Path, job: str = "write_release", *arguments: str) -> Written:
    """Let the newest Spark of a release line write its checkpoints, by one of `tests/support/spark/jobs`. Raises
    NoSparkError where there is none.
    """
    command = [sys.executable, "-m", f"tests.support.spark.jobs.{job}", str(folder), *arguments]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("wb") as output:
        done = subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env=variables_of(line),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_WRITE_LIMIT_S,
        )
    assert done.returncode == 0, (folder / "output.txt").read_text()[-4000:]
    return Written(folder, (folder / RELEASE).read_text())


def variables_of(line: str) -> dict[str, str]:
    """The environment of a process of this Python that runs the newest Spark of a release line. Raises NoSparkError."""
    # A JVM of another release is found by its PySpark, unless a variable says otherwise.
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    path = [*map(str, environment(line)), *(each for each in sys.path if each)]
    return {**inherited, "PYTHONPATH": os.pathsep.join(path)}


def environment(line: str) -> tuple[Path, ...]:
    """The packages of the newest Spark of a release line; installed when they are first asked for."""
    # Without what PySpark needs: that is installed for the tests' own, and works with each of Spark 4.
    if line in RELEASES:
        return (installed(f"spark-{line}", "--no-deps", f"pyspark=={RELEASES[line]}"),)
    release = f"pyspark=={BEFORE_METADATA[line]}"
    return installed(f"spark-{line}", "--no-deps", release), installed("spark-3-libraries", *_OF_SPARK_3)


def _store(document: dict[str, Any]) -> KindStore:
    kept = {int(version): [Kept(**each) for each in rows] for version, rows in document.pop("kept").items()}
    return KindStore(**document, kept=kept)
