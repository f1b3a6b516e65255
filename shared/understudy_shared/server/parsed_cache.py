"""Caches of parsed requests by their bytes, because requests repeat. They never contain answers.

If the head of a request equals the head of one that was answered directly, it is not parsed again.
"""

from __future__ import annotations

import re
from typing import Generic, NamedTuple, TypeVar

from understudy_shared.auth.presented import Presented
from understudy_shared.server.incoming import END_OF_HEAD

MAX_ENTRIES = 16_384

MAX_TARGET_BYTES = 256
"""Longest cached target. With its parsed request a target takes about 1 KiB: 20 MB in all."""

MAX_HEAD_BYTES = 4096
"""Longest cached head. Requests of common clients have 50 to 300 bytes, and 700 to 2,500 with a token of an issuer."""

MAX_BYTES = 8 * 1024 * 1024
"""Limit on the bytes of all keys: with long keys there are fewer entries. With the parsed requests, 20 MB in all."""

T = TypeVar("T")


class ParsedCache(Generic[T]):
    """A cache of at most MAX_ENTRIES and MAX_BYTES: if the younger half is full, the older half is dropped."""

    def __init__(self, *, max_key_bytes: int) -> None:
        """Create a cache that ignores longer keys."""
        self._max_key_bytes = max_key_bytes
        self._young: dict[bytes, T] = {}
        self._young_bytes = 0
        self._old: dict[bytes, T] = {}

    def get(self, key: bytes) -> T | None:
        found = self._young.get(key)
        if found is None and self._old:
            found = self._old.pop(key, None)
            if found is not None:
                self.keep(key, found)
        return found

    def keep(self, key: bytes, parsed: T) -> None:
        """Cache an entry, unless its key is longer than `max_key_bytes`."""
        if len(key) > self._max_key_bytes:
            return
        if len(self._young) >= MAX_ENTRIES // 2 or self._young_bytes + len(key) > MAX_BYTES // 2:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        if key not in self._young:
            self._young_bytes += len(key)
        self._young[key] = parsed

    def clear(self) -> None:
        self._young, self._young_bytes, self._old = {}, 0, {}


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
    packs: bool = False
    """Whether a long answer to a GET with this head may be compressed."""


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
        """Return the target of a lookup whose headers were parsed before, and put its head into `last`."""
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
        self,
        target: bytes,
        body_bytes: int,
        presented: Presented | None,
        application: bytes | None = None,
        *,
        packs: bool = False,
    ) -> None:
        """Cache the head of a request that was answered directly, if the read was that request and nothing else."""
        data, self.whole = self.whole, b""
        end = data.find(END_OF_HEAD, 0, MAX_HEAD_BYTES) + len(END_OF_HEAD)
        # A read with more than this request would be cached under bytes that never repeat.
        if not data.startswith(_METHODS) or end + body_bytes != len(data):
            return
        if body_bytes:
            self._shared.keep(data[:end], ParsedHead(data[:end], target, body_bytes, presented, application))
        elif line := self._line.match(data):
            rest = data[line.end() :]
            self._shared.keep(rest, ParsedHead(rest, presented=presented, packs=packs))
