"""Hops as a router sends them, to a node in this process."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from tests.support.cluster.served_node import ServedNode

from understudy_shared.base.words import StoreName
from understudy_shared.questions.lookup.hop import (
    CONTENT_TYPE,
    PATH,
    PROBLEM,
    HopGroup,
    HopKey,
    HopOutcome,
    HopReply,
    HopRequest,
    decode_reply,
    encode_request,
)
from understudy_shared.reads.bounds import NO_BOUND, Bound

_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one key; `body` is its JSON, completed as a router completes it."""

    kind: int
    body: dict[str, object]

    @property
    def problem(self) -> str:
        """The type of a problem."""
        assert self.kind == PROBLEM, self
        assert self.body["detail"]
        return str(self.body["type"])

    @property
    def reasons(self) -> list[object]:
        """Why each candidate may not answer."""
        candidates = self.body["candidates"]
        assert isinstance(candidates, list)
        return [candidate["reason"] for candidate in candidates]


def keys_of(served: ServedNode, keys: Sequence[object], *, store: str = "op0") -> list[HopKey]:
    """Keys, encoded and placed."""
    generation = served.node.generation
    assert generation is not None
    holding = generation.readers[StoreName(store)]
    codec = holding.store.codec
    rows = [codec.parse_json(key) for key in keys]
    return [HopKey(codec.partition(row, holding.partitions), codec.encode(row)) for row in rows]


def group_of(
    served: ServedNode,
    keys: Sequence[HopKey],
    *,
    bound: Bound = NO_BOUND,
    store: str = "op0",
    lineage: str = "",
    partitions: int = 0,
    layout: str = "",
) -> HopGroup:
    """A group about what the node serves, but for what is said."""
    generation = served.node.generation
    assert generation is not None
    partitions = partitions or generation.layout.partitions
    known = generation.readers.get(StoreName(store))
    layout = layout or ("none" if known is None else known.layout)
    return HopGroup(store, lineage or generation.lineage, partitions, bound, keys, layout)


def request_of(
    served: ServedNode,
    *groups: HopGroup,
    end_version: int = 0,
    order: tuple[int, int] = (0, 0),
    deadline_ms: int = 30_000,
    application_id: str = "",
) -> HopRequest:
    application_id = application_id or served.node.settings.application
    return HopRequest(application_id, end_version, *order, deadline_ms, groups)


def hop(served: ServedNode, request: HopRequest) -> tuple[HopReply, list[Outcome]]:
    """Send it; it must be taken."""
    status, content_type, body = send(served, encode_request(request))
    assert (status, content_type) == (200, CONTENT_TYPE.decode()), body
    reply = decode_reply(body)
    return reply, [Outcome(outcome.kind, _whole(outcome)) for outcome in reply.outcomes]


def send(served: ServedNode, body: bytes) -> tuple[int, str, bytes]:
    """Status, content type and body of the answer to these bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", served.node.host.port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", PATH, body)
        response = connection.getresponse()
        return response.status, response.headers.get_content_type(), response.read()
    finally:
        connection.close()


def _whole(outcome: HopOutcome) -> dict[str, object]:
    body = orjson.loads(outcome.body if outcome.kind == PROBLEM else b"{" + outcome.body + outcome.tail)
    assert isinstance(body, dict)
    return body
