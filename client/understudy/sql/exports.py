"""The rows of a store as Arrow, partition after partition, by two exports at a time. pyarrow is imported by the first.

Rule: each row comes once. An export that is cut goes on behind its last cursor; without one it begins again and leaves
out as many rows as have come, since its version and its order are the same.
"""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, Full, Queue
from time import sleep
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from understudy.calls.export_streams import Piece, may_pass, read_arrow
from understudy.calls.http_client import STREAM_TIMEOUT_S, ServerProblemError, StreamBody
from understudy.client.core.scans import Question
from understudy.client.core.values import ScanQuestion
from understudy.client.errors import OverloadedError, UnavailableError, UnreachableError
from understudy.client.sync import Store
from understudy.typed.arrow_records import CutError
from understudy_shared.base.errors import UnderstudyError

if TYPE_CHECKING:
    import pyarrow as pa

    from understudy.client.transports.base import Stream

EXPORTS: Final = 2
"""Number of exports at a time: a server has as many places by default."""

HELD_BATCHES: Final = 4
"""Number of batches, of up to 4 MiB each, that wait for their reader."""

ATTEMPTS: Final = 6
"""Number of attempts in a row that bring no rows."""

FIRST_PAUSE_S: Final = 0.25
MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"
_READ_BYTES: Final = 1024 * 1024
_LOOK_S: Final = 0.1


class Part(NamedTuple):
    """A partition to read, without its first rows."""

    partition: int
    skipped: int = 0


class NotExportedError(UnderstudyError):
    """An export could not begin: the rows of `parts` have to be read by pages."""

    def __init__(self, error: UnderstudyError, parts: Iterable[Part] = ()) -> None:
        super().__init__(error.what, where=error.where, fix=error.fix)
        self.cause, self.parts = error, tuple(parts)


class ExportedParts:
    """The rows of some partitions, in no order between them. One thread iterates; `close` may be called by any."""

    def __init__(
        self, store: Store[Any], question: ScanQuestion, parts: Iterable[Part], observe: Callable[[int], None]
    ) -> None:
        """Prepare to read. `observe` gets the version of each export, and may refuse it."""
        self._store, self._question, self._observe = store, question, observe
        self._waiting = deque(parts)
        self._held: Queue[pa.RecordBatch | BaseException | None] = Queue(HELD_BATCHES)
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield batches. Raises NotExportedError behind the last one that could be had, and errors of the server."""
        refused: list[NotExportedError] = []
        self._start()
        try:
            left = len(self._threads)
            while left:
                found = self._next()
                if isinstance(found, NotExportedError):
                    refused.append(found)
                elif isinstance(found, BaseException):
                    raise found
                elif found is not None:
                    yield found
                    continue
                left -= 1
            if refused and (parts := [part for each in refused for part in each.parts] + [*self._waiting]):
                raise NotExportedError(refused[-1], parts)
        finally:
            self.close()
            self._join()

    def close(self) -> None:
        """End the exports. Who waits for rows gets an error."""
        with self._lock:
            self._is_closed = True
            streams = list(self._streams)
        for stream in streams:
            stream.close()

    def _next(self) -> pa.RecordBatch | BaseException | None:
        """Wait for what a thread has put. Raises UnderstudyError after `close`: threads put nothing more."""
        while not self._is_closed:
            with suppress(Empty):
                return self._held.get(timeout=_LOOK_S)
        raise UnderstudyError("the exports were closed", where=self._store.name, fix="Run the statement again")

    def _start(self) -> None:
        for _ in range(min(EXPORTS, len(self._waiting))):
            thread = threading.Thread(target=self._work, name="understudy-sql-export", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _join(self) -> None:
        for thread in self._threads:
            while thread.is_alive():
                with suppress(Empty):
                    self._held.get_nowait()
                thread.join(_LOOK_S)

    # ---- in a thread of its own

    def _work(self) -> None:
        end: BaseException | None = None
        try:
            while not self._is_closed:
                try:
                    part = self._waiting.popleft()
                except IndexError:
                    break
                for batch in self._batches(part):
                    self._put(batch)
        except BaseException as error:  # it belongs to the thread that iterates
            end = error
        self._put(end)

    def _put(self, item: pa.RecordBatch | BaseException | None) -> None:
        while not self._is_closed:
            try:
                self._held.put(item, timeout=_LOOK_S)
                return
            except Full:
                continue

    def _batches(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a partition, by as many exports as it takes."""
        asked = Question(self._store.reader, "export", {**self._question, "partition": part.partition})
        place = _Place(part.skipped)
        attempts = ATTEMPTS
        while True:
            before = place.taken
            try:
                for piece in self._pieces(asked, place.cursor):
                    yield from place.new(piece)
                return
            except (CutError, ServerProblemError, NotExportedError) as error:
                attempts = ATTEMPTS if place.taken > before else attempts - 1
                has_begun = place.taken > part.skipped or attempts < ATTEMPTS - 1
                is_refused = isinstance(error, NotExportedError)
                if self._is_closed or attempts <= 0 or not _may_pass(error) or (is_refused and not has_begun):
                    raise self._given_up(error, Part(part.partition, place.taken)) from None
            place.begin_again()
            sleep(FIRST_PAUSE_S * 2 ** (ATTEMPTS - attempts - 1))

    def _given_up(self, error: UnderstudyError, left: Part) -> UnderstudyError:
        if isinstance(error, NotExportedError):
            return NotExportedError(error, [left])
        what = f"the rows of {self._store.name} broke off: {error.what}"
        return UnderstudyError(what, where=f"partition {left.partition}", fix=error.fix or "Run the statement again")

    def _pieces(self, asked: Question, cursor: str | None) -> Iterator[Piece]:
        """Yield what one export brings. Raises NotExportedError where it does not begin."""
        driver = self._store.driver
        try:
            opened = driver.run(asked.stream("arrow", MEDIA_TYPE, cursor, driver.state.deadline_s(None, is_scan=True)))
        except UnderstudyError as error:
            raise NotExportedError(error) from None
        with self._kept(opened.stream):
            self._observe(int(opened.headers.get("understudy-version", "-1")))
            with io.BufferedReader(StreamBody(opened.stream, STREAM_TIMEOUT_S), _READ_BYTES) as body:
                yield from read_arrow(body)

    @contextmanager
    def _kept(self, stream: Stream) -> Iterator[None]:
        """Keep a stream where `close` finds it."""
        with self._lock:
            self._streams.add(stream)
            is_late = self._is_closed
        try:
            if is_late:
                raise CutError("the statement has ended")
            yield
        finally:
            with self._lock:
                self._streams.discard(stream)
            stream.close()


class _Place:
    """A place in a partition: how many of its rows are taken, and where the next export begins."""

    def __init__(self, taken: int) -> None:
        self.taken = taken
        self.cursor: str | None = None
        self._at = self._at_cursor = 0

    def new(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece that have not come before."""
        for batch in piece.content:
            self._at += batch.num_rows
            number = min(batch.num_rows, self._at - self.taken)
            if number > 0:
                self.taken = self._at
                yield batch.slice(batch.num_rows - number)
        if piece.cursor is not None:
            self.cursor, self._at_cursor = piece.cursor, self._at

    def begin_again(self) -> None:
        """Count from the cursor: the next export begins there."""
        self._at = self._at_cursor


def _may_pass(error: UnderstudyError) -> bool:
    if isinstance(error, NotExportedError):
        return isinstance(error.cause, (OverloadedError, UnavailableError, UnreachableError))
    return may_pass(error)
