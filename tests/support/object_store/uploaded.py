"""A checkpoint in an object store that grows as a test wants it, without a Spark to wait for."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.object_store.bucket import Bucket

TASKS = 2


class Uploaded:
    """A handmade checkpoint that is copied to `ckpt` in the bucket as it grows."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self.local = HandmadeCheckpoint(folder, partitions=TASKS).create()
        self._bucket = bucket
        self._sent: set[Path] = set()
        self.send()

    def add(self, *versions: int, snapshot: bool = False) -> None:
        """Commit these versions, each commit's file last; then come snapshots, which are never older than changes."""
        for version in versions:
            self.local.add(version)
            self.send()
            for partition in range(TASKS) if snapshot else ():
                self.local.write(self.local.snapshot_path(version, partition), self.local.snapshot(version, partition))
            self.send()

    def send(self) -> None:
        """Copy what is new: folders first, where Hadoop marks them, and commits last."""
        new = [path for path in self.local.path.rglob("*") if path not in self._sent]
        new.sort(key=lambda path: (not path.is_dir(), path.parent.name == "commits"))
        for path in new:
            key = f"ckpt/{path.relative_to(self.local.path)}"
            if path.is_file():
                self._bucket.put(key, path.read_bytes())
            elif self._bucket.marks_folders:
                self._bucket.mark_folder(key)
            self._sent.add(path)
