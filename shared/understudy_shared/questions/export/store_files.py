"""A store as a file, the same at nodes and routers: `/v1/stores/{store}.parquet` and its kin, at one version.

Rules. A file has rows and nothing else: if a download fails, the client sees a broken transfer. A range is served only
if the request names the version, by `version`, `snapshot` or the file's tag, because two requests for the newest may
get two versions. Any other request gets the whole file. The bytes of a file depend on its rows alone, not on the parts
in which they arrived: two servers of one release make the same file of one version, so a client may fetch ranges of it
from either.

Files that are served by ranges are made once for all clients, and cached in bounded memory (`server/made_files.py`).
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response
from starlette.convertors import StringConvertor, register_url_convertor

from understudy_shared.auth.principals import Authorization
from understudy_shared.base.extras import install_fix
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.edge import Scope, is_known
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import FILE_ENDINGS, parse_query
from understudy_shared.questions.export.columns import METADATA
from understudy_shared.questions.export.hop import ExportPart
from understudy_shared.questions.export.service import (
    ARROW_BROKEN,
    ARROW_END,
    PIECE_BYTES,
    BulkResponse,
    Exports,
    ExportStream,
    PartsAhead,
    SendMessage,
    body_message,
    cut_pieces,
    patient,
)
from understudy_shared.questions.scan.long_reads import Asker
from understudy_shared.questions.scan.page import Place
from understudy_shared.questions.scan.requests import ExportRequest, ScanTurn, parse_scan, scan_turn
from understudy_shared.reads.bounds import BadBoundError, ReadVersion
from understudy_shared.reads.export_format import MEDIA_TYPES, ExportFormat
from understudy_shared.reads.tokens import Position
from understudy_shared.server.app import is_head
from understudy_shared.server.made_files import MAX_FILE_BYTES, MadeFile, MadeFiles

GROUP_ROWS: Final = 65_536
"""Number of rows of a row group, and of a record batch."""

_OF_FILES: Final = ("store", "lineage", "version", "is_flat")
"""The metadata of a file: only members that all servers know, even after Spark has purged commits."""


class BytesFile:
    """A file of bytes as they come. A lock lets one method run at a time, because worker threads call them: a thread
    continues after its caller is cancelled, and the file is closed after that.
    """

    def __init__(self, descriptor: int) -> None:
        self._lock = threading.RLock()
        self._file = os.fdopen(os.dup(descriptor), "wb")
        self.size_bytes = 0

    def add(self, data: bytes) -> None:
        """Write a part. Raises ValueError after `close`."""
        with self._lock:
            self._add(data)

    def finish(self) -> None:
        with self._lock:
            self._finish()
            self.close()

    def close(self) -> None:
        """Release the descriptor. An unfinished file is ended first."""
        with self._lock:
            self._give_up()
            self._file.close()

    def _add(self, data: bytes) -> None:
        self._file.write(data)
        self.size_bytes += len(data)

    def _finish(self) -> None:
        """Do nothing: bytes need no end."""

    def _give_up(self) -> None:
        """Do nothing: bytes need no end."""


class TableFile(BytesFile):
    """A file of Arrow batches; `add` takes them as a stream of the IPC format. `ending` is `parquet` or `arrow`."""

    def __init__(self, descriptor: int, ending: str) -> None:
        super().__init__(descriptor)
        self._ending = ending
        self._writer: Any = None
        self._held: list[Any] = []
        self._rows = 0

    def _add(self, data: bytes) -> None:
        """Write whole row groups, and buffer the rest. Raises pyarrow's errors for columns the format cannot hold."""
        import pyarrow as pa  # noqa: PLC0415

        if self._file.closed:
            raise ValueError("the file is closed")
        reader = pa.ipc.open_stream(pa.BufferReader(data))
        if self._writer is None:
            said = orjson.loads(reader.schema.metadata[METADATA])
            kept = orjson.dumps({name: said[name] for name in _OF_FILES if name in said})
            self._writer = self._opened(reader.schema.with_metadata({METADATA: kept}))
        for batch in reader:
            self._held.append(batch)
            self._rows += batch.num_rows
        while self._rows >= GROUP_ROWS:
            self._write(GROUP_ROWS)
        self.size_bytes = self._file.tell() + sum(batch.nbytes for batch in self._held)

    def _finish(self) -> None:
        """Write the last rows, and the end of the file."""
        if self._rows:
            self._write(self._rows)
        self._writer.close()
        self._writer = None
        self.size_bytes = self._file.tell()

    def _give_up(self) -> None:
        if self._writer is not None:
            with suppress(OSError, ValueError):
                self._writer.close()

    def _opened(self, schema: Any) -> Any:
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415

        self._schema, sink = schema, pa.PythonFile(self._file, "w")
        if self._ending == "arrow":
            return pa.ipc.new_file(sink, schema)
        return parquet.ParquetWriter(sink, schema, compression="zstd")

    def _write(self, rows: int) -> None:
        import pyarrow as pa  # noqa: PLC0415

        table = pa.Table.from_batches(self._held).replace_schema_metadata(self._schema.metadata)
        self._writer.write_table(table.slice(0, rows).combine_chunks(), GROUP_ROWS)
        self._held, self._rows = table.slice(rows).to_batches(), self._rows - rows


_TABLES: Final = {"parquet": "application/vnd.apache.parquet", "arrow": "application/vnd.apache.arrow.file"}
"""The media types of files that are read from their end, so they are made before they are sent."""

_NO_RANGES: Final = (b"accept-ranges", b"none")
_FORMATS: Final = {"csv": ExportFormat.CSV, "ndjson": ExportFormat.NDJSON}
_ROW, _ROW_END = b'{"row":', b"}\n"
_FEWER: Final = (
    "Select rows by partition or where, or fields; or take .arrows, .csv or .ndjson without a version, or an export"
)

Headers = tuple[tuple[bytes, bytes], ...]

_ONE_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class ByteRange(NamedTuple):
    """Bytes of a file, the last one included."""

    first: int
    last: int


class BeyondEndError(ValueError):
    """A range that begins after the last byte."""


def read_range(header: str, size_bytes: int) -> ByteRange | None:
    """Return the bytes that a `Range` header names (RFC 9110). Return None for the whole file, also if it names several
    ranges or an unknown unit. Raises BeyondEndError.
    """
    found = _ONE_RANGE.fullmatch(header.replace(" ", ""))
    if found is None or found[1] == found[2] == "":
        return None
    if not found[1]:
        first, last = max(0, size_bytes - int(found[2])), size_bytes - 1
    else:
        first, last = int(found[1]), min(int(found[2] or size_bytes), size_bytes - 1)
        if found[2] and int(found[2]) < first:
            return None
    if first >= size_bytes:
        raise BeyondEndError
    return ByteRange(first, last)


class StoreFileResponse(BulkResponse):
    """The answer to a request for a store as a file."""

    noun = "a file of a store"
    action = "file-cut"

    def __init__(self, exports: Exports, files: MadeFiles, store: str, ending: str, request: Request) -> None:
        super().__init__()
        self._exports, self._scans = exports, exports.scans
        self._files, self._store, self._ending, self._request = files, store, ending, request
        self._format = _FORMATS.get(ending, ExportFormat.ARROW)
        self._is_table = ending in _TABLES

    async def answer(self, scope: Scope, authorization: Authorization, send: SendMessage, asker: Asker) -> None:
        asked, is_asked_for_head = self._request.headers, is_head(self._request)
        with self._scans.counted("export", self._store, asker):
            turn = self._turn(authorization)
            version, _ = await self._scans.waited(turn) or await self._scans.begins(turn)
            tag = self._tag(turn, version)
            head = self._head(turn, version, tag)
            names_tag = tag in (asked.get("if-range"), asked.get("if-match"))
            is_exact = self._ending != "arrows" and (turn.bound.read_version is not None or names_tag)
            if is_known(asked.get("if-none-match", ""), tag):
                await send(_start(304, *head))
            elif not is_known(asked.get("if-match", "*"), tag):
                await send(_start(412, *head))
            elif is_exact or (self._is_table and not is_asked_for_head):
                made = await self._files.get(tag, partial(self._make, turn, version))
                wanted = asked.get("range", "") if is_exact and asked.get("if-range", tag) == tag else ""
                await self._send_file(made, wanted, head, send, is_exact=is_exact)
                return
            elif is_asked_for_head:
                await send(_start(200, *head, _NO_RANGES))
            else:
                await self._send_stream(turn, version, head, send, asker)
            await send(body_message(b"", more=False))

    async def broken_off(self, problem: Problem) -> bytes:
        # In other formats the connection ends before the body does.
        return ARROW_BROKEN if self._ending == "arrows" else b""

    def _turn(self, authorization: Authorization) -> ScanTurn:
        given = parse_query(self._request.scope["query_string"])
        wrong = next((name for name in ("format", "trailer", "cursor") if name in given), None)
        if wrong is not None:
            raise BadBoundError(f"a file takes no {wrong}", where=wrong, fix="Leave it out: its ending is the format")
        store, scan = self._scans.store(self._store), parse_scan("export", given)
        turn = scan_turn(store, scan, self._scans.service.bound_of(store.name, scan.bounds), authorization)
        return replace(turn, is_confined=True)  # so that no cursor records stand between the rows

    def _tag(self, turn: ScanTurn, version: ReadVersion) -> str:
        """Return the ETag of a file, the same for all clients. That of an Arrow stream is weak: batches may differ."""
        store, asked = turn.store, turn.asked
        of = (store.application_id, store.lineage, store.name, version.number, version.committed_at_us)
        said = orjson.dumps([*of, asked.question.digest(""), list(turn.partitions), asked.longs_as_text, self._ending])
        return f'{"W/" * (self._ending == "arrows")}"{version.number}-{blake2b(said, digest_size=12).hexdigest()}"'

    def _head(self, turn: ScanTurn, version: ReadVersion, tag: str) -> Headers:
        of = ApplicationId(turn.store.application_id), Lineage(turn.store.lineage)
        position = Position(*of, version.number, version.committed_at_us).encode()
        return (
            (b"content-type", (_TABLES.get(self._ending) or MEDIA_TYPES[self._format]).encode()),
            (b"cache-control", b"private, no-cache"),
            (b"etag", tag.encode()),
            (b"understudy-version", b"%d" % version.number),
            (b"understudy-position", position.encode()),
        )

    # ---- a stream

    async def _send_stream(
        self, turn: ScanTurn, version: ReadVersion, head: Headers, send: SendMessage, asker: Asker
    ) -> None:
        if self._request.scope["http_version"] != "1.1":
            what = "a file of a store is not sent over HTTP/1.0, in which a cut looks like its end"
            fix = "Send HTTP/1.1; nginx does with proxy_http_version 1.1"
            raise ProblemError(Problem(ProblemType.BAD_REQUEST, what, where="protocol", fix=fix))
        with self._scans.long_reads.begun_export(self._format):
            stream = self._stream(turn, version, asker)
            try:
                part: ExportPart | None
                part = first = await stream.first()
                await send(_start(200, *head, _NO_RANGES))
                await self._send(first.head, send)
                while part is not None:
                    await self._send(self._rows(stream, part), send)
                    part = await stream.parts.next()
                await self._send(self._end, send)
            finally:
                await stream.parts.close()

    def _stream(self, turn: ScanTurn, version: ReadVersion, asker: Asker) -> ExportStream:
        read = patient(self._exports.part_reader(turn, version, self._format, asker))
        parts = PartsAhead(Place(turn.partitions[0]), turn.partitions, read)
        return ExportStream(
            self._exports, turn, ExportRequest(turn.asked, self._format, has_trailer=False), version, parts
        )

    def _rows(self, stream: ExportStream, part: ExportPart) -> bytes:
        """Return the rows of a part. In NDJSON each line is then a bare row: a line break occurs only after a row."""
        rows = b"".join(stream.counted(part))
        if self._format is not ExportFormat.NDJSON or not rows:
            return rows
        return rows[len(_ROW) : -len(_ROW_END)].replace(_ROW_END + _ROW, b"\n") + b"\n"

    @property
    def _end(self) -> bytes:
        return ARROW_END if self._ending == "arrows" else b""

    async def _send(self, data: bytes, send: SendMessage) -> None:
        for piece in cut_pieces([data]):
            self._scans.long_reads.exported_bytes[self._format] += len(piece)
            await send(body_message(piece))

    # ---- a file that is made before it is sent

    async def _make(self, turn: ScanTurn, version: ReadVersion, made: MadeFile) -> None:
        """Make a file. Raises a problem if rows cannot be read, are too many, or have columns that the format lacks."""
        if self._is_table:
            await asyncio.to_thread(_require_pyarrow)
        file = TableFile(made.descriptor, self._ending) if self._is_table else BytesFile(made.descriptor)
        try:
            with self._scans.long_reads.begun_export(self._format):
                await self._write(file, self._stream(turn, version, Asker()))
        finally:
            await asyncio.to_thread(file.close)
        made.size_bytes = file.size_bytes

    async def _write(self, file: BytesFile, stream: ExportStream) -> None:
        try:
            part: ExportPart | None
            part = first = await stream.first()
            head = first.head
            while part is not None:
                data = head + self._rows(stream, part) + (ARROW_END if self._is_table else b"")
                await asyncio.to_thread(self._fitting, partial(file.add, data))
                if file.size_bytes > MAX_FILE_BYTES:
                    what = f"the file of these rows of {self._store} is above {MAX_FILE_BYTES} bytes"
                    raise ProblemError(Problem(ProblemType.TOO_LARGE, what, where="path", fix=_FEWER))
                head = head if self._is_table else b""
                part = await stream.parts.next()
            await asyncio.to_thread(self._fitting, file.finish)
        finally:
            await stream.parts.close()

    def _fitting(self, write: Callable[[], None]) -> None:
        """Call `write`. Raises a problem if the format cannot hold the columns."""
        try:
            write()
        except (ValueError, NotImplementedError) as error:  # pyarrow raises both
            what = f"{self._ending} cannot hold these columns: {error}"
            fix = "Name other fields, or take .arrows or .ndjson"
            raise ProblemError(Problem(ProblemType.BAD_BOUND, what, where="fields", fix=fix)) from None

    async def _send_file(
        self, made: MadeFile, wanted: str, head: Headers, send: SendMessage, *, is_exact: bool
    ) -> None:
        size, accepts = made.size_bytes, (b"accept-ranges", b"bytes" if is_exact else b"none")
        try:
            part = read_range(wanted, size)
        except BeyondEndError:
            await send(_start(416, *head, (b"content-range", b"bytes */%d" % size), (b"content-length", b"0")))
            await send(body_message(b"", more=False))
            return
        first, last = part or ByteRange(0, size - 1)
        of = () if part is None else ((b"content-range", b"bytes %d-%d/%d" % (first, last, size)),)
        length = (b"content-length", b"%d" % (last + 1 - first))
        await send(_start(200 if part is None else 206, *head, accepts, length, *of))
        if not is_head(self._request):
            for at in range(first, last + 1, PIECE_BYTES):
                count = min(PIECE_BYTES, last + 1 - at)
                await self._send(await asyncio.to_thread(os.pread, made.descriptor, count, at), send)
        await send(body_message(b"", more=False))


def _start(status: int, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def _require_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401, PLC0415
    except ImportError:
        what = "this service makes no Parquet and Arrow files: pyarrow is not installed here"
        fix = f"Take .csv or .ndjson; or {install_fix('arrow')}"
        raise ProblemError(Problem(ProblemType.BAD_BOUND, what, where="path", fix=fix)) from None


class _Ending(StringConvertor):
    # The framework's `$` also matches before a last line break, and permissions take such a path for a store's name.
    regex = rf"(?:{'|'.join(FILE_ENDINGS)})\Z"


register_url_convertor("ending", _Ending())


def store_file_routes(exports: Exports, files: MadeFiles) -> APIRouter:
    """Make `/v1/stores/{store}.{ending}`. It stands before the route that describes a store."""
    routes = APIRouter()

    @routes.get("/v1/stores/{store}.{ending:ending}", response_class=StoreFileResponse)
    async def store_file(store: str, ending: str, request: Request) -> Response:
        """Send the rows of a store as a file, for a question in the query."""
        return StoreFileResponse(exports, files, store, ending, request)

    return routes
