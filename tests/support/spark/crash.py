"""Checkpoints in which a driver died between writing a batch's state and committing it.

Three batches are committed; of the fourth, the dead attempt's files are on disk. What they held is kept aside, because
in format 1 the next attempt writes over them. `finish` lets Spark run that batch again, with other content.

The checkpoint manager matters: on a local disk, Spark's own replaces a file of the same name, as most users see it.
The quick one leaves the dead attempt's file in place without a word, and drops the new one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.spark.formats import StateFormat
from tests.support.spark.process import SparkJob, spark_job
from tests.support.spark.queries import InputFolder, committed_batches, wait_until

DEAD_BATCH = 3
OPERATOR_ID = 0
PARTITIONS = 2
_SCRIPT = "aggregate_until_killed.py"


@dataclass(frozen=True, slots=True)
class CrashedRun:
    """A checkpoint after the crash, and a copy of it as the dead attempt left it."""

    checkpoint: Path
    as_left: Path
    state_format: StateFormat
    with_snapshot: bool

    @property
    def dead_version(self) -> int:
        return DEAD_BATCH + 1

    def state_files(self, version: int, *, of: Path | None = None) -> dict[str, bytes]:
        """Files of one version of the operator's state, by their path below `state/`; `of` is a checkpoint's folder."""
        state = (of or self.checkpoint) / "state"
        return {str(path.relative_to(state)): path.read_bytes() for path in _version_files(state, version)}

    def finish(self) -> None:
        """Start the query again: the batch runs a second time, with other content, and then one batch more."""
        with _job(self.checkpoint, self.state_format, "second", None, self.with_snapshot) as job:
            job.wait_for_line("finished")


def crash_before_commit(folder: Path, state_format: StateFormat, *, with_snapshot: bool = False) -> CrashedRun:
    """Kill a driver that has written batch 3's state, and its snapshots if asked for, and not committed it."""
    checkpoint = folder / "checkpoint"
    feed = InputFolder(Path(f"{checkpoint}.input"))
    for batch in range(DEAD_BATCH + 2):
        feed.add([{"word": f"word-{(7 * batch + n) % 30}", "number": n} for n in range(25)])
    with _job(checkpoint, state_format, "first", DEAD_BATCH, with_snapshot) as job:
        job.wait_for_line(f"state of batch {DEAD_BATCH} written")
        if with_snapshot:
            wait_until(_snapshots_written(checkpoint), what="snapshots of the attempt that is about to die")
        job.kill()
    assert committed_batches(checkpoint) == tuple(range(DEAD_BATCH))
    as_left = folder / "as-left"
    shutil.copytree(checkpoint, as_left)
    return CrashedRun(checkpoint, as_left, state_format, with_snapshot)


def _job(
    checkpoint: Path, state_format: StateFormat, salt: str, hold: int | None, with_snapshot: bool
) -> AbstractContextManager[SparkJob]:
    folder = checkpoint.parent / f"job-{salt}"
    arguments = [
        str(checkpoint),
        "--folder",
        str(folder / "spark"),
        "--format",
        json.dumps(asdict(state_format)),
        "--salt",
        salt,
    ]
    arguments += [] if hold is None else ["--hold", str(hold)]
    # The second attempt must not make snapshots of its own: what is left of the first one's is what matters.
    arguments += ["--min-deltas-for-snapshot", "1"] if with_snapshot and hold is not None else []
    return spark_job(_SCRIPT, arguments, folder)


def _snapshots_written(checkpoint: Path) -> Callable[[], bool]:
    def written() -> bool:
        files = _version_files(checkpoint / "state", DEAD_BATCH + 1)
        return len([path for path in files if path.suffix in {".snapshot", ".zip"}]) == PARTITIONS

    return written


def _version_files(state: Path, version: int) -> list[Path]:
    folders = [state / str(OPERATOR_ID) / str(partition) for partition in range(PARTITIONS)]
    return sorted(path for folder in folders for path in folder.iterdir() if _is_of_version(path, version))


def _is_of_version(path: Path, version: int) -> bool:
    checksum = path.name.startswith(".") or path.suffix == ".crc"
    return not checksum and path.stem.split("_")[0] == str(version)
