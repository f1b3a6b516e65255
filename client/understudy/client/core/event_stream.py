"""Server-sent events out of bytes as they come (pure): https://html.spec.whatwg.org/multipage/server-sent-events.html.

Stricter than a browser: what is no UTF-8 is an error and not a replacement character, and an event has a largest size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from understudy.client.core.streaming import BadStreamError

MEDIA_TYPE: Final = "text/event-stream"
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
"""Largest event in bytes: twice the largest answer of a node."""

_END_OF_LINE: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"
_MAX_RETRY_DIGITS: Final = 9


class ServerEvent(NamedTuple):
    """An event, or a part of the stream without one: a comment, or only a `retry`. Then `data` is None.

    `id` and `retry_ms` are None where the event does not have them.
    """

    kind: str
    data: str | None
    id: str | None
    retry_ms: int | None


@dataclass(slots=True)
class _Fields:
    """The fields of an event so far."""

    kind: str = ""
    data: list[str] = field(default_factory=list)
    id: str | None = None
    retry_ms: int | None = None


class EventParser:
    """A parser of one stream. However the bytes are cut, the events are the same."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._left = bytearray()
        """The beginning of a line that has not ended."""
        self._held = 0
        """Size of the event that has not ended, so far."""
        self._fields = _Fields()
        self._is_first_line = True
        self._ended_by_cr = False

    def __repr__(self) -> str:
        return f"EventParser({self._held} bytes wait)"

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Return what ended in these bytes, in order. Raises BadStreamError."""
        if not data:
            return []
        if self._ended_by_cr:
            data = data.removeprefix(b"\n")  # the rest of the end of a line
            self._ended_by_cr = False
        *lines, rest = _END_OF_LINE.split(data)
        self._ended_by_cr = data.endswith(b"\r")
        found: list[ServerEvent] = []
        for line in lines:
            self._grow(len(line))
            whole = bytes(self._left) + line if self._left else line
            self._left.clear()
            event = self._line(whole)
            if event is not None:
                found.append(event)
        self._grow(len(rest))
        self._left += rest
        return found

    def _grow(self, size: int) -> None:
        self._held += size
        if self._held > self._max_event_bytes:
            raise BadStreamError(f"an event is above {self._max_event_bytes} bytes")

    def _line(self, line: bytes) -> ServerEvent | None:
        """Take a whole line; return the event that it ends."""
        if self._is_first_line:
            line, self._is_first_line = line.removeprefix(_BOM), False
        if not line:
            return self._end()
        try:
            name, _, value = line.decode().partition(":")
        except UnicodeDecodeError as error:
            raise BadStreamError(f"a line is no UTF-8: {error.reason}") from None
        self._field(name, value.removeprefix(" "))
        return None

    def _end(self) -> ServerEvent:
        fields, self._fields, self._held = self._fields, _Fields(), 0
        data = "\n".join(fields.data) if fields.data else None
        return ServerEvent(fields.kind or "message", data, fields.id, fields.retry_ms)

    def _field(self, name: str, value: str) -> None:
        fields = self._fields
        if name == "event":
            fields.kind = value
        elif name == "data":
            fields.data.append(value)
        elif name == "id" and "\0" not in value:
            fields.id = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            fields.retry_ms = int(value)
