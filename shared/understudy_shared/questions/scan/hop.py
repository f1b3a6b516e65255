"""The calls by which a router asks a node for a version, for an estimate, and for a part of a page (pure: bytes in,
bytes out). All are JSON. The rows of a part are the last member of the reply, so a router can cut them out and pass
them on without parsing them.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from understudy_shared.base.texts import clipped
from understudy_shared.questions.lookup.windows import WindowsOf
from understudy_shared.questions.scan.page import Access, PartPage
from understudy_shared.questions.scan.question import MAX_SCAN_BYTES, ScanOperation, ScanQuestion
from understudy_shared.questions.scan.where import parse_where
from understudy_shared.reads.bound_parsing import bound_fields, parse_bound
from understudy_shared.reads.bounds import Bound, ReadVersion, version_of
from understudy_shared.reads.hop_fields import (
    BadHopError,
    StoreOfHop,
    object_of,
    optional_whole,
    store_of_hop,
    text,
    whole,
)

PATH: Final = "/internal/v1/scan"
MAX_ROW_BYTES: Final = 8 * 1024 * 1024
"""Limit on a row, the same as on a hop. A page replaces a longer row with a problem for its key."""

MAX_PART_BYTES: Final = MAX_SCAN_BYTES + MAX_ROW_BYTES + 64 * 1024
"""Limit on a reply."""

_ROWS: Final = b',"rows":['
_ACCESSES: Final = frozenset(("seek", "pass", "filtered-pass"))


@dataclass(frozen=True, slots=True)
class ScanHop(StoreOfHop):
    """A request for rows of a partition at a version, after `after`, within this room. `layout` names how the router
    places and encodes keys. `rows` is None if rows are only counted; `elements` limits the elements of each key.
    """

    question: ScanQuestion
    partition: int
    version: ReadVersion
    after: bytes | None
    rows: int | None
    room_bytes: int
    is_empty: bool
    is_confined: bool
    budget_ms: int
    longs_as_text: bool
    elements: int

    def encode(self) -> bytes:
        return orjson.dumps(self.members())

    def members(self) -> dict[str, object]:
        return {
            **self.store_members(),
            "question": self.question.members(),
            "partition": self.partition,
            "version": self.version.number,
            "committed_at_us": self.version.committed_at_us,
            "after": _text_of(self.after),
            "rows": self.rows,
            "room_bytes": self.room_bytes,
            "is_empty": self.is_empty,
            "is_confined": self.is_confined,
            "budget_ms": self.budget_ms,
            "longs_as_text": self.longs_as_text,
            "elements": self.elements,
        }


def decode_scan_hop(body: bytes) -> ScanHop:
    """Parse a request. Raises BadHopError, and BadBoundError for a malformed filter."""
    return scan_hop_of(object_of(body))


def scan_hop_of(fields: dict[str, Any]) -> ScanHop:
    """Parse the members of a request. Raises BadHopError, and BadBoundError for a malformed filter."""
    try:
        return ScanHop(
            *store_of_hop(fields),
            _question(fields["question"]),
            whole(fields, "partition"),
            version_of(whole(fields, "version"), optional_whole(fields, "committed_at_us")),
            _bytes_of(fields["after"]),
            None if fields["rows"] is None else whole(fields, "rows"),
            whole(fields, "room_bytes"),
            _flag(fields, "is_empty"),
            _flag(fields, "is_confined"),
            whole(fields, "budget_ms"),
            _flag(fields, "longs_as_text"),
            whole(fields, "elements"),
        )
    except KeyError as error:
        raise BadHopError(f"the hop has no {error}") from None


def encode_part(part: PartPage) -> bytes:
    return b"%b%b%b]}\n" % (orjson.dumps(part_members(part))[:-1], _ROWS, part.rows)


def part_members(part: PartPage) -> dict[str, object]:
    """Return the members of a reply besides its rows."""
    return {
        "found": part.found,
        "looked_at": part.looked_at,
        "after": _text_of(part.after),
        "is_end": part.is_end,
        "stamp": part.stamp,
        "committed_at_us": part.committed_at_us,
        "access": part.access,
        **({"ranks": [[_text_of(rank), size] for rank, size in part.ranks]} if part.ranks else {}),
    }


def decode_part(body: bytes) -> PartPage:
    """Parse a reply. Raises BadHopError."""
    at = body.find(_ROWS)  # a text before it cannot match: its quotes are escaped
    if at < 0 or not body.endswith(b"]}\n"):
        raise BadHopError("the reply to a scan has no rows")
    return part_of(object_of(body[:at] + b"}"), body[at + len(_ROWS) : -3])


def part_of(fields: dict[str, Any], rows: bytes) -> PartPage:
    """Parse the members of a reply. Raises BadHopError."""
    try:
        access, stamp = text(fields, "access"), fields["stamp"]
        if access not in _ACCESSES or not isinstance(stamp, dict):
            raise BadHopError(f"the reply to a scan has the access {clipped(access)}, or no stamp")
        return PartPage(
            rows,
            whole(fields, "found"),
            whole(fields, "looked_at"),
            _bytes_of(fields["after"]),
            _flag(fields, "is_end"),
            stamp,
            optional_whole(fields, "committed_at_us"),
            cast(Access, access),
            _ranks(fields.get("ranks", [])),
        )
    except KeyError as error:
        raise BadHopError(f"the reply to a scan has no {error}") from None


def _ranks(value: object) -> tuple[tuple[bytes, int], ...]:
    found = []
    for each in value if isinstance(value, list) else [value]:
        match each:
            case [str(rank), int(size)] if size >= 0:
                found.append((_bytes_of(rank) or b"", size))
            case _:
                raise BadHopError("the reply to a scan has a row without a rank")
    return tuple(found)


def _question(members: object) -> ScanQuestion:
    if not isinstance(members, dict) or members.get("operation") not in ("scan", "count", "export", "windows"):
        raise BadHopError("the hop has no question")
    prefix, fields = members.get("prefix", []), members.get("fields")
    are_texts = isinstance(fields, list) and all(isinstance(each, str) for each in fields)
    if not isinstance(prefix, list) or not (fields is None or are_texts):
        raise BadHopError("the prefix and the fields of the hop must be lists")
    low, high, order = (members.get(name) for name in ("from", "to", "order"))
    if not {type(low), type(high), type(order)} <= {str, type(None)}:
        raise BadHopError("the range and the order of the hop must be text")
    return ScanQuestion(
        cast(ScanOperation, members["operation"]),
        None,
        tuple(prefix),
        parse_where(members.get("where", [])),
        None if fields is None else tuple(fields),
        _flag({"include_expired": True, **members}, "include_expired"),
        low=low,
        high=high,
        order=order,
        reverse=_flag({"reverse": False, **members}, "reverse"),
        windows=_windows(members.get("windows")),
    )


def _windows(value: object) -> WindowsOf | None:
    match value:
        case None:
            return None
        case {"key": list(key), "by": ("start" | "overlap") as by}:
            return WindowsOf(tuple(key), by)
    raise BadHopError(f"the windows of the hop are {clipped(value)}")


def _flag(fields: dict[str, Any], name: str) -> bool:
    if isinstance(fields[name], bool):
        return fields[name] is True
    raise BadHopError(f"the hop's {name} is {clipped(fields[name])}, not a boolean")


def _text_of(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _bytes_of(value: object) -> bytes | None:
    if value is None:
        return None
    try:
        return base64.b64decode(str(value), validate=True)
    except ValueError:
        raise BadHopError(f"the hop's after is {clipped(value)}, not base64") from None


VERSION_PATH: Final = "/internal/v1/scan/version"
ESTIMATE_PATH: Final = "/internal/v1/scan/estimate"


@dataclass(frozen=True, slots=True)
class VersionHop(StoreOfHop):
    """A request for a version at which a node can read some partitions of a store, and which it then keeps for a while;
    or for an estimate of their keys.
    """

    wanted: tuple[int, ...]
    bound: Bound

    def encode(self) -> bytes:
        members = {**self.store_members(), "wanted": self.wanted, "bound": bound_fields(self.bound)}
        return orjson.dumps(members)


def decode_version_hop(body: bytes) -> VersionHop:
    """Parse a request. Raises BadHopError, and BadBoundError for a malformed bound."""
    fields = object_of(body)
    try:
        wanted, bound = fields["wanted"], fields["bound"]
        if not isinstance(wanted, list) or {*map(type, wanted)} != {int}:
            raise BadHopError("the hop wants no list of partitions")
        if not isinstance(bound, dict):
            raise BadHopError("the hop has no bound")
        return VersionHop(*store_of_hop(fields), tuple(wanted), parse_bound(bound))
    except KeyError as error:
        raise BadHopError(f"the hop has no {error}") from None


def encode_version(version: ReadVersion) -> bytes:
    return orjson.dumps({"version": version.number, "committed_at_us": version.committed_at_us})


def decode_version(body: bytes) -> ReadVersion:
    """Parse a version. Raises BadHopError."""
    fields = object_of(body)
    try:
        return version_of(whole(fields, "version"), optional_whole(fields, "committed_at_us"))
    except KeyError as error:
        raise BadHopError(f"the reply has no {error}") from None


def encode_estimate(count: int) -> bytes:
    return orjson.dumps({"count": count})


def decode_estimate(body: bytes) -> int:
    """Parse an estimate. Raises BadHopError."""
    try:
        return whole(object_of(body), "count")
    except KeyError as error:
        raise BadHopError(f"the reply has no {error}") from None
