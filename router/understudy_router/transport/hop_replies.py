"""The replies to hops, decoded: outcomes, or the failure that a reply stands for (pure)."""

from __future__ import annotations

import orjson

from understudy_shared.cluster.wire import HopFailure, WireError, WireReply
from understudy_shared.questions.lookup.hop import HopReply, decode_reply
from understudy_shared.reads.hop_fields import BadHopError

MAX_DETAIL_CHARACTERS = 200
"""Most characters of a node's refusal that are kept with the events, and shown."""

OVERLOADED = "overloaded"


def decoded_reply(reply: WireReply, *, keys: int) -> HopReply | HopFailure:
    """Return the outcomes of a reply, one per key; or the failure that the reply stands for."""
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
    """Return the failure for a node that answered with a problem instead of outcomes. People see one line of its
    text.
    """
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
