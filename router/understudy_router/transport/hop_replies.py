"""Decodes a node's reply to a hop, and defines who is notified of it (no I/O)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import orjson

from understudy_router.transport.node_requests import HopFailure
from understudy_router.transport.wire import HopConnection, WireError, WireFailure, WireReply
from understudy_shared.reads.hop import HopReply, decode_reply
from understudy_shared.reads.hop_fields import BadHopError
from understudy_shared.server.request_counts import DURATION_BOUNDS_MS
from understudy_shared.telemetry.histogram import Histogram

OVERLOADED = "overloaded"

MAX_DETAIL_CHARACTERS = 200
"""Most characters of a node's refusal that are kept with the events, and shown."""


class Known(NamedTuple):
    """What each hop tells the node: the newest end and the latest assignment that this router knows."""

    end_version: int
    term: int
    epoch: int


class Listener(Protocol):
    """Notified of the result of each hop."""

    def known(self) -> Known: ...

    def answered(self, node_id: str, reply: HopReply, took_ms: float) -> None: ...

    def failed(self, node_id: str, failure: HopFailure, *, sent: bool) -> None:
        """A hop failed. `sent` is False when nothing was sent, which says nothing about the node."""

    def silent(self, node_id: str, for_ms: float) -> None:
        """A node has answered nothing for so long, while others did. Called once until it answers again."""


class HopCounts:
    """Counters for the metrics."""

    def __init__(self) -> None:
        self.duration_ms = Histogram(DURATION_BOUNDS_MS)
        self.keys = 0
        self.failed = 0
        self.retried = 0
        self.silences = 0


def is_stale(connection: HopConnection, failure: WireFailure) -> bool:
    """Whether the node closed a used keep-alive connection before it read this hop: it is safe to send it again."""
    return failure.error is WireError.RESET and connection.used > 0 and not failure.heard


def decoded_reply(reply: WireReply, *, keys: int) -> HopReply | HopFailure:
    """The outcomes of a reply, one per key; or why there are none."""
    if reply.status != 200:
        return _refusal(reply)
    try:
        decoded = decode_reply(reply.body)
    except BadHopError as error:
        return HopFailure(WireError.BAD_REPLY, str(error))
    if len(decoded.outcomes) != keys:
        return HopFailure(WireError.BAD_REPLY, f"{len(decoded.outcomes)} outcomes for {keys} keys")
    return decoded


def _refusal(reply: WireReply) -> HopFailure:
    """A node that answered with a problem instead of outcomes. Of its words, people are shown a line."""
    try:
        problem = orjson.loads(reply.body)
        slug, detail = problem["type"], problem["detail"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        slug = detail = None
    if not isinstance(slug, str) or not isinstance(detail, str):
        slug, detail = "", reply.body[:MAX_DETAIL_CHARACTERS].decode(errors="replace")
    detail = detail[:MAX_DETAIL_CHARACTERS]
    known = reply.status == 429 or slug == OVERLOADED
    return HopFailure(OVERLOADED if known else WireError.BAD_REPLY, f"status {reply.status}: {detail}")
