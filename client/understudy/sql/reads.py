"""The reads of one statement: every store at one version, by keys or by pages, with an account of each."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from understudy.client.core.values import ScanQuestion, SnapshotBounds
from understudy.client.sync import Client, Snapshot, Store
from understudy.sql.narrowing import Access
from understudy.sql.table_columns import Table
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.reads.scan_question import MAX_SCAN_ROWS

LOOKUP_KEYS = 1_000
"""Number of keys that are looked up, and handed on, at once."""

Rows = list[Mapping[str, Any]]


class Read:
    """The account of one scan of a table: how it was asked for, in how many requests, and what came."""

    def __init__(self, table: Table, access: Access) -> None:
        self.table, self.access = table, access
        self.requests = self.rows = self.problems = self.cut_lists = 0

    def __str__(self) -> str:
        return f"{self.table.name}: {self.access}, {self.rows} row{'' if self.rows == 1 else 's'}"

    def add(self, rows: Rows) -> None:
        """Count what came of a request."""
        self.requests += 1
        self.rows += len(rows)
        self.problems += sum("problem" in each for each in rows)
        self.cut_lists += sum(each.get("next_cursor") is not None for each in rows)


class Reads:
    """The reads of one statement. The first takes a lease on the version that all of them read; `close` ends it."""

    def __init__(self, client: Client, stores: list[str], bounds: SnapshotBounds) -> None:
        """Prepare reads of these stores; of all, if the list is empty. `bounds` name the version."""
        self._client, self._stores, self._bounds = client, stores, bounds
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._held: Snapshot | None = None
        self._is_closed = False
        self.account: list[Read] = []
        self.error: BaseException | None = None
        """The error that ended a read. DuckDB tells of it in words of its own."""

        self.version: int | None = None
        self.lease: Mapping[str, Any] = {}

    def pages(self, table: Table, access: Access, fields: list[str] | None) -> Iterator[Rows]:
        """Yield the rows of a table, some at once. What goes wrong is kept in `error`, too."""
        read = Read(table, access)
        self.account.append(read)
        try:
            for rows in self._pages(self._store(table.store), access, fields):
                read.add(rows)
                yield rows
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = self.error or error
            raise

    def close(self) -> None:
        """End the lease."""
        with self._lock:
            self._held, self._is_closed = None, True
            self._stack.close()

    def _pages(self, store: Store[Any], access: Access, fields: list[str] | None) -> Iterator[Rows]:
        if access.keys is not None:
            for start in range(0, len(access.keys), LOOKUP_KEYS):
                results = store.get_many([list(key) for key in access.keys[start : start + LOOKUP_KEYS]])
                for each in results:
                    self._observe(each.version)
                yield [each.raw for each in results if each.found]
            return
        question: ScanQuestion = {**access.question(), "limit": MAX_SCAN_ROWS}
        if fields is not None:
            question["fields"] = fields
        for page in store.scan(**question).pages():
            self._observe(page.version)
            yield [each.raw for each in page.items]

    def _store(self, name: str) -> Store[Any]:
        with self._lock:
            if self._is_closed:
                raise UnderstudyError("the statement has ended", where=name, fix="Take its rows inside of its block")
            if self._held is None:
                self._held = self._hold()
            return self._held.store(name)

    def _hold(self) -> Snapshot:
        held = self._stack.enter_context(
            self._client.snapshot(self._stores or None, holder="understudy sql", **self._bounds)
        )
        self.version, self.lease = held.version, held.lease
        return held

    def _observe(self, version: int) -> None:
        """Hold each answer to the version of the statement."""
        if version != self.version:
            what = f"an answer is of version {version}, and the statement reads version {self.version}"
            raise MixedVersionsError(
                what, fix="Run the statement again; if it happens again, it is a defect: report it"
            )


class MixedVersionsError(UnderstudyError):
    """An answer is of another version than the rest of the statement."""
