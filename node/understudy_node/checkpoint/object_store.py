"""A checkpoint in an object store, by obstore (decisions 0036, 0076). What differs from store to store is an adapter's.

Rule: a request has a deadline, a call a number of tries, and all calls share one budget of repeats. A reply's content,
size and entity tag are of one moment, and a download goes on only while the tag is the same: nothing is half-read.
Requests that do not depend on each other are made at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

import obstore
from obstore.exceptions import BaseError, PreconditionError

from understudy_node.checkpoint.download import MIN_PROGRESS_BYTES, Download, refuse_folder
from understudy_node.checkpoint.files import (
    DEFAULT_MAX_READ_BYTES,
    CheckpointFiles,
    Content,
    FetchMethod,
    FileStat,
    arriving_file,
    hashed_tag,
    mtime_ns,
    refuse_escape,
    rewritten,
    vanished,
)
from understudy_node.checkpoint.repeating import RepeatBudget, RepeatLimits, wait_ms
from understudy_node.checkpoint.store_failures import Meaning, StoreTerms, failure_of
from understudy_shared.base.errors import CheckpointError, UnderstudyError

if TYPE_CHECKING:
    from obstore.store import RetryConfig

T = TypeVar("T")
R = TypeVar("R")

PARALLEL = 8
"""Requests of one call that are under way at once; a commit needs four."""

COARSE_NS = 999_999_999
"""Replies give the time of the last write in whole seconds, cut off."""


class ObjectStore(Protocol):
    """The part of a reader that is specific to one kind of store. `url` names the checkpoint and has no secrets."""

    url: str
    terms: StoreTerms
    looked_in: str
    """The places where credentials were looked for when it was opened."""

    def open(self, client: dict[str, Any], retry: RetryConfig) -> Any:
        """Open the library's store of the checkpoint's folder, with the present credentials."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Deadlines of one request, how calls are repeated, and how often credentials may be read again."""

    connect_ms: int = 3_000
    stalled_ms: int = 5_000
    """No byte for so long ends a request: S3 answers within 200 ms nearly always."""
    request_ms: int = 60_000
    """All of a request; a download that was cut by it goes on where it was."""
    renew_ms: float = 5_000.0
    repeat: RepeatLimits = field(default_factory=RepeatLimits)


class ObjectStoreFiles(CheckpointFiles):
    """A checkpoint in one store."""

    def __init__(
        self, store: ObjectStore, *, limits: StoreLimits | None = None, budget: RepeatBudget | None = None
    ) -> None:
        """Open nothing yet. `store` is opened again when it refuses the credentials."""
        self._store = store
        self._limits = limits or StoreLimits()
        self._budget = budget or RepeatBudget()
        self._renewing = Lock()
        self._renewed_ms = _now_ms()
        self._opened = self._open()
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="objects")

    def __repr__(self) -> str:
        return f"ObjectStoreFiles({self.url!r})"

    @property
    def url(self) -> str:
        """The URL, which holds no secrets."""
        return self._store.url

    def stat(self, path: str) -> FileStat | None:
        """Make one HEAD."""
        refuse_escape(path)
        try:
            return self._stat_of(self._call("Cannot stat", path, lambda opened: self._head(opened, path)))
        except FileNotFoundError:
            return None

    def stats(self, paths: Sequence[str]) -> list[FileStat | None]:
        return _at_once(self._pool, self.stat, paths)

    def list(self, path: str) -> list[str] | None:
        """Make one request for each thousand names."""
        refuse_escape(path)
        found: Any = self._call("Cannot list", path, lambda opened: obstore.list_with_delimiter(opened, path or None))
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        # An empty object that is called like its directory marks it, there and in the directory above.
        names = dict.fromkeys(each.rpartition("/")[2] for each in paths if each.strip("/") != path.strip("/"))
        return [*names] if paths else None

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        """Make one GET."""
        return self._content(path, max_bytes).data

    def read_all(self, paths: Sequence[str], max_bytes: int = DEFAULT_MAX_READ_BYTES) -> Sequence[Content]:
        """Make one GET for each file."""
        return _at_once(self._pool, lambda path: self._content(path, max_bytes), paths)

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        """Make one GET, which goes on where it was cut."""
        with arriving_file(destination) as arriving, arriving.open("wb") as file:
            self._download(path, file, None)
        return "download"

    def _content(self, path: str, max_bytes: int) -> Content:
        file = BytesIO()
        stat = self._download(path, file, max_bytes)
        return Content(file.getvalue(), stat)

    def _download(self, path: str, file: BinaryIO, max_bytes: int | None) -> FileStat:
        refuse_escape(path)
        where = self._where(path)
        download = Download(path, file, max_bytes, where, self._store.terms)
        error = vanished(where)
        try:
            return self._stat_of(self._call("Cannot read", path, download.go_on, progress=download))
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

    def _call(self, what: str, path: str, attempt: Callable[[Any], T], progress: Download | None = None) -> T:
        """Make a request until it works, its limits are reached, or its failure is final.

        FileNotFoundError and PreconditionError pass, and errors of ours. Everything else becomes a CheckpointError.
        """
        # One loop, because each way out of it reads the counts that the others change.
        limits, began_ms, tries, is_renewed = self._limits.repeat, _now_ms(), 0, False
        self._budget.called()
        while True:
            tries, opened, before = tries + 1, self._opened, 0 if progress is None else progress.done
            try:
                return attempt(opened)
            except (FileNotFoundError, PreconditionError, UnderstudyError):
                raise
            except Exception as error:  # the library has classes of its own
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # of this machine's disk
                failure = failure_of(error, self._store.terms, self._store.looked_in)
            now_ms = _now_ms()
            if progress is not None and progress.done - before >= MIN_PROGRESS_BYTES:
                tries, began_ms = 1, now_ms
            if failure.meaning is Meaning.REFUSED and not is_renewed and self._renew(opened, now_ms):
                is_renewed = True
                continue
            if (
                failure.meaning is not Meaning.TRY_AGAIN
                or tries >= limits.max_tries
                or now_ms - began_ms >= limits.call_ms
                or not self._budget.take(now_ms)
            ):
                raise CheckpointError(f"{what}: {failure.reason}", where=self._where(path), fix=failure.fix)
            time.sleep(wait_ms(tries, limits, random.random) / 1000)  # jitter

    def _renew(self, refused: object, now_ms: float) -> bool:
        """Read the credentials again; False where that was done a moment ago, and by this store's."""
        with self._renewing:
            if self._opened is not refused:
                return True
            if now_ms - self._renewed_ms < self._limits.renew_ms:
                return False
            self._renewed_ms = now_ms
            self._opened = self._open()
            return True

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

    def _where(self, path: str) -> str:
        return f"{self.url}/{path}"


def _at_once(pool: ThreadPoolExecutor, call: Callable[[str], R], paths: Sequence[str]) -> list[R]:
    """Call for each path and return the results in the order of the paths. The first call runs in this thread."""
    others = [pool.submit(call, path) for path in paths[1:]]
    first = [call(path) for path in paths[:1]]
    return first + [other.result() for other in others]


def _now_ms() -> float:
    return time.monotonic() * 1000
