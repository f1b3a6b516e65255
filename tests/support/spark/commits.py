"""Plays Spark's part in a checkpoint's own logs: commits, purges, and what people do to checkpoints.

Modification times are stamped from a counter, so two contents of one path always differ, as they do on a storage with
fine time stamps, and no test depends on how fast it runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.files import LocalFiles

FIRST_MTIME_NS = 1_700_000_000_000_000_000
TICK_NS = 1_000_000_000


class SparkCommits:
    """A query that commits to the checkpoint at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lives = 0
        self._ticks = 0
        self.recreate()

    @property
    def batches(self) -> list[int]:
        commits = self.root / "commits"
        return sorted(int(path.name) for path in commits.iterdir()) if commits.exists() else []

    @property
    def version(self) -> int:
        """The true end."""
        return max(self.batches, default=-1) + 1

    @property
    def query_id(self) -> str:
        return f"life-{self.lives}"

    def commit(self, batches: int = 1) -> None:
        for _ in range(batches):
            batch = self.version
            self.begin_batch()
            self._write(f"commits/{batch}", spark.commit(batch))

    def begin_batch(self) -> None:
        """Plan the next batch: its offsets are written, its commit is not."""
        self._write(f"offsets/{self.version}", spark.offsets(partitions=2))

    def purge(self, *, keep: int) -> None:
        for batch in self.batches[:-keep]:
            for log in ("offsets", "commits"):
                (self.root / log / str(batch)).unlink(missing_ok=True)

    def rewind(self, version: int) -> None:
        """Cut the history back to `version`, newest batch first."""
        for batch in reversed(self.batches):
            if batch >= version:
                for log in ("commits", "offsets"):
                    (self.root / log / str(batch)).unlink(missing_ok=True)

    def recommit_last(self) -> None:
        """The last batch was run again by hand: the same name with another content."""
        batch = self.version - 1
        (self.root / f"commits/{batch}").unlink()
        self._write(f"commits/{batch}", spark.commit(batch))

    def recreate(self) -> None:
        """Start the query on an emptied location."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.lives += 1
        self.bring_metadata_back()
        (self.root / "commits").mkdir()
        (self.root / "offsets").mkdir()

    def lose_metadata(self) -> None:
        (self.root / "metadata").unlink(missing_ok=True)

    def bring_metadata_back(self) -> None:
        self._write("metadata", f'{{"id":"{self.query_id}"}}'.encode())

    def touch_metadata(self) -> None:
        """The storage gives the same content another time stamp (a restore from backup, a migration)."""
        if (self.root / "metadata").exists():
            self._stamp(self.root / "metadata")

    def _write(self, path: str, data: bytes) -> None:
        arriving = self.root / f".{path.replace('/', '.')}.tmp"
        arriving.parent.mkdir(parents=True, exist_ok=True)
        arriving.write_bytes(data)
        self._stamp(arriving)
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        arriving.replace(target)

    def _stamp(self, path: Path) -> None:
        self._ticks += 1
        mtime_ns = FIRST_MTIME_NS + self._ticks * TICK_NS
        os.utime(path, ns=(mtime_ns, mtime_ns))


class InterruptedFiles(LocalFiles):
    """A checkpoint on disk to which something may happen before any single look: `before_look(n)`, counted from 0."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.looks = 0
        self.before_look: Callable[[int], None] = lambda _: None

    def watch(self, before_look: Callable[[int], None]) -> None:
        self.looks, self.before_look = 0, before_look

    def full_path(self, path: str) -> str:
        self.before_look(self.looks)
        self.looks += 1
        return super().full_path(path)
