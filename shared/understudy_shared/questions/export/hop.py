"""The calls by which a router asks a node for parts of an export (pure: bytes in, bytes out).

A reply is a line of JSON and opaque bytes, which a router passes on unparsed: the head of a stream in that format, then
the rows and the cursor record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from understudy_shared.base.texts import clipped
from understudy_shared.questions.scan.hop import MAX_ROW_BYTES, ScanHop, part_members, part_of, scan_hop_of
from understudy_shared.questions.scan.page import PartPage
from understudy_shared.reads.export_format import ExportFormat
from understudy_shared.reads.hop_fields import BadHopError, object_of, optional_whole, text, whole

EXPORT_PATH: Final = "/internal/v1/export"
END_PATH: Final = "/internal/v1/export/end"
PART_TYPE: Final = "application/vnd.understudy.part"

PART_BYTES: Final = 4 * 1024 * 1024
"""Size at which a part ends, before the row that would exceed it, unless that is its only one."""

PART_ROWS: Final = 65_536
"""Limit on the rows of a part."""

PART_MS: Final = 1_000
"""Time of work after which a part ends, with the rows that it has."""

MAX_EXPORT_PART_BYTES: Final = 2 * PART_BYTES + MAX_ROW_BYTES + 1024 * 1024
"""Limit on a reply. A part is measured as JSON, and other formats may need more bytes."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The fields that a node needs for the cursor at the end of a part: the digest of the question, and the next
    partition, None after the last.
    """

    digest: str
    next_partition: int | None


@dataclass(frozen=True, slots=True)
class ExportHop:
    """A question about the next part of a partition. Without `resume` the part has no cursor."""

    scan: ScanHop
    format: ExportFormat
    resume: ResumePoint | None

    def encode(self) -> bytes:
        members = {**self.scan.members(), "format": self.format}
        if self.resume is not None:
            members |= {"digest": self.resume.digest, "next_partition": self.resume.next_partition}
        return orjson.dumps(members)


def decode_export_hop(body: bytes) -> ExportHop:
    """Parse a request. Raises BadHopError, and BadBoundError for a malformed filter."""
    fields = object_of(body)
    resume = None
    if "digest" in fields:
        resume = ResumePoint(
            text(fields, "digest"), optional_whole({"next_partition": None, **fields}, "next_partition")
        )
    return ExportHop(scan_hop_of(fields), _format_of(fields), resume)


@dataclass(frozen=True, slots=True)
class EndHop:
    """A request for the last record of a stream in that format. `said` has one member, `end` or `error`. `scan` names
    the store and the columns; its place and its room are ignored.
    """

    scan: ScanHop
    format: ExportFormat
    said: Mapping[str, object]

    def encode(self) -> bytes:
        return orjson.dumps({**self.scan.members(), "format": self.format, **self.said})


def decode_end_hop(body: bytes) -> EndHop:
    """Parse a request. Raises BadHopError, and BadBoundError for a malformed filter."""
    fields = object_of(body)
    said = {name: fields[name] for name in ("end", "error") if isinstance(fields.get(name), dict)}
    if len(said) != 1:
        raise BadHopError("the hop has neither an end nor an error, or both")
    return EndHop(scan_hop_of(fields), _format_of(fields), said)


@dataclass(frozen=True, slots=True)
class ExportPart:
    """A part of an export. `page` has the fields of a page besides its rows. `pieces` are the rows in the format of the
    export, and the cursor record; `head` is the head of a stream in that format. `shape` is the digest of its columns,
    the same for all parts of a stream.
    """

    page: PartPage
    head: bytes
    shape: str
    pieces: tuple[bytes | memoryview, ...]
    """Bytes that are never joined: a copy of 4 MB would block the event loop for milliseconds."""


def encode_export_part(part: ExportPart) -> tuple[bytes | memoryview, ...]:
    """Return the bytes of a reply, in pieces."""
    said = {**part_members(part.page), "shape": part.shape, "head_bytes": len(part.head)}
    first = b"%b\n%b" % (orjson.dumps({**said, "bytes": sum(map(len, part.pieces))}), part.head)
    return (first, *part.pieces)


def decode_export_part(body: bytes) -> ExportPart:
    """Parse a reply. Raises BadHopError."""
    at = body.find(b"\n")
    fields = object_of(body[: max(0, at)])
    try:
        ends = at + 1 + whole(fields, "head_bytes")
        if at < 0 or len(body) != ends + whole(fields, "bytes"):
            raise BadHopError("the reply to an export is cut")
        return ExportPart(part_of(fields, b""), body[at + 1 : ends], text(fields, "shape"), (memoryview(body)[ends:],))
    except KeyError as error:
        raise BadHopError(f"the reply to an export has no {error}") from None


def _format_of(fields: dict[str, Any]) -> ExportFormat:
    try:
        return ExportFormat(str(fields.get("format")))
    except ValueError:
        raise BadHopError(f"the hop has the format {clipped(fields.get('format'))}") from None
