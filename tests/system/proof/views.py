"""A node's own way to the checkpoint: a symbolic link that can be made to lead nowhere, or to a copy with bad files.

A copy follows the checkpoint all the while: every new state file is hard linked as soon as it appears, before the
commit that names it; the commit log is the real one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

Spoil = Callable[[str, Path, Path], bool]
"""Given a file's name, where it is and where it belongs in the copy: whether it has been dealt with."""

_LOOK_EVERY_S = 0.003
_SAME_TICK_NS = 50_000_000
"""A folder that was listed so long after its last change has nothing new: file systems count time in ticks."""


class View:
    """The checkpoint as one node sees it, at `path`."""

    def __init__(self, path: Path, checkpoint: Path) -> None:
        self.path = path
        self._checkpoint = checkpoint
        self._copies = 0
        self._copy: _Copy | None = None
        path.parent.mkdir(parents=True)
        path.symlink_to(checkpoint)

    def vanish(self) -> None:
        """The storage is gone."""
        self._lead_to(self.path.with_name("nowhere"))

    def spoil(self, spoil: Spoil) -> None:
        """Let files appear as `spoil` makes them from now on."""
        self._copies += 1
        self._copy = _Copy(self._checkpoint, self.path.with_name(f"copy-{self._copies}"), spoil)
        self._lead_to(self._copy.folder)

    def heal(self) -> None:
        """The checkpoint itself again."""
        self._lead_to(self._checkpoint)
        if self._copy is not None:
            self._copy.end()
            self._copy = None

    def _lead_to(self, target: Path) -> None:
        link = self.path.with_name("next")
        link.symlink_to(target)
        link.replace(self.path)


class _Copy:
    """A folder that follows the checkpoint, until ended."""

    def __init__(self, checkpoint: Path, folder: Path, spoil: Spoil) -> None:
        self.folder = folder
        self._checkpoint = checkpoint
        self._spoil = spoil
        self._seen: set[Path] = set()
        self._listed_ns: dict[Path, int] = {}
        self._ended = threading.Event()
        folder.mkdir()
        for entry in checkpoint.iterdir():
            if entry.name != "state":
                (folder / entry.name).symlink_to(entry)
        for operator in (checkpoint / "state").iterdir():
            (folder / "state" / operator.name).mkdir(parents=True)
        self._follow()
        self._follow()  # what appeared while the first took its time
        self._thread = threading.Thread(target=self._run, name="copy")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            self._follow()

    def _follow(self) -> None:
        for operator in (self._checkpoint / "state").iterdir():
            for entry in operator.iterdir():
                copy = self.folder / "state" / operator.name / entry.name
                if not entry.name.isdigit():
                    self._link_folder(entry, copy)
                    continue
                copy.mkdir(exist_ok=True)
                self._follow_partition(entry, copy)

    def _follow_partition(self, partition: Path, copy: Path) -> None:
        if partition.stat().st_mtime_ns + _SAME_TICK_NS < self._listed_ns.get(partition, 0):
            return
        self._listed_ns[partition] = time.time_ns()
        for entry in os.scandir(partition):
            path = partition / entry.name
            if entry.name.startswith(".") or path in self._seen:
                continue  # Spark renames a file to its name when it is whole
            self._seen.add(path)
            if entry.is_dir():
                self._link_folder(path, copy / entry.name)
            elif not self._spoil(entry.name, path, copy / entry.name):
                os.link(path, copy / entry.name)

    def _link_folder(self, folder: Path, copy: Path) -> None:
        if not copy.is_symlink():
            copy.symlink_to(folder)


def version_of(name: str) -> int:
    """The version in the name of a changelog (`12_<id>.changelog`, `12.delta`); 0 for any other file."""
    is_changelog = name.endswith((".changelog", ".delta"))
    return int(name.split(".", maxsplit=1)[0].split("_", maxsplit=1)[0]) if is_changelog else 0


def damaged(version: int) -> Spoil:
    """The changelogs of a version, with bytes turned over in their middle."""

    def spoil(name: str, path: Path, copy: Path) -> bool:
        if version_of(name) != version:
            return False
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 8] = bytes(byte ^ 0xFF for byte in data[middle : middle + 8])
        copy.write_bytes(data)
        return True

    return spoil


def missing(version: int) -> Spoil:
    """Hide all changelogs of a version."""
    return lambda name, path, copy: version_of(name) == version
