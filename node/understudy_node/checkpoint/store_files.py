"""The part of a reader that object stores and HDFS share: files are asked for over a network, several of them at once,
and downloaded piece by piece.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Generic, Protocol, TypeVar

from understudy_node.checkpoint.files import (
    DEFAULT_MAX_READ_BYTES,
    CheckpointFiles,
    Content,
    FetchMethod,
    FileStat,
    arriving_file,
)

PARALLEL = 8
"""Requests of one call that are under way at once; a commit needs four."""

R = TypeVar("R")


class Store(Protocol):
    """The part of a reader that is specific to one kind of store."""

    url: str
    """The URL of the checkpoint, which has no secrets."""

    @property
    def endpoint(self) -> str:
        """The URL at which the store is asked, which may hold secrets; empty if it is not known."""


S = TypeVar("S", bound=Store)


class StoreFiles(CheckpointFiles, Generic[S]):
    """A checkpoint in a store. A reader adds how one file is asked for."""

    def __init__(self, store: S) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="store")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        """The URL, which holds no secrets."""
        return self._store.url

    @property
    def endpoint(self) -> str:
        """See `Store.endpoint`."""
        return self._store.endpoint

    def stats(self, paths: Sequence[str]) -> list[FileStat | None]:
        return self._at_once(self.stat, paths)

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        return self._content(path, max_bytes).data

    def read_all(self, paths: Sequence[str], max_bytes: int = DEFAULT_MAX_READ_BYTES) -> Sequence[Content]:
        return self._at_once(lambda path: self._content(path, max_bytes), paths)

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        """Download the file, and go on where the download was cut."""
        with arriving_file(destination) as arriving, arriving.open("wb") as file:
            self._download(path, file, None)
        return "download"

    @abstractmethod
    def _download(self, path: str, file: BinaryIO, max_bytes: int | None) -> FileStat:
        """Write the whole file, or raise. Return its stat."""

    def _content(self, path: str, max_bytes: int) -> Content:
        file = BytesIO()
        stat = self._download(path, file, max_bytes)
        return Content(file.getvalue(), stat)

    def _at_once(self, call: Callable[[str], R], paths: Sequence[str]) -> list[R]:
        """Call for each path and return the results in their order. The first call runs in this thread."""
        others = [self._pool.submit(call, path) for path in paths[1:]]
        first = [call(path) for path in paths[:1]]
        return first + [other.result() for other in others]

    def _where(self, path: str) -> str:
        return f"{self.url}/{path}"
