"""A driver that dies between state and commit, and is started again, while nodes follow its checkpoint.

One node follows from the first commit on, one is started while the dead attempt's files lie there uncommitted, and one
after the batch was run again. What each of them showed is kept beside what Spark says was committed, and what the dead
attempt would have made of it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.oracle.follower import Follower, Seen, following
from tests.support.oracle.spark_reader import OracleRow, read_state, read_versions
from tests.support.spark.crash import DEAD_BATCH, OPERATOR_ID, PARTITIONS, CrashedRun, crash_before_commit
from tests.support.spark.formats import StateFormat
from tests.support.spark.queries import committed_batches, wait_until

LAST_VERSION = DEAD_BATCH + 2
SNAPSHOTS = (".snapshot", ".zip")
KEYS = tuple(f"word-{n}{ending}" for n in range(30) for ending in ("", "-first", "-second"))


@dataclass(frozen=True, slots=True)
class Witness:
    """What one node showed: every content of a partition by (partition, version), and what it answered."""

    contents: dict[tuple[int, int], list[list[OracleRow]]]
    seen: Seen
    lag_marks: frozenset[str]
    """Marks in the lag report at the end."""


@dataclass(frozen=True, slots=True)
class CrashStory:
    """Everything about one crash. `committed` are Spark's rows by version, `dead` those of the attempt that died."""

    run: CrashedRun
    witnesses: dict[str, Witness]
    committed: dict[int, list[OracleRow]]
    dead: list[OracleRow]

    @property
    def stale_snapshots(self) -> list[str]:
        """Snapshots that the dead attempt left under a name which the committed version has: format 1 only."""
        return [] if self.run.state_format.format_version == 2 else stale_snapshots(self.run)


def tell_crash_story(
    spark: SparkSession, folder: Path, state_format: StateFormat, *, with_snapshot: bool
) -> CrashStory:
    """Let it happen. The nodes that were there before the restart have read the dead attempt's changes ahead."""
    checkpoint = folder / "checkpoint"
    with ExitStack() as stack:
        with _crashing(folder, state_format, with_snapshot=with_snapshot) as crash:
            wait_until(lambda: crash.done() or 0 in committed_batches(checkpoint), what="the first commit")
            before = stack.enter_context(following(checkpoint, folder / "before", KEYS))
            run = crash.result()
        between = stack.enter_context(following(checkpoint, folder / "between", KEYS))
        for follower in (before, between):
            follower.wait_for_version(DEAD_BATCH)
            _wait_for_a_look_at_the_dead_attempt(run, follower)
        run.finish()
        after = stack.enter_context(following(checkpoint, folder / "after", KEYS))
        followers = {"before": before, "between": between, "after": after}
        for follower in followers.values():
            follower.wait_for_version(LAST_VERSION)
        witnesses = {name: _witness(follower) for name, follower in followers.items()}
    # Where Spark itself would load a dead attempt's snapshot, what was committed is the replay of the changes.
    replayed = shutil.copytree(checkpoint, folder / "replayed")
    for name in stale_snapshots(run) if state_format.format_version == 1 else ():
        (replayed / "state" / name).unlink()
    committed = read_versions(spark, replayed, OPERATOR_ID, range(LAST_VERSION))
    dead = read_state(spark, _as_if_committed(run, folder / "as-if-committed"), OPERATOR_ID, DEAD_BATCH)
    return CrashStory(run, witnesses, {batch + 1: rows for batch, rows in committed.items()}, dead)


def stale_snapshots(run: CrashedRun) -> list[str]:
    """Snapshots of the dead version that lie there as the dead attempt left them, below `state/`."""
    now = run.state_files(run.dead_version)
    left = run.state_files(run.dead_version, of=run.as_left)
    return [name for name, data in left.items() if name.endswith(SNAPSHOTS) and now.get(name) == data]


@contextmanager
def _crashing(folder: Path, state_format: StateFormat, *, with_snapshot: bool) -> Iterator[Future[CrashedRun]]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        default = state_format.with_default_manager()
        yield pool.submit(crash_before_commit, folder, default, with_snapshot=with_snapshot)


def _wait_for_a_look_at_the_dead_attempt(run: CrashedRun, follower: Follower) -> None:
    """Reading ahead is what makes a dead attempt dangerous: it is in memory when the commit of another appears."""
    changes = [name for name in run.state_files(run.dead_version) if not name.endswith(SNAPSHOTS)]
    paths = {f"state/{name}" for name in changes}
    wait_until(lambda: paths <= set(follower.files.paths), what=f"a look at {sorted(paths)}")


def _witness(follower: Follower) -> Witness:
    marks = (part["marks"] for part in follower.served.partitions())
    return Witness(
        follower.contents(),
        follower.seen,
        frozenset(mark for each in marks if isinstance(each, list) for mark in each),
    )


def _as_if_committed(run: CrashedRun, folder: Path) -> Path:
    """A copy of what the crash left, in which the dead attempt is committed after all."""
    shutil.copytree(run.as_left, folder)
    header, _, body = (folder / "commits" / str(DEAD_BATCH - 1)).read_text().partition("\n")
    commit = json.loads(body)
    if "stateUniqueIds" in commit:
        commit["stateUniqueIds"] = {str(OPERATOR_ID): [[_attempt(run, partition)] for partition in range(PARTITIONS)]}
    (folder / "commits" / str(DEAD_BATCH)).write_text(f"{header}\n{json.dumps(commit)}")
    return folder


def _attempt(run: CrashedRun, partition: int) -> str:
    prefix = f"{OPERATOR_ID}/{partition}/{run.dead_version}_"
    names = run.state_files(run.dead_version, of=run.as_left)
    (unique_id,) = {name.removeprefix(prefix).partition(".")[0] for name in names if name.startswith(prefix)}
    return unique_id
