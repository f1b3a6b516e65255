"""Reads files from a store over the network, an object store or HDFS: several at once, piece by piece.

Rule: a call has limited tries and time, and all calls of a reader share one retry budget. So a store that is down or
throttles gets only slightly more requests than a healthy one. A client is reopened if necessary.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Generic, TypeVar

from understudy_node.checkpoint.files import (
    DEFAULT_MAX_READ_BYTES,
    CheckpointFiles,
    Content,
    FetchMethod,
    FileStat,
    arriving_file,
)
from understudy_shared.base.errors import CheckpointError, UnderstudyError
from understudy_shared.base.throttles import TokenBucket

T = TypeVar("T")
Client = TypeVar("Client")

ReadFile = Callable[[Path], str | None]
"""A function that returns the text of a file; None if the file does not exist."""

MIN_PROGRESS_BYTES = 1 << 16
"""A try that brought less than this counts as one that brought nothing."""

PARALLEL = 8
"""Requests of one call that are under way at once; a commit needs four."""


class Consequence(Enum):
    """The consequence of a failure."""

    TRY_AGAIN = "try-again"
    OPEN_AGAIN = "open-again"
    """Try again, by another connection: this one may never answer."""
    REFUSED = "refused"
    """The credentials, or what they allow: new ones may help."""
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class StorageFailure:
    """One failed request. `reason` and `fix` are fit for messages."""

    meaning: Consequence
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Deadlines of one request, the tries and waits of a call, and how often a client may be reopened."""

    connect_ms: int = 3_000
    stalled_ms: int = 5_000
    """A request ends after this time without a byte: S3 nearly always answers within 200 ms."""
    request_ms: int = 60_000
    """Time limit of a whole request; a download that it cuts resumes where it was."""
    renew_ms: float = 5_000.0
    max_tries: int = 4
    call_ms: float = 15_000.0
    """After this time a call is not tried again; a try in flight has a deadline of its own."""
    first_wait_ms: float = 100.0
    max_wait_ms: float = 2_000.0

    def wait_ms(self, tries: int, random: Callable[[], float]) -> float:
        """Return the wait after the try of that number (from 1): exponential, with full jitter."""
        longest_ms: float = min(self.max_wait_ms, self.first_wait_ms * 2.0 ** (tries - 1))
        return random() * longest_ms


class RepeatBudget:
    """A budget for retries: `share` of all calls, and `per_s` a second. It starts full with `most` retries."""

    def __init__(self, *, share: float = 0.1, per_s: float = 3.0, most: float = 20.0) -> None:
        self._share = share
        self._bucket = TokenBucket(per_s=per_s, burst=most, now_s=0)
        self._lock = Lock()

    def called(self) -> None:
        """Count a call's first try."""
        with self._lock:
            self._bucket.give(self._share)

    def take(self, now_ms: float) -> bool:
        """Whether one more try may be made now; it is taken from the budget."""
        with self._lock:
            return self._bucket.take(now_ms / 1000)


@dataclass(slots=True)
class Download:
    """One file on its way into `file`, which has `done` bytes so far. `where` is for messages."""

    path: str
    file: BinaryIO
    max_bytes: int | None
    where: str
    done: int = 0


class StoreFiles(CheckpointFiles, Generic[Client]):
    """A checkpoint in a store. `client` is the library's current one. A subclass adds the request for one file."""

    answers: tuple[type[Exception], ...] = (FileNotFoundError, UnderstudyError)
    """The errors of a request that answer the question, so that they pass."""

    def __init__(self, url: str, limits: StoreLimits, budget: RepeatBudget | None = None) -> None:
        """Open the store, and ask nothing yet. `url` has no secrets."""
        self.url = url
        self._limits, self._budget = limits, budget or RepeatBudget()
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="store")
        self._renewing = Lock()
        self._renewed_ms = _now_ms()
        self.client = self._open()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def stats(self, paths: Sequence[str]) -> list[FileStat | None]:
        return self._at_once(self.stat, paths)

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        return self._content(path, max_bytes).data

    def read_all(self, paths: Sequence[str], max_bytes: int = DEFAULT_MAX_READ_BYTES) -> Sequence[Content]:
        return self._at_once(lambda path: self._content(path, max_bytes), paths)

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        """Download the file, and resume where the download was cut."""
        with arriving_file(destination) as arriving, arriving.open("wb") as file:
            self._download(path, file, None)
        return "download"

    @abstractmethod
    def _open(self) -> Client:
        """Open a client with the present credentials."""

    @abstractmethod
    def _failure_of(self, error: Exception) -> StorageFailure:
        """Decide what an exception of the client means."""

    @abstractmethod
    def _download(self, path: str, file: BinaryIO, max_bytes: int | None) -> FileStat:
        """Write the whole file, or raise. Return its stat."""

    def _content(self, path: str, max_bytes: int) -> Content:
        file = BytesIO()
        stat = self._download(path, file, max_bytes)
        return Content(file.getvalue(), stat)

    def _at_once(self, call: Callable[[str], T], paths: Sequence[str]) -> list[T]:
        """Call for each path and return the results in their order. The first call runs in this thread."""
        others = [self._pool.submit(call, path) for path in paths[1:]]
        first = [call(path) for path in paths[:1]]
        return first + [other.result() for other in others]

    def _where(self, path: str) -> str:
        return f"{self.url}/{path}"

    def _call(self, what: str, path: str, attempt: Callable[[Client], T], download: Download | None = None) -> T:
        """Retry a request until it works, its limits are reached, or its failure is final.

        Answers and our own errors pass. Everything else becomes a CheckpointError.
        """
        # One loop, because each way out of it reads the counts that the others change.
        limits, began_ms, tries, is_renewed = self._limits, _now_ms(), 0, False
        self._budget.called()
        while True:
            tries, client, before = tries + 1, self.client, download.done if download else 0
            try:
                return attempt(client)
            except self.answers:
                raise
            except Exception as error:  # the library has classes of its own
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # of this machine's disk
                failure = self._failure_of(error)
            now_ms = _now_ms()
            if download is not None and download.done - before >= MIN_PROGRESS_BYTES:
                tries, began_ms = 1, now_ms
            if failure.meaning is Consequence.REFUSED and not is_renewed and self._renew(client, now_ms):
                is_renewed = True
                continue
            if failure.meaning is Consequence.OPEN_AGAIN:
                self._renew(client, now_ms)
            if (
                failure.meaning not in (Consequence.TRY_AGAIN, Consequence.OPEN_AGAIN)
                or tries >= limits.max_tries
                or now_ms - began_ms >= limits.call_ms
                or not self._budget.take(now_ms)
            ):
                raise CheckpointError(f"{what}: {failure.reason}", where=self._where(path), fix=failure.fix)
            time.sleep(limits.wait_ms(tries, random.random) / 1000)

    def _renew(self, failed: object, now_ms: float) -> bool:
        """Reopen the store with new credentials; False if it was reopened just now."""
        with self._renewing:
            if self.client is not failed:
                return True
            if now_ms - self._renewed_ms < self._limits.renew_ms:
                return False
            self._renewed_ms = now_ms
            self.client = self._open()
            return True


def _now_ms() -> float:
    return time.monotonic() * 1000


def text_of(path: Path) -> str | None:
    """Return the text of a file; None if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return None
