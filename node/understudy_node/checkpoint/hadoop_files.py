"""A checkpoint in HDFS (decision 0081).

Rule: a file is read between two equal stats, for HDFS knows no conditions: what was replaced meanwhile is read again,
and a download that was cut goes on only in the same file. Folders are not files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from understudy_node.checkpoint.failure import Failure
from understudy_node.checkpoint.files import FileStat, refuse_escape, rewritten, too_large_to_read, vanished
from understudy_node.checkpoint.repeating import RepeatBudget
from understudy_node.checkpoint.store_calls import StoreCalls, StoreLimits
from understudy_node.checkpoint.store_files import Store, StoreFiles

COARSE_NS = 999_999
"""Times are those of the close of a file, in milliseconds, cut off. A rename keeps them."""

RENEW_MS = 10_000.0
"""Time between two connections. A client of the library has a thread for each core, and is kept for a while."""


@dataclass(frozen=True, slots=True)
class HadoopStatus:
    """The status of a path, as HDFS reports it. `file_id` is 0 where the client does not tell it."""

    modified_ms: int
    size: int
    file_id: int
    is_folder: bool

    def stat(self) -> FileStat:
        """Return the identity of the file."""
        return FileStat(self.modified_ms * 1_000_000, self.size, self.file_id, COARSE_NS)


class HadoopClient(Protocol):
    """A connection to HDFS. Paths are absolute; FileNotFoundError is an answer, everything else a failure."""

    def status(self, path: str) -> HadoopStatus:
        """Return the status of a file or folder."""

    def names(self, path: str) -> list[str] | None:
        """List a folder; None if it is a file."""

    def read(self, path: str, offset: int, size: int) -> Iterator[bytes]:
        """Read the file of that size from `offset` to its end, piece by piece."""


class HadoopStore(Store, Protocol):
    """The place at which HDFS is asked. `endpoint` is empty: HDFS tells no time."""

    root: str
    """The checkpoint's absolute path; empty for all of the file system."""

    def open(self, limits: StoreLimits) -> HadoopClient:
        """Open a connection with the present credentials. The next one may be to another NameNode."""

    def failure_of(self, error: Exception) -> Failure:
        """Decide what an exception of a connection means."""


class HadoopFiles(StoreFiles[HadoopStore]):
    """A checkpoint in HDFS. A read makes four requests for each file: stat, open, read, stat."""

    def __init__(
        self, store: HadoopStore, *, limits: StoreLimits | None = None, budget: RepeatBudget | None = None
    ) -> None:
        """Ask nothing yet."""
        super().__init__(store)
        limits = limits or StoreLimits(renew_ms=RENEW_MS)
        self._calls = StoreCalls[HadoopClient](
            store.url,
            lambda: store.open(limits),
            store.failure_of,
            answers=(FileNotFoundError,),
            limits=limits,
            budget=budget,
        )

    def stat(self, path: str) -> FileStat | None:
        """Make one request."""
        full = self._full(path)
        try:
            found = self._calls.call("Cannot stat", path, lambda client: client.status(full))
        except FileNotFoundError:
            return None
        return None if found.is_folder else found.stat()

    def list(self, path: str) -> list[str] | None:
        """Make one request for each thousand names."""
        full = self._full(path)
        try:
            return self._calls.call("Cannot list", path, lambda client: client.names(full))
        except FileNotFoundError:
            return None

    def _download(self, path: str, file: BinaryIO, max_bytes: int | None) -> FileStat:
        download = _Download(self._full(path), file, max_bytes, self._where(path))
        try:
            return self._calls.call("Cannot read", path, download.go_on, progress=download)
        except FileNotFoundError:
            raise vanished(self._where(path)) from None

    def _full(self, path: str) -> str:
        refuse_escape(path)
        return f"{self._store.root}/{path}".rstrip("/") or "/"


@dataclass(slots=True)
class _Download:
    """One file on its way into `file`. `where` is for messages."""

    path: str
    file: BinaryIO
    max_bytes: int | None
    where: str
    done: int = 0
    """The bytes that are in the file."""
    found: HadoopStatus | None = None
    """The status of the file when the download began."""

    def go_on(self, client: HadoopClient) -> FileStat:
        """Begin, or go on where the try before was cut. Return the stat of the file, which is whole."""
        found = self._same(client)
        if self.max_bytes is not None and found.size > self.max_bytes:
            raise too_large_to_read(self.where, found.size, self.max_bytes)
        for part in client.read(self.path, self.done, found.size) if self.done < found.size else ():
            self.file.write(part)
            self.done += len(part)
            if self.done > found.size:
                break
        found = self._same(client)
        if self.done != found.size:
            raise ConnectionError("there were more or fewer bytes")
        return found.stat()

    def _same(self, client: HadoopClient) -> HadoopStatus:
        """Return the status of the file, which must be the one whose download began."""
        found = client.status(self.path)
        if found.is_folder:
            raise FileNotFoundError(self.path)
        if self.found is None:
            self.found = found
        elif found != self.found:
            raise rewritten(self.where)
        return found
