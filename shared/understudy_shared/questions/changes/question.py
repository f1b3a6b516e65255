"""The changes of a store's versions: what a reader may ask, and the call by which a router asks a node (pure).

A reply is a line of JSON and opaque bytes: the lines of each version, which a router passes on unread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.base.plausible import CEILING
from understudy_shared.base.texts import clipped
from understudy_shared.questions.export.hop import PART_BYTES
from understudy_shared.questions.scan.hop import MAX_ROW_BYTES, ScanHop, scan_hop_of
from understudy_shared.reads.bound_parsing import parse_moment
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.hop_fields import BadHopError, cut, object_of, optional_whole, whole

PATH: Final = "/internal/v1/changes"

MAX_VERSIONS: Final = 1_000
"""Limit on the versions of one request: ten times as many as Spark retains by default."""

MAX_AHEAD_BYTES: Final = 16 * 1024 * 1024
"""Memory of what one reader's partitions have ready behind the version that is sent, all together."""

LEAST_AHEAD_BYTES: Final = 64 * 1024
"""The least of it that a partition gets, however many there are."""

MOST_AHEAD_BYTES: Final = 1024 * 1024
MAX_CHANGES_PART_BYTES: Final = PART_BYTES + MAX_ROW_BYTES + 1024 * 1024
"""Limit on a reply."""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions that are asked for, both inclusive. Without `last`: to the newest. With `since_us`, a moment as a
    bound has it, the first is the one that was committed next.
    """

    first: int
    last: int | None = None
    since_us: int | None = None


def parse_versions(given: Mapping[str, object]) -> VersionRange:
    """Parse the members `from` and `to`. Raises BadBoundError."""
    since, last = given.get("from"), _version(given, "to")
    if isinstance(since, str) and not since.isdigit():
        return VersionRange(0, last, parse_moment("from", since))
    first = _version(given, "from")
    if first is None:
        what = "the changes of a store are asked for from a version on"
        raise BadBoundError(what, where="from", fix="Send from=1m, or the version of the last answer, plus one")
    if last is not None and first > last:
        raise BadBoundError(f"from={first} is after to={last}", where="from", fix="Send the earlier version as from")
    if last is not None and last - first >= MAX_VERSIONS:
        what = f"from={first} to={last} are {last - first + 1} versions, and a request has at most {MAX_VERSIONS}"
        raise BadBoundError(what, where="to", fix="Send several requests")
    return VersionRange(first, last)


def _version(given: Mapping[str, object], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19 else value
    if type(number) is int and 1 <= number <= CEILING:
        return number
    raise BadBoundError(f"{name}={clipped(value)} is not a version", where=name, fix="Send a whole number from 1 on")


def ahead_bytes(partitions: int) -> int:
    """Return how much a part of one of so many partitions may hold behind its first version."""
    return min(MOST_AHEAD_BYTES, max(LEAST_AHEAD_BYTES, MAX_AHEAD_BYTES // max(1, partitions)))


class ChangesPlace(NamedTuple):
    """The place in the changes of a partition: a version, and how many of its changed keys are behind the reader."""

    version: int
    looked_at: int = 0


class VersionLines(NamedTuple):
    """The lines of a version of one partition, or of a piece of it. `looked_at` counts its keys up to the end of this
    piece, `found` the lines; `is_whole`: there is no other piece behind it.
    """

    version: int
    lines: bytes | memoryview
    found: int
    looked_at: int
    is_whole: bool
    committed_at_us: int | None


@dataclass(frozen=True, slots=True)
class ChangesHop:
    """A question about the changes of a partition from `skip` keys of a version on, up to version `last`. Its `scan`
    names store, partition, version, prefix and columns; its `room_bytes` are for the versions behind the first, and of
    a short part for the first one, too.
    """

    scan: ScanHop
    last: int
    skip: int
    is_short: bool

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        return orjson.dumps({**self.scan.members(), "last": self.last, "skip": self.skip, "is_short": self.is_short})


def decode_changes_hop(body: bytes) -> ChangesHop:
    """Parse a request. Raises BadHopError, and BadBoundError for a malformed filter."""
    fields = object_of(body)
    try:
        is_short = fields["is_short"] is True
        return ChangesHop(scan_hop_of(fields), whole(fields, "last"), whole(fields, "skip"), is_short)
    except KeyError as error:
        raise BadHopError(f"the hop has no {error}") from None


def encode_changes(part: tuple[VersionLines, ...]) -> tuple[bytes | memoryview, ...]:
    """Return the bytes of a reply, in pieces."""
    said = [
        {
            "version": each.version,
            "bytes": len(each.lines),
            "found": each.found,
            "looked_at": each.looked_at,
            "is_whole": each.is_whole,
            "committed_at_us": each.committed_at_us,
        }
        for each in part
    ]
    head = orjson.dumps({"versions": said}, option=orjson.OPT_APPEND_NEWLINE)
    return (head, *(each.lines for each in part))


def decode_changes(body: bytes, first: int) -> tuple[VersionLines, ...]:
    """Parse the reply to a question for the changes from a version on. Raises BadHopError."""
    at = body.find(b"\n")
    said = object_of(body[: max(0, at)]).get("versions")
    if not isinstance(said, list) or not said or not all(isinstance(each, dict) for each in said):
        raise BadHopError("the reply to a question for changes has no versions")
    try:
        lines = cut(body, [whole(each, "bytes") for each in said], at + 1)
        found = tuple(_of_version(each, text) for each, text in zip(said, lines, strict=True))
    except KeyError as error:
        raise BadHopError(f"the reply to a question for changes has no {error}") from None
    if [each.version for each in found] != list(range(first, first + len(found))):
        raise BadHopError(f"the reply to a question for changes from version {first} on has other versions")
    return found


def _of_version(said: dict[str, Any], lines: bytes) -> VersionLines:
    return VersionLines(
        whole(said, "version"),
        lines,
        whole(said, "found"),
        whole(said, "looked_at"),
        said["is_whole"] is True,
        optional_whole(said, "committed_at_us"),
    )
