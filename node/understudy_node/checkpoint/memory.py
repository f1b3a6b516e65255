"""A checkpoint in the memory of this process, whose owner writes its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from understudy_node.checkpoint.files import (
    DEFAULT_MAX_READ_BYTES,
    CheckpointFiles,
    FetchMethod,
    FileStat,
    arriving_file,
    refuse_escape,
    too_large_to_read,
    vanished,
)
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import CheckpointError


class MemoryFiles(CheckpointFiles):
    """Files in memory. With `is_away` its storage fails, as one that cannot be reached does."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._url = f"memory:{name}"
        self._clock = clock
        self._files: dict[str, tuple[bytes, FileStat]] = {}
        self._folders: dict[str, dict[str, None]] = {"": {}}
        self._written = 0
        self.is_away = False

    def __repr__(self) -> str:
        return f"MemoryFiles({self._url!r}, {len(self._files)} files)"

    @property
    def url(self) -> str:
        """The name, which no other process can open."""
        return self._url

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files, one after another in this order; each is seen as a whole."""
        for path, data in files.items():
            self._written += 1
            stat = FileStat(self._clock.wall_us() * 1000, len(data), self._written)
            self._files[path] = (data, stat)
            child = path
            while child:  # a folder is listed after its content is there
                folder, _, name = child.rpartition("/")
                self._folders.setdefault(folder, {})[name] = None
                child = folder

    def stat(self, path: str) -> FileStat | None:
        self._reach(path)
        found = self._files.get(path)
        return None if found is None else found[1]

    def list(self, path: str) -> list[str] | None:
        self._reach(path)
        names = self._folders.get(path.rstrip("/"))
        return None if names is None else [*names.copy()]

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        self._reach(path)
        found = self._files.get(path)
        if found is None:
            raise vanished(f"{self._url}/{path}")
        data, stat = found
        if stat.size > max_bytes:
            raise too_large_to_read(f"{self._url}/{path}", stat.size, max_bytes)
        return data

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        """Write the file to the local disk."""
        data = self.read(path)
        with arriving_file(destination) as arriving:
            arriving.write_bytes(data)
        return "download"

    def _reach(self, path: str) -> None:
        """Refuse paths as every storage does, and all of them while this one is away."""
        refuse_escape(path)
        if self.is_away:
            raise CheckpointError(
                "The storage cannot be reached", where=f"{self._url}/{path}", fix="Wait until its owner brings it back"
            )
