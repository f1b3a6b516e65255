"""The reads of one statement: every store at one version, by keys, by pages or by exports, with an account of each.

A scan begins with a page, which is all of a small store, or all that a LIMIT wants. The rest comes by exports, where
the role may have them and the servers have room; else by pages, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from understudy.client.core.values import ScanQuestion, SnapshotBounds
from understudy.client.errors import BadRequestError, ForbiddenError
from understudy.client.pages import Page, Row
from understudy.client.sync import Client, Snapshot, Store
from understudy.sql.exports import ExportedParts, NotExportedError, Part
from understudy.sql.narrowing import Access
from understudy.sql.table_columns import Table
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.questions.export.columns import PROBLEM
from understudy_shared.questions.scan.cursor import decode_scan_cursor
from understudy_shared.questions.scan.question import MAX_SCAN_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

LOOKUP_KEYS = 1_000
"""Number of keys that are looked up, and handed on, at once."""

Rows = Sequence[Mapping[str, Any]]


class Read:
    """The account of one scan of a table: how it was asked for, in how many requests, and what came."""

    def __init__(self, table: Table, access: Access) -> None:
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


class Reads:
    """The reads of one statement. The first takes a lease on the version that all of them read; `close` ends it."""

    def __init__(self, client: Client, stores: list[str], bounds: SnapshotBounds, unexported: set[str]) -> None:
        """Prepare reads of these stores; of all, if the list is empty. `bounds` name the version. `unexported` are
        stores whose exports were refused for good; more of them are added.
        """
        self._client, self._stores, self._bounds, self._unexported = client, stores, bounds, unexported
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._held: Snapshot | None = None
        self._is_closed = False
        self._exports: list[ExportedParts] = []
        self.account: list[Read] = []
        self.error: BaseException | None = None
        """The error that ended a read. DuckDB tells of it in words of its own."""

        self.version: int | None = None
        self.lease: Mapping[str, Any] = {}

    def pages(self, table: Table, access: Access, fields: list[str] | None) -> Iterator[Rows | pa.RecordBatch]:
        """Yield the rows of a table, some at once: as JSON, or as the batches of an export. What goes wrong is kept in
        `error`, too.
        """
        read = Read(table, access)
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
        """End the reads: who waits for rows gets an error. Any thread may call it."""
        self._is_closed = True
        for each in list(self._exports):
            each.close()

    def _pages(
        self, table: Table, store: Store[Any], access: Access, fields: list[str] | None
    ) -> Iterator[Rows | pa.RecordBatch]:
        if access.keys is not None:
            for start in range(0, len(access.keys), LOOKUP_KEYS):
                results = store.get_many([list(key) for key in access.keys[start : start + LOOKUP_KEYS]])
                for each in results:
                    self._observe(each.version)
                yield [each.raw for each in results if each.found]
            return
        question: ScanQuestion = {**access.question(), **({} if fields is None else {"fields": fields})}
        if access.prefix or store.name in self._unexported:
            yield from self._scanned(store, question)
            return
        first = next(self._scan(store, question))
        rows = [each.raw for each in first.items]
        yield rows
        if first.next_cursor is not None:
            begun = decode_scan_cursor(first.next_cursor).partition
            skipped = self._of_partition(store, question, begun, rows)
            parts = [Part(begun, skipped), *map(Part, range(begun + 1, table.partitions))]
            yield from self._rest(store, question, parts)

    def _rest(self, store: Store[Any], question: ScanQuestion, parts: list[Part]) -> Iterator[Rows | pa.RecordBatch]:
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

    def _scanned(self, store: Store[Any], question: ScanQuestion, skipped: int = 0) -> Iterator[Rows]:
        """Yield the rows of a scan behind the first ones."""
        for page in self._scan(store, question):
            rows = [each.raw for each in page.items[skipped:]]
            skipped = max(0, skipped - len(page.items))
            yield rows

    def _of_partition(self, store: Store[Any], question: ScanQuestion, partition: int, rows: Rows) -> int:
        """Return how many of the rows of a first page are of the partition in which it ended."""
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

    def _scan(self, store: Store[Any], question: ScanQuestion) -> Iterator[Page[Row[Any]]]:
        asked: ScanQuestion = {**question, "page_size": MAX_SCAN_ROWS}
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
