"""The W3C trace context of a request: the `traceparent` that came, its ids for the log, and the header for the next
hop.

Without an exporter of spans (`spans.py`) services pass a context on as it came, so the reader's span stays the parent.
A header that is malformed, or there twice, is ignored: a request never fails because of its trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

HEADER = b"traceparent"

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]{0,256})?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class Trace(NamedTuple):
    """The trace of a request, and the span of its sender."""

    trace_id: str
    parent_id: str
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """The header to send on, in version 00."""
        return f"00-{self.trace_id}-{self.parent_id}-{'01' if self.is_sampled else '00'}"

    @property
    def ids(self) -> dict[str, str]:
        """The fields of a log line."""
        return {"trace_id": self.trace_id, "parent_id": self.parent_id}


def parse_traceparent(value: str) -> Trace | None:
    """Parse the context in a header; None when it is malformed. A later version may have more fields at the end."""
    found = _FORM.fullmatch(value)
    if found is None:
        return None
    version, trace_id, parent_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or parent_id == _NO_SPAN:
        return None
    return Trace(trace_id, parent_id, bool(int(flags, 16) & 1))


def is_traced(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request has such a header, well-formed or not. Names are in lower case."""
    return any(name == HEADER for name, _ in headers)


def trace_of(headers: Iterable[tuple[bytes, bytes]]) -> Trace | None:
    """Return the context of a request, if it has one. Names are in lower case."""
    values = [value for name, value in headers if name == HEADER]
    return parse_traceparent(values[0].decode("latin-1").strip()) if len(values) == 1 else None


def ids_of(trace: Trace | None) -> dict[str, str]:
    """Return the fields of a log line about a request, traced or not."""
    return {} if trace is None else trace.ids
