"""A checkpoint in S3, or in a store that speaks its protocol, by obstore (decision 0036).

Rule: a request has a deadline, a call a number of tries, and all calls share one budget of repeats. A reply's content,
size and entity tag are of one moment, and a download goes on only while the tag is the same: nothing is half-read.
Requests that do not depend on each other are made at once.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from understudy_node.checkpoint.files import (
    DEFAULT_MAX_READ_BYTES,
    Content,
    FetchMethod,
    FileStat,
    arriving_file,
    refuse_escape,
    rewritten,
    too_large_to_read,
    vanished,
)
from understudy_node.checkpoint.repeating import RepeatBudget, RepeatLimits, wait_ms
from understudy_node.checkpoint.s3_access import S3Access, parse_location, s3_access
from understudy_node.checkpoint.s3_failures import Failure, Meaning, failure_of
from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.errors import CheckpointError, UnderstudyError
from understudy_shared.base.extras import install_fix

try:
    import obstore
    from obstore.exceptions import PreconditionError
    from obstore.store import S3Store
except ImportError as error:
    raise CheckpointError(
        f"The library for S3 is not installed: {error}",
        fix=install_fix("node,s3"),
    ) from error

T = TypeVar("T")
R = TypeVar("R")

PARALLEL = 8
"""Requests of one call that are under way at once; a commit needs four."""

COARSE_NS = 999_999_999
"""Replies give the time of the last write in whole seconds, cut off."""

PIECE_BYTES = 1 << 18
"""What of a download is handed over at once: what was not is lost when the connection breaks."""

MIN_PROGRESS_BYTES = 1 << 16
"""A try of a download that brought less than this counts as one that brought nothing."""


@dataclass(frozen=True, slots=True)
class S3Limits:
    """Deadlines of one request, how calls are repeated, and how often credentials may be read again."""

    connect_ms: int = 3_000
    stalled_ms: int = 5_000
    """No byte for so long ends a request: S3 answers within 200 ms nearly always."""
    request_ms: int = 60_000
    """All of a request; a download that was cut by it goes on where it was."""
    renew_ms: float = 5_000.0
    repeat: RepeatLimits = field(default_factory=RepeatLimits)


class S3Files:
    """See `CheckpointFiles`. Every method may be called from any thread."""

    def __init__(
        self,
        url: str,
        *,
        limits: S3Limits | None = None,
        budget: RepeatBudget | None = None,
        access: Callable[[], S3Access] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`access` is asked again when the store refuses the credentials."""
        self._location = parse_location(url)
        self._limits = limits or S3Limits()
        self._budget = budget or RepeatBudget()
        self._access = access or _access_of_this_process
        self._clock = clock or SystemClock()
        self._renewing = Lock()
        self._renewed_ms = self._clock.monotonic_ms()
        self._store: Any = self._open()
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="s3")

    def __repr__(self) -> str:
        return f"S3Files({self._location.url!r})"

    @property
    def url(self) -> str:
        """The URL, which holds no secrets."""
        return self._location.url

    def stat(self, path: str) -> FileStat | None:
        """See `CheckpointFiles.stat`: one HEAD."""
        refuse_escape(path)
        try:
            return _stat_of(self._call("Cannot stat", path, lambda store: obstore.head(store, path)))
        except FileNotFoundError:
            return None

    def stats(self, paths: Sequence[str]) -> list[FileStat | None]:
        """See `CheckpointFiles.stats`."""
        return _at_once(self._pool, self.stat, paths)

    def list(self, path: str) -> list[str] | None:
        """See `CheckpointFiles.list`: one request for each thousand names."""
        refuse_escape(path)
        try:
            found: Any = self._call("Cannot list", path, lambda store: obstore.list_with_delimiter(store, path or None))
        except FileNotFoundError:
            return None
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        if not paths:
            return None
        # Hadoop marks an empty directory by an object of its name.
        return [each.rpartition("/")[2] for each in paths if each.strip("/") != path.strip("/")]

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        """See `CheckpointFiles.read`: one GET."""
        return self._content(path, max_bytes).data

    def read_all(self, paths: Sequence[str], max_bytes: int = DEFAULT_MAX_READ_BYTES) -> Sequence[Content]:
        """See `CheckpointFiles.read_all`: one GET for each file."""
        return _at_once(self._pool, lambda path: self._content(path, max_bytes), paths)

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        """See `CheckpointFiles.fetch`: one GET, which goes on where it was cut."""
        with arriving_file(destination) as arriving, arriving.open("wb") as file:
            self._download(path, file.write, None)
        return "download"

    def _content(self, path: str, max_bytes: int) -> Content:
        parts: list[bytes] = []
        stat = self._download(path, lambda part: parts.append(bytes(part)), max_bytes)
        return Content(b"".join(parts), stat)

    def _download(self, path: str, take: Callable[[Any], object], max_bytes: int | None) -> FileStat:
        """Hand the whole file to `take`, piece by piece."""
        refuse_escape(path)
        where = self._where(path)
        download = _Download(path, take, max_bytes, where)
        try:
            return self._call("Cannot read", path, download.go_on, progress=download)
        except FileNotFoundError:
            raise vanished(where) from None
        except PreconditionError:
            raise rewritten(where) from None

    def _call(self, what: str, path: str, attempt: Callable[[Any], T], progress: _Download | None = None) -> T:
        """Make a request until it works, its limits are reached, or its failure is final.

        FileNotFoundError and PreconditionError pass, and errors of ours. Everything else becomes a CheckpointError.
        """
        limits, began_ms, tries, is_renewed = self._limits.repeat, self._clock.monotonic_ms(), 0, False
        self._budget.called()
        while True:
            tries, store, before = tries + 1, self._store, 0 if progress is None else progress.done
            try:
                return attempt(store)
            except (FileNotFoundError, PreconditionError, UnderstudyError):
                raise
            except OSError as error:
                if error.errno is not None:
                    raise  # of this machine's disk
                failure = failure_of(error)
            except Exception as error:  # the library has classes of its own
                failure = failure_of(error)
            now_ms = self._clock.monotonic_ms()
            if progress is not None and progress.done - before >= MIN_PROGRESS_BYTES:
                tries, began_ms = 1, now_ms
            if failure.meaning is Meaning.REFUSED and not is_renewed and self._renew(store, now_ms):
                is_renewed = True
                continue
            if (
                failure.meaning is not Meaning.TRY_AGAIN
                or tries >= limits.max_tries
                or now_ms - began_ms >= limits.call_ms
                or not self._budget.take(now_ms)
            ):
                raise self._error(what, path, failure)
            time.sleep(wait_ms(tries, limits, random.random) / 1000)  # jitter

    def _renew(self, refused: object, now_ms: float) -> bool:
        """Read the credentials again; False where that was done a moment ago, and by this store's."""
        with self._renewing:
            if self._store is not refused:
                return True
            if now_ms - self._renewed_ms < self._limits.renew_ms:
                return False
            self._renewed_ms = now_ms
            self._store = self._open()
            return True

    def _open(self) -> object:
        access, limits = self._access(), self._limits
        self._looked_in = access.looked_in
        keywords: Any = access.config
        options: Any = {
            "connect_timeout": timedelta(milliseconds=limits.connect_ms),
            "read_timeout": timedelta(milliseconds=limits.stalled_ms),
            "timeout": timedelta(milliseconds=limits.request_ms),
        }
        if access.allow_http:
            options["allow_http"] = True
        try:
            return S3Store(
                self._location.bucket,
                prefix=self._location.prefix or None,
                client_options=options,
                retry_config={"max_retries": 0},  # the budget here is for all calls together
                **keywords,
            )
        except Exception as error:
            raise self._error("Cannot open the checkpoint's storage", "", failure_of(error)) from None

    def _where(self, path: str) -> str:
        return f"{self._location.url}/{path}"

    def _error(self, what: str, path: str, failure: Failure) -> CheckpointError:
        looked = f", looked in {self._looked_in}" if failure.has_no_credentials and self._looked_in else ""
        return CheckpointError(f"{what}: {failure.reason}{looked}", where=self._where(path), fix=failure.fix)


class _Download:
    """One file on its way. `done` are the bytes that were handed over."""

    def __init__(self, path: str, take: Callable[[Any], object], max_bytes: int | None, where: str) -> None:
        self.done = 0
        self._path = path
        self._take = take
        self._max_bytes = max_bytes
        self._where = where
        self._stat: FileStat | None = None
        self._tag: str | None = None

    def go_on(self, store: Any) -> FileStat:
        """Begin, or go on where the try before was cut, if the object is still the same."""
        if self._stat is not None and self.done == self._stat.size:
            return self._stat
        if self.done and not self._tag:
            raise CheckpointError("The download was cut, and the store names no versions", where=self._where)
        result = obstore.get(store, self._path, options=self._options())
        stat = _stat_of(result.meta)
        if self._max_bytes is not None and stat.size > self._max_bytes:
            raise too_large_to_read(self._where, stat.size, self._max_bytes)
        if self._stat is None or not self.done:
            self._stat, self._tag = stat, result.meta["e_tag"]
        for part in result.stream(min_chunk_size=PIECE_BYTES):
            self._take(part)
            self.done += len(part)
        if self.done != self._stat.size:
            raise ConnectionError("kind: Short,")  # the library should have raised; the try counts as cut
        return self._stat

    def _options(self) -> Any:
        return {"if_match": self._tag, "range": {"offset": self.done}} if self.done else {}


def _at_once(pool: ThreadPoolExecutor, call: Callable[[str], R], paths: Sequence[str]) -> list[R]:
    """One call for each path, in the order of the paths; the first runs in this thread."""
    others = [pool.submit(call, path) for path in paths[1:]]
    first = [call(path) for path in paths[:1]]
    return first + [other.result() for other in others]


def _stat_of(meta: Any) -> FileStat:
    written: datetime = meta["last_modified"]
    tag = meta["e_tag"]
    inode = int.from_bytes(blake2b(tag.encode(), digest_size=7).digest(), "big") if tag else 0
    return FileStat(round(written.timestamp() * 1_000_000) * 1_000, meta["size"], inode, COARSE_NS)


def _access_of_this_process() -> S3Access:
    return s3_access(os.environ, _text_of)


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
