"""A checkpoint in an object store, by obstore (decisions 0036, 0076). What differs from store to store is an adapter's.

Rule: a reply's content, size and entity tag are of one moment, and a download goes on only while the tag is the same:
nothing is half-read. Requests that do not depend on each other are made at once. How calls are repeated is in
`store_calls.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import obstore
from obstore.exceptions import BaseError, PreconditionError

from understudy_node.checkpoint.files import FileStat, hashed_tag, mtime_ns, refuse_escape, rewritten, vanished
from understudy_node.checkpoint.repeating import RepeatBudget
from understudy_node.checkpoint.store_calls import StoreCalls, StoreLimits
from understudy_node.checkpoint.store_failures import StoreTerms, failure_of
from understudy_node.checkpoint.store_files import Store, StoreFiles
from understudy_shared.base.errors import CheckpointError

if TYPE_CHECKING:
    from obstore.store import RetryConfig


from dataclasses import dataclass

from understudy_node.checkpoint.files import too_large_to_read

COARSE_NS = 999_999_999
"""Replies give the time of the last write in whole seconds, cut off."""


PIECE_BYTES = 1 << 18
"""Bytes of a download that are handed over at once. A broken connection loses the rest of a piece."""


@dataclass(slots=True)
class Download:
    """One file on its way into `file`, piece by piece. `where` is for messages."""

    path: str
    file: BinaryIO
    max_bytes: int | None
    where: str
    terms: StoreTerms
    done: int = 0
    """The bytes that are in the file."""
    meta: Any = None
    """The object's metadata, as the download began."""

    def go_on(self, store: Any) -> Any:
        """Begin, or go on where the try before was cut. The object's metadata, once the file is whole."""
        if self.meta is None or self.done != self.meta["size"]:
            self._ask(store)
        return self.meta

    def _ask(self, store: Any) -> None:
        options: Any = {}
        if self.done:
            if not (tag := self.meta[self.terms.tag]):
                raise CheckpointError("The download was cut, and the store names no versions", where=self.where)
            options = {self.terms.condition: tag, "range": {"offset": self.done}}
        result = obstore.get(store, self.path, options=options)
        refuse_folder(result, self.terms)
        if not self.done:
            self.meta = result.meta
        size = self.meta["size"]
        if self.max_bytes is not None and size > self.max_bytes:
            raise too_large_to_read(self.where, size, self.max_bytes)
        for part in result.stream(min_chunk_size=PIECE_BYTES):
            self.file.write(part)
            self.done += len(part)
        if self.done != size:
            raise ConnectionError("kind: Short,")  # the library should have raised; the try counts as cut


def refuse_folder(found: Any, terms: StoreTerms) -> None:
    """Raise FileNotFoundError if the object only marks a folder."""
    if terms.folder_mark is not None and terms.folder_mark in found.attributes:
        raise FileNotFoundError


class ObjectStore(Store, Protocol):
    """The part of a reader that is specific to one kind of store. `endpoint` is known once it was opened."""

    terms: StoreTerms
    looked_in: str
    """The places where credentials were looked for when it was opened."""

    def open(self, client: dict[str, Any], retry: RetryConfig) -> Any:
        """Open the library's store of the checkpoint's folder, with the present credentials."""


class ObjectStoreFiles(StoreFiles[ObjectStore]):
    """A checkpoint in one store. A read makes one GET for each file, and another where that was cut."""

    def __init__(
        self, store: ObjectStore, *, limits: StoreLimits | None = None, budget: RepeatBudget | None = None
    ) -> None:
        """Ask nothing yet. `store` is opened again when it refuses the credentials."""
        super().__init__(store)
        self._limits = limits or StoreLimits()
        self._calls = StoreCalls(
            self.url,
            self._open,
            lambda error: failure_of(error, store.terms, store.looked_in),
            answers=(FileNotFoundError, PreconditionError),
            limits=self._limits,
            budget=budget,
        )

    def stat(self, path: str) -> FileStat | None:
        """Make one HEAD."""
        refuse_escape(path)
        try:
            return self._stat_of(self._calls.call("Cannot stat", path, lambda opened: self._head(opened, path)))
        except FileNotFoundError:
            return None

    def list(self, path: str) -> list[str] | None:
        """Make one request for each thousand names."""
        refuse_escape(path)
        found: Any = self._calls.call(
            "Cannot list", path, lambda opened: obstore.list_with_delimiter(opened, path or None)
        )
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        # An empty object that is called like its directory marks it, there and in the directory above.
        names = dict.fromkeys(each.rpartition("/")[2] for each in paths if each.strip("/") != path.strip("/"))
        return [*names] if paths else None

    def _download(self, path: str, file: BinaryIO, max_bytes: int | None) -> FileStat:
        refuse_escape(path)
        where = self._where(path)
        download = Download(path, file, max_bytes, where, self._store.terms)
        error = vanished(where)
        try:
            return self._stat_of(self._calls.call("Cannot read", path, download.go_on, progress=download))
        except FileNotFoundError:
            pass
        except PreconditionError:
            error = rewritten(where)
        raise error  # not from the library's error, whose text has the request's URL

    def _head(self, opened: Any, path: str) -> Any:
        if self._store.terms.folder_mark is None:
            return obstore.head(opened, path)
        found = obstore.get(opened, path, options={"head": True})  # the same request, and the reply's attributes
        refuse_folder(found, self._store.terms)
        return found.meta

    def _open(self) -> Any:
        limits = self._limits
        deadlines = {
            "connect_timeout": timedelta(milliseconds=limits.connect_ms),
            "read_timeout": timedelta(milliseconds=limits.stalled_ms),
            "timeout": timedelta(milliseconds=limits.request_ms),
        }
        try:
            # The library repeats each request for itself: the budget here is for all calls together.
            return self._store.open(deadlines, {"max_retries": 0})
        except (BaseError, ValueError):  # whose text may have any setting in it
            raise CheckpointError(
                "Cannot open the checkpoint's storage: the path in its URL, or a setting, is not understood",
                where=self.url,
                fix=self._store.terms.settings,
            ) from None

    def _stat_of(self, meta: Mapping[str, Any]) -> FileStat:
        tag = hashed_tag(meta[self._store.terms.tag])
        return FileStat(mtime_ns(meta["last_modified"]), meta["size"], tag, COARSE_NS)
