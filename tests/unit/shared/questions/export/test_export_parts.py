"""The parts of an export come in order, some of them fetched ahead, and none is left behind when it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.questions.export.hop import (
    EndHop,
    ExportHop,
    ExportPart,
    ResumePoint,
    decode_end_hop,
    decode_export_hop,
    decode_export_part,
    encode_export_part,
)
from understudy_shared.questions.export.service import PARTITIONS_AHEAD, PartsAhead
from understudy_shared.questions.scan.hop import ScanHop
from understudy_shared.questions.scan.page import PartPage, Place
from understudy_shared.questions.scan.question import ScanQuestion
from understudy_shared.reads.bounds import ReadVersion
from understudy_shared.reads.export_format import ExportFormat
from understudy_shared.reads.hop_fields import BadHopError

Stored = list[list[int]]
"""The keys of each partition; each is a part of its own."""


def part(rows: bytes, after: bytes | None = None) -> ExportPart:
    page = PartPage(b"", 1, 1, after, after is None, {"version": 7}, 5, "pass")
    return ExportPart(page, b"head", "shape", (rows[:1], rows[1:]))


class Partitions:
    """Partitions whose parts are read; what is on its way is counted."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.on_their_way = 0
        self.most = 0
        self.followed_by: dict[int, int | None] = {}

    async def read(self, place: Place, following: int | None) -> ExportPart:
        self.on_their_way += 1
        self.most = max(self.most, self.on_their_way)
        self.followed_by[place.partition] = following
        try:
            await asyncio.sleep(0)
        finally:
            self.on_their_way -= 1
        keys = self.stored[place.partition]
        at = 0 if place.after is None else int.from_bytes(place.after) + 1
        if not keys:
            return ExportPart(PartPage(b"", 0, 0, None, True, {}, 5, "pass"), b"", "shape", ())
        return part(b"%d," % keys[at], None if at == len(keys) - 1 else at.to_bytes(4))


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=5), st.data())
def test_parts_come_partition_after_partition_from_any_place_on(stored: Stored, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(stored) - 1))

    async def read() -> None:
        partitions = Partitions(stored)
        parts = PartsAhead(Place(first), range(len(stored)), partitions.read)
        found = b""
        while (next_part := await parts.next()) is not None:
            found += b"".join(next_part.pieces)
        assert found == b"".join(b"%d," % key for keys in stored[first:] for key in keys)
        assert partitions.most <= PARTITIONS_AHEAD + 2
        followers = {at: at + 1 if at + 1 < len(stored) else None for at in range(first, len(stored))}
        assert partitions.followed_by == followers
        assert list(parts.partitions) == list(range(first, len(stored)))

    asyncio.run(read())


async def test_an_export_that_ends_before_its_end_leaves_nothing_on_its_way() -> None:
    partitions = Partitions([[1, 2, 3]] * 5)
    parts = PartsAhead(Place(0), range(5), partitions.read)
    assert await parts.next() is not None
    await asyncio.sleep(0)
    assert partitions.on_their_way > 0
    await parts.close()
    assert partitions.on_their_way == 0
    assert await parts.next() is None


def test_hops_and_parts_survive_their_way() -> None:
    scan = ScanHop(
        *("app", "life", "op0", "layout"),
        4,
        ScanQuestion("export", where=()),
        2,
        ReadVersion(7, 5),
        b"key",
        rows=10,
        room_bytes=100,
        is_empty=True,
        is_confined=False,
        budget_ms=1_000,
        longs_as_text=False,
        elements=9,
    )
    for resume in (None, ResumePoint("00ff", 3), ResumePoint("00ff", None)):
        hop = ExportHop(scan, ExportFormat.ARROW, resume)
        assert decode_export_hop(hop.encode()) == hop
    for said in ({"end": {"rows": 2}}, {"error": {"status": 503}}):
        last = EndHop(scan, ExportFormat.ARROW, said)
        assert decode_end_hop(last.encode()) == last
    sent = part(b'\n{"rows":[\n', b"\0")
    body = b"".join(encode_export_part(sent))
    assert decode_export_part(body) == replace(sent, pieces=(b"".join(sent.pieces),))
    for cut in range(len(body)):
        with pytest.raises(BadHopError):
            decode_export_part(body[:cut])
