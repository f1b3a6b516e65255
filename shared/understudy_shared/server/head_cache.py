"""Cached heads of requests that were answered directly: a request with an equal head is not parsed again."""

from __future__ import annotations

import re
from typing import NamedTuple

from understudy_shared.auth.api_keys import Presented
from understudy_shared.server.incoming import END_OF_HEAD
from understudy_shared.server.parsed_cache import MAX_HEAD_BYTES, ParsedCache

_METHODS = (b"GET ", b"POST ")


def lookup_line(root_path: str = "") -> re.Pattern[bytes]:
    """Return the first line of a lookup, with no character in its target that a parser could read as anything else. The
    prefix of the service may stand before it.
    """
    target = rb"(/v1/(?:applications|stores)/[A-Za-z0-9/_.~%:,=&?+@!$'()*;-]+)"
    return re.compile(rb"GET (?:%b)?%b HTTP/1\.1\r\n" % (re.escape(root_path.encode()), target))


LOOKUP_LINE = lookup_line()


class ParsedHead(NamedTuple):
    """The head of a request that was answered directly: all of it for a POST, all but the first line for a lookup.

    `presented` is the credential in exactly the bytes of `head`. It is checked for each request anew.
    """

    head: bytes
    target: bytes = b""
    body_bytes: int = 0
    presented: Presented | None = None
    application: bytes | None = None
    """The application that a POST names in its headers."""


class KnownHeads:
    """The cached heads as one connection uses them; all connections of a service share the cache."""

    __slots__ = ("_line", "_shared", "last", "whole")

    def __init__(self, shared: ParsedCache[ParsedHead], line: re.Pattern[bytes] = LOOKUP_LINE) -> None:
        self._shared, self._line = shared, line
        self.last: ParsedHead | None = None
        """The head of the last lookup here.

        Most clients send each lookup with the same headers, which are then not hashed.
        """
        self.whole = b""
        """The bytes of the read that is being parsed, if no request was under way when it arrived."""

    def lookup(self, data: bytes) -> bytes | None:
        """Return the target of a lookup whose headers were parsed before; `last` has these headers then."""
        line = self._line.match(data)
        if line is None or len(data) > MAX_HEAD_BYTES:
            return None
        last = self.last
        if last is None or len(last.head) != len(data) - line.end() or not data.endswith(last.head):
            last = self.last = self._shared.get(data[line.end() :])
        return None if last is None else line[1]

    def post(self, data: bytes) -> ParsedHead | None:
        """Return the head of a POST that was parsed before, if its whole body came in the same read."""
        start = data.find(END_OF_HEAD, 0, MAX_HEAD_BYTES) + len(END_OF_HEAD)
        head = self._shared.get(data[:start])
        return head if head is not None and head.body_bytes == len(data) - start else None

    def keep(
        self, target: bytes, body_bytes: int, presented: Presented | None, application: bytes | None = None
    ) -> None:
        """Cache the head of a request that was answered directly, if the read was that request and nothing else."""
        data, self.whole = self.whole, b""
        end = data.find(END_OF_HEAD, 0, MAX_HEAD_BYTES) + len(END_OF_HEAD)
        # A read that holds more than this request would be kept under bytes that never come again.
        if not data.startswith(_METHODS) or end + body_bytes != len(data):
            return
        if body_bytes:
            self._shared.keep(data[:end], ParsedHead(data[:end], target, body_bytes, presented, application))
        elif line := self._line.match(data):
            rest = data[line.end() :]
            self._shared.keep(rest, ParsedHead(rest, presented=presented))
