"""The door that tests write through to an object store, and what each of their servers offers."""

from __future__ import annotations

import itertools
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import obstore
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.object_store import StoreFolder

_names = itertools.count()


class Bucket:
    """An empty bucket of a server. `store` is the library's, with the right to write."""

    marks_folders = False
    """Whether a checkpoint that is copied gets the marks that Hadoop writes for its folders."""

    def __init__(self, name: str, store: Any) -> None:
        self.name = name
        self._store = store

    def put(self, key: str, data: bytes) -> None:
        obstore.put(self._store, key, data)

    def get(self, key: str) -> bytes:
        return obstore.get(self._store, key).bytes().to_bytes()

    def mark_folder(self, key: str) -> None:
        """Write the empty object by which Hadoop's file systems mark a folder."""
        self.put(f"{key}/", b"")

    def put_folder(self, folder: Path, prefix: str) -> None:
        """Copy a checkpoint as it lies on disk, oldest file first, commits last."""
        below = [f"{prefix}/{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_dir()]
        for each in (*_prefixes(prefix), *below) if self.marks_folders else ():
            self.mark_folder(each)
        paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
        paths.sort(key=lambda path: (path.parent.name == "commits", path.stat().st_mtime_ns))
        for path in paths:
            self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def copy_folder(self, prefix: str, folder: Path) -> None:
        """Copy a checkpoint to local disk, without temporary files; the folder appears when it is whole."""
        arriving = folder.with_name(f"{folder.name}.arriving")
        keys = [PurePosixPath(key) for key in self.keys(prefix)]
        folders = {parent for key in keys for parent in key.parents}
        for key in keys:
            if key not in folders and not key.name.startswith("."):  # a mark, or what Spark still writes
                path = arriving / key.relative_to(prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.get(str(key)))
        arriving.rename(folder)

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the store: one half of what a rename is there."""
        obstore.copy(self._store, key, to)

    def delete(self, key: str) -> None:
        obstore.delete(self._store, key)

    def written(self, key: str) -> datetime | None:
        """When an object was written, in whole seconds; None when it is not there."""
        try:
            at: datetime = obstore.head(self._store, key)["last_modified"]
        except FileNotFoundError:
            return None
        return at

    def keys(self, prefix: str) -> list[str]:
        return sorted(each["path"] for batch in obstore.list(self._store, prefix) for each in batch)


class StoreServer(Protocol):
    port: int
    scheme: str
    depth: int
    """How many parts a path has before an object's key."""
    busy: str
    """The store's code for too many requests."""
    secret: str

    def new_bucket(self) -> Bucket:
        """Make an empty bucket."""

    def url(self, bucket: str, path: str) -> str:
        """Return the URL of a checkpoint, as a user writes it."""

    def reader(self, bucket: str, path: str, endpoint: str | None = None, *, secret: str | None = None) -> StoreFolder:
        """Return the reader's part for this store, which may ask at another endpoint and with another secret."""

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """Return what a process needs to read from it, at `endpoint` if that is another."""


def new_name() -> str:
    """Return a name that no bucket of this process has yet."""
    return f"bucket-{next(_names)}"


@contextmanager
def running(
    command: Sequence[str], log: Path, *, port: int, limit_s: float, environ: Mapping[str, str] | None = None
) -> Iterator[None]:
    with log.open("wb") as lines:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=lines, stderr=lines, env=environ)
    try:
        wait_until(lambda: _listens(port) or process.poll() is not None, what=Path(command[0]).name, limit_s=limit_s)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.kill()
        process.wait(timeout=30)


def _prefixes(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _listens(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0
