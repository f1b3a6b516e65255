"""The readers, in a process of their own: lookups arrive at a rate, however slowly earlier ones are answered.

A reader whose router refuses the connection, breaks it before an answer or says that it is not in service asks the
other one at once, as behind a load balancer; only when no router is left has the read failed. Every read is recorded.
`rate N` on standard input changes the rate, `also STORE` has readers ask for an added store, any other line is answered
by counts so far, and its end ends the load.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import uvloop
from tests.support.services.load_balancer import is_out_of_service
from tests.system.proof.client_reads import Clients
from tests.system.proof.client_ways import BARE, WAYS
from tests.system.proof.exports import Exporting, stream_of
from tests.system.proof.history import Read, Scan, SnapshotRead
from tests.system.proof.history_file import HistoryWriter
from tests.system.proof.http_talk import HttpReply, Pool, within
from tests.system.proof.mutants import MUTANTS
from tests.system.proof.question import Question, with_next_page
from tests.system.proof.scanning import ASK_AGAIN_S, Scanning, choose_scan
from tests.system.proof.sessions import Asked, Replied, Session, choose_kind, every_kind, request_of
from tests.system.proof.snapshot_reads import LEASE_EACH, SnapshotQuestion, choose_snapshot
from tests.system.proof.subjects import SUBJECTS, Subject
from tests.system.proof.watchers import Watchers

DEADLINE_S = 5.0
TOGETHER_S = 20.0
"""Limit on a read of several stores: it seeks the version, then reads each store, within a deadline for each."""
VERSION_GONE = "version-gone"
"""The problem of a page whose version no replica holds any more."""

BETWEEN_SCANS_S = 0.3

EXPORT_EACH = 4
"""Each so many scans one is an export."""

EXPORT_S = 15.0
"""Time of an export with all that it takes to go on."""

WAY_EACH = 2
"""Each so many sessions one asks through a client, by one way after another."""

MAX_SESSIONS = 20_000
"""Readers that wait at once: far above what a working system leaves waiting, and an end to what a hung one takes."""


def now_ms() -> float:
    return time.monotonic() * 1000


@dataclass
class Load:
    """Sessions at some routers. `rate` is in reads per second, all together. Without `has_clients` all speak bare
    HTTP, and there are no watchers. `application` is the one of a fleet that they ask, empty for the only one.
    """

    subject: Subject
    routers: Mapping[str, int]
    rate: float
    writer: HistoryWriter
    chance: random.Random
    application: str = ""
    has_clients: bool = True
    newest: int = 1
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_ms: float = 0.0
    is_ended: bool = False

    def __post_init__(self) -> None:
        self.not_there = set(self.subject.added)
        self._pools = {name: Pool(port) for name, port in self.routers.items()}
        self._clients = Clients(self.routers, self.application)
        self._watchers = Watchers(
            self.subject, self._clients, self.writer, self.outcomes, self.chance, lambda: self.newest
        )
        self._idle = [Session(number, kind, self._way_of(number)) for number, kind in enumerate(every_kind(), 1)]
        self._sessions = len(self._idle)
        self._in_flight: set[asyncio.Future[None]] = set()

    def _way_of(self, number: int) -> str:
        return way_of(number) if self.has_clients else ""

    async def run(self) -> None:
        """Start reads when they are due until ended; return when the last has its answer or its deadline."""
        due_s, scanning = time.monotonic(), asyncio.ensure_future(self._scan_on())
        watching = asyncio.ensure_future(self._watchers.run() if self.has_clients else asyncio.sleep(0))
        while not self.is_ended:
            due_s += self.chance.expovariate(self.rate)
            pause_s = due_s - time.monotonic()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            reading = asyncio.ensure_future(self._read(self._free_session()))
            self._in_flight.add(reading)
            reading.add_done_callback(self._in_flight.discard)
        self._watchers.end()
        await asyncio.gather(scanning, watching, *self._in_flight)
        await self._clients.close()
        for pool in self._pools.values():
            pool.close()

    def counts(self) -> dict[str, float]:
        """What came of the reads so far; `slowest_ms` since it was asked last."""
        slowest_ms, self.slowest_ms = self.slowest_ms, 0.0
        return {**self.outcomes, "in_flight": len(self._in_flight), "slowest_ms": round(slowest_ms, 1)}

    def _free_session(self) -> Session:
        if self._idle:
            place = self.chance.randrange(len(self._idle))
            self._idle[place], self._idle[-1] = self._idle[-1], self._idle[place]
            return self._idle.pop()
        assert self._sessions < MAX_SESSIONS, f"{MAX_SESSIONS} readers wait"
        self._sessions += 1
        return Session(self._sessions, choose_kind(self.chance), self._way_of(self._sessions))

    async def _read(self, session: Session) -> None:
        routers = [*self._pools]
        self.chance.shuffle(routers)
        question = self._question()
        bounds = session.bounds(self.newest)
        asked = Asked(session.number, session.next_seq(), now_ms(), question, bounds, session.way)
        replied = await self._ask_for_all(asked, session, question, routers)
        if replied.position is not None:
            session.took(replied.position)
            self.newest = max(self.newest, replied.position.version)
        self._note(replied.read)
        self._idle.append(session)

    def _question(self) -> Question:
        while (question := self.subject.choose(self.chance, self.newest)).store in self.not_there:
            pass
        return question

    async def _ask_for_all(self, asked: Asked, session: Session, question: Question, routers: Sequence[str]) -> Replied:
        """Ask page by page until nothing is left; from the beginning when the version of the pages is gone."""

        async def page_at(cursor: str | None = None) -> Replied:
            if session.way:
                return await self._clients.ask(session.way, asked, question, cursor, now_ms)
            return await self._ask_in_time(asked, request_of(session, asked.bounds, question, cursor), routers)

        replied = first = await page_at()
        while replied.next_cursor is not None and replied.read.answered:
            page = await page_at(replied.next_cursor)
            if page.read.problem == VERSION_GONE:
                replied = first = await page_at()
                continue
            replied = Replied(with_next_page(replied.read, page.read), first.position, page.next_cursor)
        return replied

    async def _ask_in_time(self, asked: Asked, request: bytes, routers: Sequence[str]) -> Replied:
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._ask(asked, request, routers)
        except TimeoutError:
            return Replied(asked.failed(now_ms(), routers[0], f"no answer within {DEADLINE_S:g} s"))

    async def _ask(self, asked: Asked, request: bytes, routers: Sequence[str]) -> Replied:
        try:
            router, reply = await self._reply_to(request, routers)
        except OSError as error:
            return Replied(asked.failed(now_ms(), routers[-1], str(error)))
        return asked.replied(now_ms(), router, reply)

    async def _reply_to(self, request: bytes, routers: Sequence[str]) -> tuple[str, HttpReply]:
        """Return the reply of the first router that is in service. OSError when there is none."""
        why = []
        request = self._within(request)
        for router in routers:
            try:
                reply = await self._pools[router].ask(request)
            except OSError as error:
                why.append(f"{router}: {error}")
                continue
            if not is_out_of_service(reply.status, reply.body):
                return router, reply
            why.append(f"{router}: {reply.body[:200].decode(errors='replace')}")
        raise ConnectionError("; ".join(why))

    async def _scan_on(self) -> None:
        """Scan one store after another until ended, and read several together between."""
        columns: dict[str, str] = {}
        before: SnapshotRead | None = None
        for number in count(1):
            while (question := choose_scan(self.subject, self.chance, self.newest, columns)).store in self.not_there:
                pass
            scanning = Scanning(number, question, now_ms(), is_export=number % EXPORT_EACH == 0)
            scan = await (self._export(scanning) if scanning.is_export else self._scan(scanning, columns))
            if scan is None:
                return
            self.outcomes[f"scans {scan.outcome}"] += 1
            self.outcomes[f"exports {scan.outcome}"] += scan.is_export
            if scan.pages > 1 and not scan.is_export:
                self.outcomes["scans in pages"] += 1
                self.outcomes["filtered scans in pages"] += scan.below is not None
            self.writer.write(scan)
            together = choose_snapshot(self.subject, self.chance, self.newest, before, self.not_there)
            if number % LEASE_EACH == 0:
                together = SnapshotQuestion((), is_lease=True)
            read = await self._read_together(number, together)
            before = read if read.outcome == "whole" else before
            self.outcomes[f"snapshots {read.outcome}"] += 1
            self.writer.write(read)
            if self.is_ended:
                return
            await asyncio.sleep(BETWEEN_SCANS_S)

    async def _export(self, scanning: Scanning) -> Scan | None:
        """Export at any router, and go on at any where the stream is cut; None when the load has ended meanwhile."""
        exporting, until_s = Exporting(scanning), time.monotonic() + EXPORT_S
        while time.monotonic() < until_s:
            port = self.chance.choice([*self.routers.values()])
            with suppress(TimeoutError):
                async with asyncio.timeout(DEADLINE_S):
                    stream = await stream_of(port, self._within(exporting.request()))
                if stream.status != 503 or not is_out_of_service(503, stream.body):
                    scan = exporting.took(now_ms(), stream)
                    if scan is not None:
                        return scan
            if self.is_ended:
                return None
            await asyncio.sleep(BETWEEN_SCANS_S)
        return scanning.ended(now_ms(), "failed", detail=f"no end within {EXPORT_S:g} s")

    def _within(self, request: bytes) -> bytes:
        return within(self.application, request.decode()).encode()

    async def _read_together(self, number: int, question: SnapshotQuestion) -> SnapshotRead:
        routers, began_ms = [*self._pools], now_ms()
        self.chance.shuffle(routers)
        try:
            async with asyncio.timeout(TOGETHER_S):
                _, reply = await self._reply_to(question.request, routers)
        except TimeoutError:
            return question.failed(number, began_ms, now_ms(), f"no answer within {TOGETHER_S:g} s")
        except OSError as error:
            return question.failed(number, began_ms, now_ms(), str(error))
        return question.replied(number, began_ms, now_ms(), reply)

    async def _scan(self, scanning: Scanning, columns: dict[str, str]) -> Scan:
        """Ask page by page, each at any router."""
        while True:
            routers = [*self._pools]
            self.chance.shuffle(routers)
            try:
                async with asyncio.timeout(DEADLINE_S):
                    _, reply = await self._reply_to(scanning.question.request(scanning.cursor), routers)
            except TimeoutError:
                return scanning.ended(now_ms(), "failed", detail=f"no page within {DEADLINE_S:g} s")
            except OSError as error:
                return scanning.ended(now_ms(), "failed", detail=str(error))
            scan = scanning.took(now_ms(), reply, columns)
            if scan is not None:
                return scan
            if scanning.turned_away:
                await asyncio.sleep(ASK_AGAIN_S)

    def _note(self, read: Read) -> None:
        self.outcomes[read.outcome] += 1
        self.slowest_ms = max(self.slowest_ms, read.took_ms)
        self.writer.write(read)


def way_of(number: int) -> str:
    """The client by which a session asks: none for bare HTTP."""
    return "" if number % WAY_EACH else WAYS[number // WAY_EACH % len(WAYS)]


async def main() -> None:
    """Run as the arguments say: a query's name, routers as JSON, a folder for the history, a rate, a seed, an
    application of a fleet or nothing, and the mutant whose bugs the clients have, or BARE.
    """
    subject, routers, folder, rate, seed, application, *more = sys.argv[1:]
    for name in more if more != [BARE] else ():
        for plant in MUTANTS[name].client:
            plant()
    chance = random.Random(int(seed))
    with HistoryWriter(Path(folder)) as writer:
        asked = (SUBJECTS[subject], json.loads(routers), float(rate), writer, chance, application)
        load = Load(*asked, has_clients=more != [BARE])
        running = asyncio.ensure_future(load.run())
        await _orders(load, running)
        load.is_ended = True
        await running


async def _orders(load: Load, running: asyncio.Future[None]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        word, _, value = line.decode().strip().partition(" ")
        if word == "rate":
            load.rate = float(value)
        if word == "also":
            load.not_there.discard(value)
        if running.done():
            running.result()
        sys.stdout.write(json.dumps(load.counts()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main())
