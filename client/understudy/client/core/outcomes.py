"""The meaning of a reply or a failure for a call (pure).

Only a JSON object that this project's servers send is an answer. Everything else that says 200 is a proxy, a portal or
a stranger.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import Any, NamedTuple

import orjson

from understudy.client.core.exchange import Failure, FailureKind, Opened, Outcome, Reply, Results
from understudy.client.errors import ServerProblemError, problem_error
from understudy_shared.base.texts import clipped, printable

MAX_RETRY_AFTER_S = 300.0
_DEFAULT_RETRY_AFTER_S = 1.0


class Meaning(Enum):
    """The meaning of an outcome for the next attempt."""

    ANSWER = auto()
    REFUSED = auto()
    """The same request would be refused again."""
    UNAUTHENTICATED = auto()
    """Another credential may help."""
    BUSY = auto()
    """This server cannot now; another one can at once, or this one after its advice."""
    LIMITED = auto()
    """No server will, before its advice: the limit is this principal's."""
    FAILED = auto()
    """An attempt that cost a server work, and brought no answer."""
    NOT_SENT = auto()
    """An attempt that no server has seen."""
    STALE = auto()
    """A kept connection that its server had closed."""


class Judged(NamedTuple):
    """An outcome and what it means. `blames_server`: whatever is asked of this server next will end alike."""

    meaning: Meaning
    document: Any = None
    error: ServerProblemError | None = None
    why: str = ""
    retry_after_s: float = 0.0
    blames_server: bool = False
    kind: FailureKind | None = None


_JSON_TYPE = "application/json"
_OF_FAILURE = {FailureKind.NOT_SENT: Meaning.NOT_SENT, FailureKind.STALE: Meaning.STALE}
_BLAMES_SERVER = {"not-initialised", "overloaded"}
_NOT_AGAIN = {"internal", "too-many-viewers"}
"""Problems above 500 that a second attempt meets again."""


def judge(outcome: Outcome | Results, streams: Collection[str] = ()) -> Judged:
    """Return what an outcome means. `streams` are the media types of a stream that was asked for."""
    # One function, because it runs for each answer. What is neither an answer nor a problem falls to its end.
    if isinstance(outcome, Failure):
        meaning = _OF_FAILURE.get(outcome.kind, Meaning.FAILED)
        return Judged(meaning, why=outcome.why, blames_server=outcome.kind is not FailureKind.STALE, kind=outcome.kind)
    if isinstance(outcome, Opened):
        kind = _media_type(outcome.content_type)
        is_wanted = kind in streams
        return Judged(Meaning.ANSWER, outcome) if is_wanted else bad_reply(f"status 200, {kind or 'no content type'}")
    assert isinstance(outcome, Reply)
    status, kind = outcome.status, outcome.content_type
    if status == 204 and not streams:
        return Judged(Meaning.ANSWER)
    try:
        document = orjson.loads(outcome.body)
    except orjson.JSONDecodeError:
        document = None
    if isinstance(document, dict):
        kind = kind if kind == _JSON_TYPE else kind.partition(";")[0].strip().lower()
        is_absent = status == 404 and document.get("found") is False
        if kind == _JSON_TYPE and not streams and (200 <= status < 300 or is_absent):
            return Judged(Meaning.ANSWER, document)
        if kind == "application/problem+json" and status >= 400:
            return _of_problem(document, outcome)
    return bad_reply(f"status {status}, {_described(outcome)}")


def bad_reply(why: str) -> Judged:
    """Return the judgement of a reply that no Understudy server gives."""
    return Judged(Meaning.FAILED, why=why, blames_server=True, kind=FailureKind.BAD_REPLY)


def _of_problem(document: dict[str, Any], reply: Reply) -> Judged:
    status, slug = reply.status, document.get("type")
    error = problem_error(document, status, reply.body)
    retry_after_s = _retry_after_s(reply.retry_after) if status in (429, 503) else 0.0
    if status == 401:
        meaning = Meaning.UNAUTHENTICATED
    elif slug == "rate-limited":
        meaning = Meaning.LIMITED
    elif status in (429, 503) and slug not in _NOT_AGAIN:
        meaning = Meaning.BUSY
    elif status >= 500 and slug not in _NOT_AGAIN:
        meaning = Meaning.FAILED
    else:
        meaning = Meaning.REFUSED
    return Judged(
        meaning,
        error=error,
        why=f"{error.type}: {error.detail}",
        retry_after_s=retry_after_s,
        blames_server=slug in _BLAMES_SERVER,
    )


def _retry_after_s(text: str) -> float:
    """Return the advice of a server, which is a number of seconds; a date is not read."""
    is_number = text.isascii() and text.isdigit() and len(text) < 9
    return min(float(text), MAX_RETRY_AFTER_S) if is_number else _DEFAULT_RETRY_AFTER_S


def _described(reply: Reply) -> str:
    kind = _media_type(reply.content_type) or "no content type"
    start = reply.body[:60].decode(errors="replace")
    return f"{kind}, {clipped(start)}" if start else f"{kind}, an empty body"


def _media_type(text: str) -> str:
    return printable(text.partition(";")[0].strip().lower()[:60])
