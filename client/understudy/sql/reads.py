"""The reads of one statement: every store at one version, by keys, by pages or by exports, with an account of each.

A scan begins with a page, which is enough for a small store or a LIMIT. The rest comes by exports, two at a time, if
the role allows them and the servers have room; else by pages, too. The first export imports pyarrow.

Rule: each row comes once. An export that is cut resumes after its last cursor; without one it starts again and skips
the rows that have come: version and order are the same.
"""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty, Full, Queue
from time import sleep
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from understudy.calls.export_streams import ExportPiece, may_pass, read_arrow
from understudy.calls.http_client import STREAM_TIMEOUT_S, ReportedProblemError, StreamBody
from understudy.client.core.scans import Question
from understudy.client.core.values import RowsQuestion, SnapshotBounds
from understudy.client.errors import (
    BadRequestError,
    ForbiddenError,
    OverloadedError,
    UnavailableError,
    UnreachableError,
)
from understudy.client.pages import Page, Row
from understudy.client.sync import Client, Snapshot, Store
from understudy.sql.tables import AccessPath, Table
from understudy.typed.frames import CutError
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.questions.export.columns import PROBLEM
from understudy_shared.questions.scan.question import MAX_SCAN_ROWS, decode_scan_cursor

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


class PartitionRead(NamedTuple):
    """A partition to read, without its first rows."""

    partition: int
    skipped: int = 0


class NotExportedError(UnderstudyError):
    """An export could not begin: the rows of `parts` have to be read by pages."""

    def __init__(self, error: UnderstudyError, parts: Iterable[PartitionRead] = ()) -> None:
        super().__init__(error.what, where=error.where, fix=error.fix)
        self.cause, self.parts = error, tuple(parts)


class ExportedParts:
    """The rows of some partitions, in no order between them. One thread iterates; `close` may be called by any."""

    def __init__(
        self, store: Store[Any], question: RowsQuestion, parts: Iterable[PartitionRead], observe: Callable[[int], None]
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
        """Yield batches. Raises NotExportedError after the last one available, and errors of the server."""
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
        """Wait for an item from a thread. Raises UnderstudyError after `close`: no more items come."""
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

    def _batches(self, part: PartitionRead) -> Iterator[pa.RecordBatch]:
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
            except (CutError, ReportedProblemError, NotExportedError) as error:
                attempts = ATTEMPTS if place.taken > before else attempts - 1
                has_begun = place.taken > part.skipped or attempts < ATTEMPTS - 1
                is_refused = isinstance(error, NotExportedError)
                if self._is_closed or attempts <= 0 or not _may_pass(error) or (is_refused and not has_begun):
                    raise self._given_up(error, PartitionRead(part.partition, place.taken)) from None
            place.begin_again()
            sleep(FIRST_PAUSE_S * 2 ** (ATTEMPTS - attempts - 1))

    def _given_up(self, error: UnderstudyError, left: PartitionRead) -> UnderstudyError:
        if isinstance(error, NotExportedError):
            return NotExportedError(error, [left])
        what = f"the rows of {self._store.name} broke off: {error.what}"
        return UnderstudyError(what, where=f"partition {left.partition}", fix=error.fix or "Run the statement again")

    def _pieces(self, asked: Question, cursor: str | None) -> Iterator[ExportPiece]:
        """Yield the batches of one export. Raises NotExportedError if it does not begin."""
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

    def new(self, piece: ExportPiece) -> Iterator[pa.RecordBatch]:
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


LOOKUP_KEYS = 1_000
"""Number of keys that are looked up, and handed on, at once."""

Rows = Sequence[Mapping[str, Any]]


class ReadStatistics:
    """Statistics of one scan of a table: how it was read, in how many requests, and what came."""

    def __init__(self, table: Table, access: AccessPath) -> None:
        self.table, self.access = table, access
        self.requests = self.rows = self.exported = self.problems = self.cut_lists = 0

    def __str__(self) -> str:
        exported = f", {self.exported} of them exported" if self.exported else ""
        return f"{self.table.name}: {self.access}, {self.rows} row{'' if self.rows == 1 else 's'}{exported}"

    def add(self, rows: Rows | pa.RecordBatch) -> None:
        """Count what came of a request, or of an export."""
        if not isinstance(rows, Sequence):
            self.rows += rows.num_rows
            self.exported += rows.num_rows
            self.problems += _known(rows, PROBLEM)
            self.cut_lists += _known(rows, "next_cursor")
            return
        self.requests += 1
        self.rows += len(rows)
        self.problems += sum("problem" in each for each in rows)
        self.cut_lists += sum(each.get("next_cursor") is not None for each in rows)


def _known(batch: pa.RecordBatch, name: str) -> int:
    """Return how many values of a column are not null; 0 without the column."""
    at = batch.schema.get_field_index(name)
    return 0 if at < 0 else batch.num_rows - batch.column(at).null_count


class StatementReads:
    """The reads of one statement. The first takes a lease on the version that all of them read; `close` ends it."""

    def __init__(self, client: Client, stores: list[str], bounds: SnapshotBounds, unexported: set[str]) -> None:
        """Prepare reads of these stores; of all, if the list is empty. `bounds` name the version. `unexported` are
        stores that refused exports for good; more are added.
        """
        self._client, self._stores, self._bounds, self._unexported = client, stores, bounds, unexported
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._held: Snapshot | None = None
        self._is_closed = False
        self._exports: list[ExportedParts] = []
        self.account: list[ReadStatistics] = []
        self.error: BaseException | None = None
        """The error that ended a read. DuckDB tells of it in words of its own."""

        self.version: int | None = None
        self.lease: Mapping[str, Any] = {}

    def pages(self, table: Table, access: AccessPath, fields: list[str] | None) -> Iterator[Rows | pa.RecordBatch]:
        """Yield the rows of a table in chunks: as JSON, or as the batches of an export. A failure is also kept in
        `error`.
        """
        read = ReadStatistics(table, access)
        self.account.append(read)
        try:
            for rows in self._pages(table, self._store(table.store), access, fields):
                read.add(rows)
                yield rows
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = self.error or error
            raise

    def close(self) -> None:
        """End the exports, and the lease."""
        self.cancel()
        with self._lock:
            self._held = None
            self._stack.close()

    def cancel(self) -> None:
        """End the reads: waiting readers get an error. Any thread may call it."""
        self._is_closed = True
        for each in list(self._exports):
            each.close()

    def _pages(
        self, table: Table, store: Store[Any], access: AccessPath, fields: list[str] | None
    ) -> Iterator[Rows | pa.RecordBatch]:
        if access.keys is not None:
            for start in range(0, len(access.keys), LOOKUP_KEYS):
                results = store.get_many([list(key) for key in access.keys[start : start + LOOKUP_KEYS]])
                for each in results:
                    self._observe(each.version)
                yield [each.raw for each in results if each.found]
            return
        question: RowsQuestion = {**access.question(), **({} if fields is None else {"fields": fields})}
        if access.prefix or store.name in self._unexported:
            yield from self._scanned(store, question)
            return
        first = next(self._scan(store, question))
        rows = [each.raw for each in first.items]
        yield rows
        if first.next_cursor is not None:
            begun = decode_scan_cursor(first.next_cursor).partition
            skipped = self._of_partition(store, question, begun, rows)
            parts = [PartitionRead(begun, skipped), *map(PartitionRead, range(begun + 1, table.partitions))]
            yield from self._rest(store, question, parts)

    def _rest(
        self, store: Store[Any], question: RowsQuestion, parts: list[PartitionRead]
    ) -> Iterator[Rows | pa.RecordBatch]:
        """Yield the rows of partitions by exports; by pages where those are refused."""
        exports = ExportedParts(store, question, parts, self._observe)
        self._exports.append(exports)
        try:
            yield from exports
        except NotExportedError as error:
            if isinstance(error.cause, (ForbiddenError, BadRequestError)):
                self._unexported.add(store.name)
            for part in error.parts:
                yield from self._scanned(store, {**question, "partition": part.partition}, part.skipped)
        finally:
            exports.close()
            self._exports.remove(exports)

    def _scanned(self, store: Store[Any], question: RowsQuestion, skipped: int = 0) -> Iterator[Rows]:
        """Yield the rows of a scan after the first ones."""
        for page in self._scan(store, question):
            rows = [each.raw for each in page.items[skipped:]]
            skipped = max(0, skipped - len(page.items))
            yield rows

    def _of_partition(self, store: Store[Any], question: RowsQuestion, partition: int, rows: Rows) -> int:
        """Return how many rows of a first page are of its last partition."""
        if partition == 0 or not rows:
            return len(rows)
        last, number = rows[-1]["key"], 0
        for page in self._scan(store, {**question, "partition": partition}):
            keys = [each.raw["key"] for each in page.items]
            if last in keys:
                return number + keys.index(last) + 1
            number += len(keys)
            if number >= len(rows):
                break
        return 0

    def _scan(self, store: Store[Any], question: RowsQuestion) -> Iterator[Page[Row[Any]]]:
        asked: RowsQuestion = {**question, "page_size": MAX_SCAN_ROWS}
        for page in store.scan(**asked).pages():
            self._observe(page.version)
            yield page

    def _store(self, name: str) -> Store[Any]:
        with self._lock:
            if self._is_closed:
                raise _ended()
            if self._held is None:
                self._held = self._hold()
            return self._held.store(name)

    def _hold(self) -> Snapshot:
        held = self._stack.enter_context(self._client.snapshot(self._stores or None, **self._bounds))
        self.version, self.lease = held.version, held.lease
        return held

    def _observe(self, version: int) -> None:
        """Hold each answer to the version of the statement."""
        if self._is_closed:
            raise _ended()
        if version != self.version:
            what = f"an answer is of version {version}, and the statement reads version {self.version}"
            raise MixedVersionsError(
                what, fix="Run the statement again; if it happens again, it is a defect: report it"
            )


def _ended() -> UnderstudyError:
    return UnderstudyError("the statement has ended", where="SQL", fix="Take its rows inside of its block")


class MixedVersionsError(UnderstudyError):
    """An answer is of another version than the rest of the statement."""
