"""The request between router and node: many lookups of several stores in one round trip (pure: bytes in, bytes out).

A request is a JSON header and the keys after it, packed; a reply is a JSON header, a kind and a length per key, and the
bodies after them. The result of a lookup is in its own outcome, never in the HTTP status. The body of a found or absent
key is the answer's JSON *after* `"key":...,`: the router knows the key, and puts the head before it. The *tail*, its
source and age, is the same for all keys of a partition, so equal tails are sent once.

Keys and outcomes are columns, so a batch makes no object per key; code for a single lookup takes one item. Every lookup
checks which of the two it has with `type(...) is`: `isinstance` with an abstract sequence takes four times as long.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar, cast, overload

import orjson

from understudy_shared.base.texts import clipped
from understudy_shared.reads.bound_parsing import bound_fields, parse_bound
from understudy_shared.reads.bounds import EVERYTHING, NO_BOUND, BadBoundError, Bound
from understudy_shared.reads.hop_fields import BadHopError, cut, object_of, text, whole
from understudy_shared.reads.tokens import BadCursorError, BadPositionError
from understudy_shared.telemetry.spans import Trace, parse_traceparent

FOUND, ABSENT, PROBLEM = 0, 1, 2
"""Kinds of an outcome. The body of a PROBLEM is its whole `application/problem+json`."""

OPEN = 255
"""A value in a column of kinds that means "no outcome yet". It is never sent."""

NO_PARTITION = -1
"""The partition of a batch's key that does not parse."""


class HopKey(NamedTuple):
    """A key's partition, and its UnsafeRow bytes without the provider's prefix."""

    partition: int
    row: bytes


class HopOutcome(NamedTuple):
    """The outcome of one key. The `tail` belongs behind the body; a problem has no tail."""

    kind: int
    body: bytes
    tail: bytes = b""


Item = TypeVar("Item", HopKey, HopOutcome)


class _ItemColumns(Sequence[Item]):
    """A sequence of items that is stored as columns."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it equals lists, which have no hash

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r:.200})"


class HopKeys(_ItemColumns[HopKey]):
    """Keys as columns: the partition and the row of each."""

    __slots__ = ("partitions", "rows")

    def __init__(self, partitions: Sequence[int], rows: Sequence[bytes]) -> None:
        self.partitions = partitions
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[HopKey]:
        return map(HopKey, self.partitions, self.rows)

    @overload
    def __getitem__(self, at: int) -> HopKey: ...
    @overload
    def __getitem__(self, at: slice) -> HopKeys: ...
    def __getitem__(self, at: int | slice) -> HopKey | HopKeys:
        if isinstance(at, slice):
            return HopKeys(self.partitions[at], self.rows[at])
        return HopKey(self.partitions[at], self.rows[at])

    def at(self, indexes: Sequence[int]) -> HopKeys:
        """Return the keys at these indexes."""
        partitions, rows = self.partitions, self.rows
        return HopKeys([partitions[index] for index in indexes], [rows[index] for index in indexes])

    @classmethod
    def of(cls, keys: Sequence[HopKey]) -> HopKeys:
        """Return these keys as columns."""
        return keys if type(keys) is HopKeys else HopKeys([key[0] for key in keys], [key[1] for key in keys])


class HopOutcomes(_ItemColumns[HopOutcome]):
    """Outcomes as columns: the kind, the body and the tail of each."""

    __slots__ = ("bodies", "kinds", "tails")

    def __init__(self, kinds: Sequence[int], bodies: Sequence[bytes], tails: Sequence[bytes]) -> None:
        self.kinds = kinds
        self.bodies = bodies
        self.tails = tails

    def __len__(self) -> int:
        return len(self.bodies)

    def __iter__(self) -> Iterator[HopOutcome]:
        return map(HopOutcome, self.kinds, self.bodies, self.tails)

    @overload
    def __getitem__(self, at: int) -> HopOutcome: ...
    @overload
    def __getitem__(self, at: slice) -> HopOutcomes: ...
    def __getitem__(self, at: int | slice) -> HopOutcome | HopOutcomes:
        if isinstance(at, slice):
            return HopOutcomes(self.kinds[at], self.bodies[at], self.tails[at])
        return HopOutcome(self.kinds[at], self.bodies[at], self.tails[at])

    @classmethod
    def of(cls, outcomes: Sequence[HopOutcome]) -> HopOutcomes:
        """Return these outcomes as columns."""
        if type(outcomes) is HopOutcomes:
            return outcomes
        return HopOutcomes(
            [outcome[0] for outcome in outcomes],
            [outcome[1] for outcome in outcomes],
            [outcome[2] for outcome in outcomes],
        )

    @classmethod
    def joined(cls, parts: Sequence[HopOutcomes]) -> HopOutcomes:
        """Join the outcomes of all parts, one after another."""
        if len(parts) == 1:
            return parts[0]
        return HopOutcomes(
            [kind for part in parts for kind in part.kinds],
            [body for part in parts for body in part.bodies],
            [tail for part in parts for tail in part.tails],
        )


def indexes_by_partition(partitions: Sequence[int]) -> dict[int, list[int]]:
    """Group the indexes of the keys by partition."""
    found: dict[int, list[int]] = {}
    for index, partition in enumerate(partitions):
        if partition in found:
            found[partition].append(index)
        else:
            found[partition] = [index]
    found.pop(NO_PARTITION, None)
    return found


PATH = "/internal/v1/lookup"
CONTENT_TYPE = b"application/x-understudy-hop"
MAX_HOP_BYTES = 8 * 1024 * 1024
MAX_HOP_KEYS = 4096
"""Limit on the keys of one request; more travel in the next. No group is empty, so it limits the groups, too."""

MAX_HOP_HEADER_BYTES = MAX_HOP_BYTES // 2
"""Limit on the header: room for a bound with a position in each group of a router's hop. JSON of this size takes about
20 ms to parse.
"""

HOP_SLICE_GROUPS = 200
"""Number of groups decoded between two turns of the event loop: about 2 ms."""

MAX_LAYOUT_CHARS = 64

MAX_TAIL_BYTES = 8192
"""Limit on a tail, twice the size of one with the longest names. So an assembled answer stays in proportion to the
reply.
"""

MAX_KEPT_HEADER_BYTES = 512
KEPT_HEADERS = 1024
"""Number of cached headers, 3 MB at most: short headers repeat but for the number of keys and the deadline."""

_MAGIC = b"USH1"
_TRACES = b'"traces":'
_HEAD = struct.Struct("<4sI")


class HopGroup(NamedTuple):
    """Lookups of one store under one bound. The node refuses unless lineage and partition count are exactly its own."""

    store: str
    lineage: str
    partitions: int
    bound: Bound
    keys: Sequence[HopKey]
    """`HopKeys` in a decoded request."""
    layout: str
    """The layout that encoded and placed the keys (`KeyCodec.layout`). The node refuses any other than its own."""


class HopTrace(NamedTuple):
    """The trace context of a client, with the place of its key in the hop; for a batch, of its first key."""

    place: int
    trace: Trace


class HopRequest(NamedTuple):
    """The request of one hop. `end_version` is the newest end that the router knows. The node measures bounds against
    that or its own, whichever is newer.

    `deadline_ms` is the time left for the whole hop.
    """

    application_id: str
    end_version: int
    term: int
    epoch: int
    deadline_ms: int
    groups: Sequence[HopGroup]
    traces: Sequence[HopTrace] = ()
    """Trace contexts from clients; nearly always empty."""


class HopReply(NamedTuple):
    """Outcomes in the order of the keys, group after group; and the term, epoch and end version of the node."""

    term: int
    epoch: int
    end_version: int
    outcomes: Sequence[HopOutcome]


def encode_request(request: HopRequest) -> bytes:
    """Encode the body of a hop."""
    partitions: list[int] = []
    rows: list[bytes] = []
    groups = []
    for group in request.groups:
        keys, before = group.keys, len(rows)
        if type(keys) is HopKeys:
            partitions += keys.partitions
            rows += keys.rows
        else:
            for partition, row in keys:
                partitions.append(partition)
                rows.append(row)
        fields: dict[str, object] = {
            "store": group.store,
            "lineage": group.lineage,
            "partitions": group.partitions,
            "count": len(rows) - before,
            "layout": group.layout,
        }
        if group.bound is not NO_BOUND:
            fields["bound"] = bound_fields(group.bound)
            if group.bound.selection is not EVERYTHING:
                fields["select"] = group.bound.selection.fields()
        groups.append(fields)
    head: dict[str, object] = {
        "application_id": request.application_id,
        "end_version": request.end_version,
        "term": request.term,
        "epoch": request.epoch,
        "deadline_ms": request.deadline_ms,
        "groups": groups,
    }
    if request.traces:
        head["traces"] = [[place, trace.traceparent] for place, trace in request.traces]
    header = orjson.dumps(head)
    count = len(rows)
    packed = struct.pack(f"<{2 * count}I", *partitions, *map(len, rows))
    return b"".join((_HEAD.pack(_MAGIC, len(header)), header, packed, *rows))


def decode_request(body: bytes) -> HopRequest:
    """Decode the request in a body. Raises BadHopError. Its bounds never wait: the deadline limits the hop."""
    header, start = _header(body)
    is_kept = len(header) <= MAX_KEPT_HEADER_BYTES and _TRACES not in header  # a header with a trace is never repeated
    head = (_kept_head if is_kept else _head)(header)
    return _with_keys(head, body, start)


def decode_in_steps(body: bytes) -> Generator[int, None, HopRequest]:
    """Decode a request in bounded slices. Yields the hop's `deadline_ms` after each, so that the caller can do other
    work in between.
    """
    header, start = _header(body)
    return _with_keys((yield from _head_in_steps(header)), body, start)


class _Head(NamedTuple):
    """The header of a request: groups without keys, and how many keys each has."""

    request: HopRequest
    counts: list[int]


def _head_in_steps(header: bytes) -> Generator[int, None, _Head]:
    fields = object_of(header)
    try:
        deadline_ms = whole(fields, "deadline_ms")
        counts = _counts(fields["groups"])
        if sum(counts) > MAX_HOP_KEYS:
            raise BadHopError(f"the hop has {sum(counts)} keys, above {MAX_HOP_KEYS}")
        groups: list[HopGroup] = []
        for group in fields["groups"]:
            if groups and len(groups) % HOP_SLICE_GROUPS == 0:
                yield deadline_ms
            bound = group.get("bound")
            if bound is not None and "select" in group:
                bound = {**bound, **group["select"]}
            # Without the bound's wait, which would delay the other reads of this hop: the router retries instead.
            groups.append(
                HopGroup(
                    text(group, "store"),
                    text(group, "lineage"),
                    whole(group, "partitions"),
                    NO_BOUND if bound is None else replace(parse_bound(bound), wait_ms=0),
                    (),
                    _layout(group),
                )
            )
        request = HopRequest(
            text(fields, "application_id"),
            whole(fields, "end_version"),
            whole(fields, "term"),
            whole(fields, "epoch"),
            deadline_ms,
            groups,
            _traces(fields.get("traces"), sum(counts)),
        )
    except (BadBoundError, BadPositionError, BadCursorError) as error:
        raise BadHopError(f"the hop has an invalid bound: {error.what}", where=error.where) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise BadHopError(f"the hop's header does not fit: {error!r}") from None
    return _Head(request, counts)


def _head(header: bytes) -> _Head:
    steps = _head_in_steps(header)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(_Head, end.value)


_kept_head = lru_cache(maxsize=KEPT_HEADERS)(_head)


def _with_keys(head: _Head, body: bytes, start: int) -> HopRequest:
    request, counts = head
    count = sum(counts)
    try:
        numbers = struct.unpack_from(f"<{2 * count}I", body, start)
    except struct.error as error:
        raise BadHopError(f"the hop's header does not fit: {error!r}") from None
    rows = cut(body, numbers[count:], start + 8 * count)
    keys = HopKeys(numbers[:count], rows)
    if len(counts) == 1:  # nearly all hops without load: this saves slices, and two calls of a named tuple
        ((store, lineage, partitions, bound, _, layout),) = request.groups
        one = [HopGroup(store, lineage, partitions, bound, keys, layout)]
        return tuple.__new__(HopRequest, (*request[:5], one, request.traces))
    groups = [
        HopGroup(store, lineage, partitions, bound, keys[end - length : end], layout)
        for (store, lineage, partitions, bound, _, layout), length, end in zip(
            request.groups, counts, accumulate(counts), strict=True
        )
    ]
    return request._replace(groups=groups)


def encode_reply(reply: HopReply) -> bytes:
    """Encode the body of a hop's reply. Equal tails are sent once."""
    outcomes = HopOutcomes.of(reply.outcomes)
    bodies, tails = outcomes.bodies, outcomes.tails
    count = len(bodies)
    place_of = {b"": 0}
    for tail in dict.fromkeys(tails):
        place_of.setdefault(tail, len(place_of))
    different = list(place_of)[1:]
    fields: dict[str, Any] = {
        "term": reply.term,
        "epoch": reply.epoch,
        "end_version": reply.end_version,
        "count": count,
        "tails": list(map(len, different)),
    }
    places = struct.pack(f"<{count}H", *map(place_of.__getitem__, tails))
    lengths = struct.pack(f"<{count}I", *map(len, bodies))
    header = orjson.dumps(fields)
    return b"".join(
        (_HEAD.pack(_MAGIC, len(header)), header, bytes(outcomes.kinds), lengths, places, *different, *bodies)
    )


def decode_reply(body: bytes) -> HopReply:
    """Decode the reply in a body. Raises BadHopError."""
    header, start = _header(body)
    head = (_kept_reply_head if len(header) <= MAX_KEPT_HEADER_BYTES else _reply_head)(header)
    count, sizes = head.keys, head.tail_sizes
    kinds = body[start : start + count]
    if len(kinds) != count or (kinds and max(kinds) > PROBLEM):
        raise BadHopError("the hop's reply has an unknown kind of outcome")
    start += count
    try:
        lengths = struct.unpack_from(f"<{count}I", body, start)
        places = struct.unpack_from(f"<{count}H", body, start + 4 * count)
        parts = cut(body, [*sizes, *lengths], start + 6 * count)
        different, bodies = [b"", *parts[: len(sizes)]], parts[len(sizes) :]
        tails = tuple(map(different.__getitem__, places))
    except (IndexError, struct.error) as error:
        raise BadHopError(f"the header of the hop's reply does not fit: {error!r}") from None
    if 0 in places and any(kind != PROBLEM for kind, place in zip(kinds, places, strict=True) if not place):
        raise BadHopError("an answer in the hop's reply has no tail")
    return HopReply(head.term, head.epoch, head.end_version, HopOutcomes(kinds, bodies, tails))


class _ReplyHead(NamedTuple):
    """The header of a reply. `tail_sizes` are the sizes of its different tails."""

    term: int
    epoch: int
    end_version: int
    keys: int
    tail_sizes: list[int]


def _reply_head(header: bytes) -> _ReplyHead:
    fields = object_of(header)
    try:
        count = whole(fields, "count")
        if count > MAX_HOP_KEYS:
            raise BadHopError(f"the hop's reply has {count} keys, above {MAX_HOP_KEYS}")
        sizes = _tail_sizes(fields["tails"])
        return _ReplyHead(whole(fields, "term"), whole(fields, "epoch"), whole(fields, "end_version"), count, sizes)
    except KeyError as error:
        raise BadHopError(f"the header of the hop's reply does not fit: {error!r}") from None


_kept_reply_head = lru_cache(maxsize=KEPT_HEADERS)(_reply_head)


def _header(body: bytes) -> tuple[bytes, int]:
    """Return the JSON header, and the offset of its end."""
    if len(body) < _HEAD.size or len(body) > MAX_HOP_BYTES:
        raise BadHopError(f"the hop has {len(body)} bytes, not {_HEAD.size} to {MAX_HOP_BYTES}")
    magic, length = _HEAD.unpack_from(body)
    start = _HEAD.size + length
    if magic != _MAGIC or start > len(body):
        raise BadHopError(
            "the body does not begin with the marker of a hop", fix="Run routers and nodes of one release"
        )
    if length > MAX_HOP_HEADER_BYTES:
        raise BadHopError(f"the hop's header has {length} bytes, above {MAX_HOP_HEADER_BYTES}")
    return body[_HEAD.size : start], start


def _counts(groups: object) -> list[int]:
    """Return the number of keys in each group. Groups without keys are refused: a header could hold very many."""
    if not isinstance(groups, list):
        raise BadHopError("the hop's groups are not a list")
    if len(groups) > MAX_HOP_KEYS:
        raise BadHopError(f"the hop has {len(groups)} groups, above {MAX_HOP_KEYS}")
    counts = [whole(group, "count") for group in groups]
    if 0 in counts:
        raise BadHopError("the hop has an empty group")
    return counts


def _tail_sizes(sizes: object) -> list[int]:
    is_short = isinstance(sizes, list) and len(sizes) <= MAX_HOP_KEYS
    if is_short and all(type(size) is int and 0 < size <= MAX_TAIL_BYTES for size in cast("list[object]", sizes)):
        return cast("list[int]", sizes)
    raise BadHopError(f"the tails of the hop's reply are {clipped(sizes)}, not a list of sizes")


def _traces(found: object, keys: int) -> Sequence[HopTrace]:
    """Return the well-formed traces of a header. Malformed ones are left out: a bad trace must not fail a lookup."""
    traces: list[HopTrace] = []
    for entry in found[:keys] if isinstance(found, list) else ():
        match entry:
            case [int(place), str(text)] if 0 <= place < keys and type(place) is int:
                trace = parse_traceparent(text)
                if trace is not None:
                    traces.append(HopTrace(place, trace))
    return tuple(traces)


def _layout(fields: dict[str, Any]) -> str:
    layout = fields["layout"]
    if isinstance(layout, str) and 0 < len(layout) <= MAX_LAYOUT_CHARS:
        return layout
    raise BadHopError(f"the hop's layout is {layout!r:.80}, which is not the name of a layout")
