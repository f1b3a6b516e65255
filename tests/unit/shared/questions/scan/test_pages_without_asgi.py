"""A page without ASGI ends when its client leaves, gives its place back, and counts as cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from understudy_shared.base.words import StoreKind
from understudy_shared.questions.scan.long_reads import Asker, LongReads
from understudy_shared.questions.scan.page import PartPage, Place, ReadPart, Room
from understudy_shared.questions.scan.requests import ScannedStore, ScanTurn
from understudy_shared.questions.scan.service import DirectPages, Scans
from understudy_shared.reads.bounds import NO_BOUND, Bound, ReadVersion, version_of
from understudy_shared.server.direct import DirectExchange, Headers
from understudy_shared.settings import Compression
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import StructType
from understudy_shared.telemetry.metrics import RequestCounts


class Reads:
    """A service with one store."""

    max_key_bytes = 1024

    def __init__(self) -> None:
        self.requests = RequestCounts()

    def has_store(self, name: str) -> bool:
        return name == "op0"

    def bound_of(self, store: str, params: Mapping[str, object]) -> Bound:
        return NO_BOUND


class TwoParts(Scans):
    """A store of two partitions. The read of a part waits for `goes_on`."""

    def __init__(self, reads: Reads) -> None:
        super().__init__(reads, LongReads(1))
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self.read: list[int] = []

    def store(self, name: str) -> ScannedStore:
        return ScannedStore(name, StoreKind.VALUE, "a", "l", KeyCodec(StructType()), 2, range(2))

    async def resolved(self, bound: Bound) -> Bound:
        return bound

    async def first_version(self, turn: ScanTurn) -> ReadVersion:
        return version_of(1, 1)

    async def estimate(self, turn: ScanTurn) -> int:
        return 0

    def part_reader(self, turn: ScanTurn, version: ReadVersion, asker: Asker) -> ReadPart:
        async def read(place: Place, room: Room) -> PartPage:
            self.read.append(place.partition)
            self.begun.set()
            await self.goes_on.wait()
            return PartPage(b"", 0, 1, None, True, {"version": 1}, 1, "pass")

        return read


async def test_a_page_whose_client_leaves_reads_no_further_part_and_gives_its_place_back() -> None:
    for leaves in (True, False):
        replies: list[int] = []

        def send(status: int, kind: bytes, body: bytes, headers: Headers, to: list[int] = replies) -> None:
            to.append(status)

        reads = Reads()
        scans = TwoParts(reads)
        exchange = DirectExchange(send)
        assert DirectPages(scans, Compression.GZIP).answer_directly(b"/v1/stores/op0/scan", exchange)
        await scans.begun.wait()
        assert scans.long_reads.in_flight == 1
        if leaves:
            exchange.leave()
        scans.goes_on.set()
        (page,) = [each for each in asyncio.all_tasks() if each.get_name() == "a page"]
        await page
        assert scans.long_reads.in_flight == 0
        assert (scans.read, replies) == (([0], []) if leaves else ([0, 1], [200]))
        assert reads.requests.of("scan", "op0").outcomes == {
            "found": 0,
            "absent": 0,
            "cancelled" if leaves else "answered": 1,
        }
