"""Parts of exports at a node: made by a fast maker where there is one for the question, else row by row in slices."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from understudy_node.questions.export.bulk.process import BulkProcess
from understudy_node.questions.export.parts import (
    BulkQuestion,
    export_columns,
    gathered_rows,
    record_message,
    require_pyarrow,
    shape_of,
)
from understudy_node.questions.lookup.hop import read_hop, require_reader
from understudy_node.questions.lookup.reads import NodeReads
from understudy_node.questions.scan.parts import scan_part, stamp_of
from understudy_node.questions.scan.rows import row_maker
from understudy_node.questions.scan.service import pin_ahead, reading_at
from understudy_node.replica.read_views import Reading
from understudy_node.stores.lookup import StoreReader
from understudy_shared.http.edge import Receive, Scope, Send
from understudy_shared.questions.export.columns import arrow_schema
from understudy_shared.questions.export.hop import (
    END_PATH,
    EXPORT_PATH,
    PART_BYTES,
    PART_MS,
    PART_ROWS,
    PART_TYPE,
    EndHop,
    ExportHop,
    ExportPart,
    ResumePoint,
    decode_end_hop,
    decode_export_hop,
    encode_export_part,
)
from understudy_shared.questions.export.service import Exports, FetchPart, cut_pieces
from understudy_shared.questions.scan.long_reads import Asker
from understudy_shared.questions.scan.page import PartPage, Place, Room
from understudy_shared.questions.scan.question import ScanCursor, ScanQuestion
from understudy_shared.questions.scan.requests import ScanTurn
from understudy_shared.questions.scan.service import Scans
from understudy_shared.reads.bounds import ReadVersion, Selection, bound_at
from understudy_shared.reads.export_format import ExportFormat, csv_row, ndjson_line

PLAIN_ARROW: Final = (16_384, 1024 * 1024)
"""Rows and bytes of a part of Arrow that is made row by row: its batches are made when all rows are there."""


class NodeExports(Exports):
    """The exports of the replicas of this node. `bulk` makes the parts that it takes; all others are made here."""

    def __init__(self, scans: Scans, reads: NodeReads, bulk: BulkProcess | None = None) -> None:
        super().__init__(scans)
        self.bulk = bulk
        self._reads = reads
        self._long_reads = scans.long_reads

    def part_reader(self, turn: ScanTurn, version: ReadVersion, form: ExportFormat, asker: Asker) -> FetchPart:
        reader, scanned = self._reads.reader(turn.store.name), turn.asked
        longs = scanned.longs_as_text
        asked = self.asked(reader, scanned.question, turn.bound.selection, form, longs_as_text=longs)
        pin_ahead(reader, turn.partitions, version)

        async def read(place: Place, following: int | None) -> ExportPart:
            if turn.bound.lease is not None:
                self._reads.lease_used(turn.bound.lease)
            resume = None if turn.is_confined else ResumePoint(turn.digest, following)
            return await self.part(asked, place, version, resume, asker)

        return read

    def asked(
        self,
        reader: StoreReader,
        question: ScanQuestion,
        selection: Selection,
        form: ExportFormat,
        *,
        longs_as_text: bool,
    ) -> BulkQuestion:
        """Compile a question. Raises BadBoundError that names the member at fault."""
        maker = row_maker(reader, question, selection, longs_as_text=longs_as_text)
        return BulkQuestion(maker, question, form, export_columns(reader.store, maker.fields))

    async def part(
        self, asked: BulkQuestion, place: Place, version: ReadVersion, resume: ResumePoint | None, asker: Asker
    ) -> ExportPart:
        """Return the rows after a place, and the cursor at their end. Raises the problem of a partition that cannot be
        read.
        """
        reader = asked.maker.reader
        if asked.format is ExportFormat.ARROW:
            await asyncio.to_thread(require_pyarrow)
        bound = bound_at(reader.application_id, reader.lineage, version)
        reading = await reading_at(reader, place.partition, bound)
        schema = _schema(asked, reading) if asked.format is ExportFormat.ARROW else None
        async with self._long_reads.part_turn():
            page, pieces = await self._made(asked, schema, reading, place, asker)
        self._long_reads.count(page)
        pin_ahead(reader, [each for each in sorted(reader.replicas) if each >= place.partition], version)
        next_place = Place(place.partition, page.after)
        if page.is_end:
            next_place = Place(-1 if resume is None or resume.next_partition is None else resume.next_partition)
        if resume is not None and next_place.partition >= 0:
            cursor = _cursor(asked, version, page, next_place, resume)
            pieces = (*pieces, _cursor_record(asked.format, schema, cursor))
        return ExportPart(page, _head(asked, schema), shape_of(asked.columns), pieces)

    async def _made(
        self, asked: BulkQuestion, schema: Any, reading: Reading, place: Place, asker: Asker
    ) -> tuple[PartPage, tuple[bytes | memoryview, ...]]:
        maker, view = asked.maker, reading.view
        room = Room(PART_ROWS, PART_BYTES, monotonic() + PART_MS / 1000)
        if self.bulk is not None and not maker.is_sought:
            made = await self.bulk.part(asked, reading, place, room)
            if made is not None:
                found = (made.found, made.looked_at, made.after, made.is_end)
                return PartPage(b"", *found, stamp_of(view), view.committed_at_us, maker.access), made.pieces
        if not maker.is_sought:
            await asyncio.to_thread(view.stores[maker.reader.store.store_name].prepare_scan)
        if asked.format is ExportFormat.ARROW:
            room = room._replace(rows=PLAIN_ARROW[0], bytes=PLAIN_ARROW[1])
        room = room._replace(until_s=monotonic() + PART_MS / 1000)
        steps = scan_part(maker, reading, place, room, asker, gathered_rows(asked, schema))
        page = await self._long_reads.in_turns(steps)
        return page._replace(rows=b""), (page.rows,)

    async def part_for_router(self, hop: ExportHop, asker: Asker) -> ExportPart:
        """Return the part that a router asks for. Raises its problem."""
        scan = hop.scan
        reader = require_reader(self._reads, scan)
        selection = Selection(scan.elements, include_expired=scan.question.include_expired)
        asked = self.asked(reader, scan.question, selection, hop.format, longs_as_text=scan.longs_as_text)
        return await self.part(asked, Place(scan.partition, scan.after), scan.version, hop.resume, asker)

    async def arrow_last(self, turn: ScanTurn, version: ReadVersion, said: Mapping[str, object]) -> bytes:
        return _arrow_last(self._reads.reader(turn.store.name), turn.asked.question, said)

    async def end_for_router(self, hop: EndHop) -> bytes:
        """Return the last record batch of an Arrow stream for a router. Raises its problem."""
        await asyncio.to_thread(require_pyarrow)
        return _arrow_last(require_reader(self._reads, hop.scan), hop.scan.question, hop.said)


def _schema(asked: BulkQuestion, reading: Reading) -> Any:
    reader, stamp = asked.maker.reader, stamp_of(reading.view)
    said = {name: stamp[name] for name in ("version", "committed_at", "position")}
    return arrow_schema(asked.columns, {"store": reader.store.name, "lineage": reader.lineage, **said})


def _head(asked: BulkQuestion, schema: Any) -> bytes:
    """Return the beginning of a stream of this format: the header line of CSV, or the schema of Arrow."""
    if asked.format is ExportFormat.CSV:
        return csv_row([each.name for each in asked.columns.columns])
    return b"" if schema is None else bytes(schema.serialize())


def _cursor(asked: BulkQuestion, version: ReadVersion, page: PartPage, place: Place, resume: ResumePoint) -> str:
    reader = asked.maker.reader
    committed_at_us = page.committed_at_us if version.committed_at_us is None else version.committed_at_us
    of = (reader.application_id, reader.lineage, reader.store.name, version.number, committed_at_us)
    return ScanCursor(*of, place.partition, place.after, resume.digest).encode()


def _arrow_last(reader: StoreReader, question: ScanQuestion, said: Mapping[str, object]) -> bytes:
    columns = export_columns(reader.store, row_maker(reader, question).fields)
    return record_message(arrow_schema(columns, {}), said)


def _cursor_record(form: ExportFormat, schema: Any, cursor: str) -> bytes:
    """Return the record with the cursor to resume from. A CSV has no room for one between its rows."""
    match form:
        case ExportFormat.NDJSON:
            return ndjson_line("cursor", cursor)
        case ExportFormat.ARROW:
            return record_message(schema, {"cursor": cursor})
        case ExportFormat.CSV:
            return b""


class PiecesResponse(Response):
    """The reply to a router: the pieces of a part, one after another."""

    def __init__(self, pieces: Sequence[bytes | memoryview]) -> None:
        super().__init__(media_type=PART_TYPE)
        self._pieces = pieces
        self.headers["content-length"] = str(sum(map(len, pieces)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the next piece when the router has read the last."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for piece in cut_pieces(self._pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def export_hop_routes(exports: NodeExports) -> APIRouter:
    """Make the calls by which routers ask for a part of an export, and for the end of an Arrow stream."""
    routes = APIRouter()

    @routes.post(EXPORT_PATH)
    async def part(request: Request) -> Response:
        """Return rows of one partition, at one version, after a key."""
        hop = await read_hop(request, decode_export_hop)
        asker = Asker()
        found = await asker.while_it_waits(request.receive, exports.part_for_router(hop, asker))
        return PiecesResponse(() if found is None else encode_export_part(found))

    @routes.post(END_PATH)
    async def end(request: Request) -> Response:
        """Return the last record batch of an Arrow stream."""
        hop = await read_hop(request, decode_end_hop)
        return Response(await exports.end_for_router(hop), media_type=PART_TYPE)

    return routes
