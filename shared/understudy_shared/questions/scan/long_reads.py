"""Long reads, which may return many rows: their limits, their counts, and whether their clients are still connected.

They have limits of their own, so that many scans do not keep lookups from being answered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from understudy_shared.http.edge import Receive
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.scan.page import Access, PartPage, Place, ReadPart, Room
from understudy_shared.reads.export_format import ExportFormat

SLICE_S = 0.0005
"""Time of one slice."""

T = TypeVar("T")


MAX_WAITING_PARTS = 64
"""Limit on the parts of exports that wait for their turn."""

TURN_S = 30.0
"""Longest time for which one of them waits."""

MAX_LOOKING = 64
"""Limit on the reads that look for a version: one that has to be opened takes a moment."""


class LongReads:
    """The long reads of a process. By access, `read` counts the keys read and `found` the rows found. By format of the
    export, `exported` counts the rows sent and `exported_bytes` the bytes.
    """

    def __init__(self, max_in_flight: int = 4, max_exports: int = 2) -> None:
        self.in_flight = 0
        self._waiting = Counter[bool]()
        self.exports_in_flight = 0
        self.exports_begun: Counter[ExportFormat] = Counter()
        self.exported: Counter[ExportFormat] = Counter()
        self.exported_bytes: Counter[ExportFormat] = Counter()
        self.changes_sent = 0
        """Number of changes that reads of changes sent."""
        self._max_exports = max_exports
        self._parts = asyncio.Semaphore(max_exports)
        self._waiting_parts = 0
        self.read: Counter[Access] = Counter()
        self.found: Counter[Access] = Counter()
        self.max_in_flight = max_in_flight
        self._turn = asyncio.Lock()

    def begun(self) -> _Begun:
        """Return a context in which one more read is in flight. Entering it raises an overloaded problem above the
        limit.
        """
        return _Begun(self)

    @contextmanager
    def waiting(self, *, is_long: bool) -> Iterator[None]:
        """Count one more read that looks for its version, or waits long for it (`wait_ms`). It takes no place from
        those that read. As many may wait long as may read. Raises an overloaded problem above the limits.
        """
        if self._waiting[is_long] >= (self.max_in_flight if is_long else MAX_LOOKING):
            detail = f"{self._waiting[is_long]} scans and exports wait for a version"
            raise ProblemError(Problem(ProblemType.OVERLOADED, detail, where="wait_ms", fix="Retry after a second"))
        self._waiting[is_long] += 1
        try:
            yield
        finally:
            self._waiting[is_long] -= 1

    @contextmanager
    def begun_export(self, form: ExportFormat) -> Iterator[None]:
        """Count one more export in flight. Raises an overloaded problem above the limit."""
        with self.begun_changes():
            self.exports_begun[form] += 1
            yield

    @contextmanager
    def begun_changes(self) -> Iterator[None]:
        """Count one more read of changes in flight, which takes a place of exports. Raises an overloaded problem above
        their limit.
        """
        if self.exports_in_flight >= self._max_exports:
            detail = f"{self.exports_in_flight} exports are in flight, as many as max_exports_in_flight"
            raise ProblemError(Problem(ProblemType.OVERLOADED, detail, fix="Retry when another one has ended"))
        self.exports_in_flight += 1
        try:
            yield
        finally:
            self.exports_in_flight -= 1

    @asynccontextmanager
    async def part_turn(self) -> AsyncIterator[None]:
        """Wait for the turn to make a part of an export. To bound memory, as many parts are made at once as exports may
        be in flight. Raises an overloaded problem if too many parts wait, or this one waits too long.
        """
        if self._waiting_parts >= MAX_WAITING_PARTS:
            detail = f"{self._waiting_parts} parts of exports wait for their turn"
            raise ProblemError(Problem(ProblemType.OVERLOADED, detail, fix="Retry after a second"))
        self._waiting_parts += 1
        try:
            await turn_of_part(self._parts)
        finally:
            self._waiting_parts -= 1
        try:
            yield
        finally:
            self._parts.release()

    async def in_turns(self, steps: Generator[None, None, T]) -> T:
        """Run a read that yields wherever it may be interrupted, and return its result. All reads together do one slice
        of work per turn of the event loop. So a lookup waits for one slice at most, however many scans run.
        """
        while True:
            async with self._turn:
                until_s = perf_counter() + SLICE_S
                try:
                    next(steps)
                    while perf_counter() < until_s:
                        next(steps)
                except StopIteration as done:
                    found: T = done.value
                    return found
                await asyncio.sleep(0)  # while the turn is held: the next read would use it in this turn of the loop

    def count(self, part: PartPage) -> None:
        self.read[part.access] += part.looked_at
        self.found[part.access] += part.found

    def metrics(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("understudy_scans_in_flight", "Scans and counts in progress", self.in_flight)
        for name, text, counts in (
            ("understudy_scan_keys_read", "Keys that scans and counts looked at, by access", self.read),
            ("understudy_scan_rows", "Rows that scans returned and counts counted, by access", self.found),
        ):
            family = CounterMetricFamily(name, text, labels=("access",))
            for access in ("seek", "pass", "filtered-pass"):
                family.add_metric((access,), counts[access])
            yield family
        yield GaugeMetricFamily("understudy_exports_in_flight", "Exports in progress", self.exports_in_flight)
        for name, text, by_form in (
            ("understudy_exports_begun", "Exports that began, by format", self.exports_begun),
            ("understudy_export_rows", "Rows that exports sent, by format", self.exported),
            ("understudy_export_bytes", "Bytes that exports sent, by format", self.exported_bytes),
        ):
            family = CounterMetricFamily(name, text, labels=("format",))
            for form in ExportFormat:
                family.add_metric((form,), by_form[form])
            yield family
        yield CounterMetricFamily("understudy_changes_sent", "Changes of versions that were sent", self.changes_sent)


class _Begun:
    """One read in flight. A class and no generator, which costs twice the calls: every page enters it."""

    __slots__ = ("_reads",)

    def __init__(self, reads: LongReads) -> None:
        self._reads = reads

    def __enter__(self) -> None:
        reads = self._reads
        if reads.in_flight >= reads.max_in_flight:
            detail = f"{reads.in_flight} scans and counts are in flight, as many as max_scans_in_flight"
            raise ProblemError(Problem(ProblemType.OVERLOADED, detail, fix="Retry after a second"))
        reads.in_flight += 1

    def __exit__(self, *_: object) -> None:
        self._reads.in_flight -= 1


async def turn_of_part(turn: asyncio.Lock | asyncio.Semaphore) -> None:
    """Take the turn of a part of an export. Raises an overloaded problem after `TURN_S`."""
    try:
        async with asyncio.timeout(TURN_S):
            await turn.acquire()
    except TimeoutError:
        detail = f"a part of an export waited {TURN_S:g} s for its turn: those before it are not made in time"
        fix = "Go on behind the last cursor in a minute; look at the node's processor, and at its log"
        raise ProblemError(Problem(ProblemType.OVERLOADED, detail, fix=fix)) from None


class Asker:
    """The client of a request; `is_gone` becomes true when it disconnects."""

    def __init__(self) -> None:
        self.is_gone = False

    async def watch(self, receive: Receive) -> None:
        """Wait until the client disconnects. The body of its request must have been read."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.leave()

    def leave(self) -> None:
        self.is_gone = True

    async def while_it_waits(self, receive: Receive, work: Coroutine[None, None, T]) -> T | None:
        """Return the result of `work`. If the client disconnects, cancel the work and return None."""
        loop = asyncio.get_running_loop()
        working, watching = loop.create_task(work, name="long read"), loop.create_task(self.watch(receive))
        watching.add_done_callback(lambda _: working.cancel())
        try:
            return await working
        except asyncio.CancelledError:
            if not self.is_gone:
                raise
            return None
        finally:
            watching.cancel()

    def while_there(self, read: ReadPart) -> ReadPart:
        """Return the same function, which raises a problem once the client has disconnected."""

        async def read_on(place: Place, room: Room) -> PartPage:
            if self.is_gone:
                raise ProblemError(Problem(ProblemType.BAD_REQUEST, "the client left before its page was whole"))
            return await read(place, room)

        return read_on


STAYS = Asker()
"""A client that never disconnects."""
