"""Calls to a store of files: with deadlines, bounded repeats, and a client that is opened again when it must be.

Rule: a call has a number of tries and a time, and all calls of a reader share one budget of repeats.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, Protocol, TypeVar

from understudy_node.checkpoint.failure import Failure, Meaning
from understudy_node.checkpoint.repeating import RepeatBudget, RepeatLimits, wait_ms
from understudy_shared.base.errors import CheckpointError, UnderstudyError

S = TypeVar("S")
T = TypeVar("T")

MIN_PROGRESS_BYTES = 1 << 16
"""A try that brought less than this counts as one that brought nothing."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Deadlines of one request, how calls are repeated, and how often a client may be opened again."""

    connect_ms: int = 3_000
    stalled_ms: int = 5_000
    """No byte for so long ends a request: S3 answers within 200 ms nearly always."""
    request_ms: int = 60_000
    """All of a request; a download that was cut by it goes on where it was."""
    renew_ms: float = 5_000.0
    repeat: RepeatLimits = field(default_factory=RepeatLimits)


class Progress(Protocol):
    """A download that goes on where it was cut."""

    @property
    def done(self) -> int:
        """The bytes that are there."""


class StoreCalls(Generic[S]):
    """The calls of one reader. `opened` is the library's present client of the store."""

    def __init__(
        self,
        url: str,
        open_: Callable[[], S],
        failure_of: Callable[[Exception], Failure],
        *,
        answers: tuple[type[Exception], ...],
        limits: StoreLimits,
        budget: RepeatBudget | None,
    ) -> None:
        """Open the store. `answers` are the library's errors that answer the question, so that they pass."""
        self._url, self._open, self._failure_of = url, open_, failure_of
        self._answers: tuple[type[Exception], ...] = (*answers, UnderstudyError)
        self._limits, self._budget = limits, budget or RepeatBudget()
        self._renewing = Lock()
        self._renewed_ms = _now_ms()
        self.opened = open_()

    def call(self, what: str, path: str, attempt: Callable[[S], T], progress: Progress | None = None) -> T:
        """Make a request until it works, its limits are reached, or its failure is final.

        What is an answer passes, and errors of ours. Everything else becomes a CheckpointError.
        """
        # One loop, because each way out of it reads the counts that the others change.
        limits, began_ms, tries, is_renewed = self._limits.repeat, _now_ms(), 0, False
        self._budget.called()
        while True:
            tries, opened, before = tries + 1, self.opened, 0 if progress is None else progress.done
            try:
                return attempt(opened)
            except self._answers:
                raise
            except Exception as error:  # the library has classes of its own
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # of this machine's disk
                failure = self._failure_of(error)
            now_ms = _now_ms()
            if progress is not None and progress.done - before >= MIN_PROGRESS_BYTES:
                tries, began_ms = 1, now_ms
            if failure.meaning is Meaning.REFUSED and not is_renewed and self._renew(opened, now_ms):
                is_renewed = True
                continue
            if failure.meaning is Meaning.OPEN_AGAIN:
                self._renew(opened, now_ms)
            if (
                failure.meaning not in (Meaning.TRY_AGAIN, Meaning.OPEN_AGAIN)
                or tries >= limits.max_tries
                or now_ms - began_ms >= limits.call_ms
                or not self._budget.take(now_ms)
            ):
                raise CheckpointError(f"{what}: {failure.reason}", where=f"{self._url}/{path}", fix=failure.fix)
            time.sleep(wait_ms(tries, limits, random.random) / 1000)  # jitter

    def _renew(self, failed: object, now_ms: float) -> bool:
        """Open the store again, with new credentials; False where that was done a moment ago, and by this store's."""
        with self._renewing:
            if self.opened is not failed:
                return True
            if now_ms - self._renewed_ms < self._limits.renew_ms:
                return False
            self._renewed_ms = now_ms
            self.opened = self._open()
            return True


def _now_ms() -> float:
    return time.monotonic() * 1000
