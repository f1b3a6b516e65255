"""One request until it has its answer: what a reply means, whether it is tried again, when, and at which server (pure).

Only a JSON object as this project's servers send it is an answer. Any other reply with status 200 comes from a proxy, a
portal or a stranger.

All attempts share the deadline of the call: no attempt begins, and no pause is taken, after it. Trying the next server
because one was not reached costs nothing. A retry that costs a server work is paid from a budget over all calls, so
that clients do not multiply the load of a failing service.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import Any, NamedTuple

import orjson

from understudy.client.core.exchange import (
    Close,
    Endpoint,
    Failure,
    FailureKind,
    Opened,
    Outcome,
    Reply,
    Request,
    Results,
    Send,
    Steps,
    Wait,
)
from understudy.client.core.state import ClientState
from understudy.client.errors import (
    Attempt,
    BadReplyError,
    DeadlineError,
    ServerProblemError,
    UnreachableError,
    problem_error,
)
from understudy_shared.base.errors import UnderstudyError
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
    """An outcome and what it means. `blames_server`: the next request to this server will fail alike."""

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
    """Return the seconds of `Retry-After`; a date is ignored."""
    is_number = text.isascii() and text.isdigit() and len(text) < 9
    return min(float(text), MAX_RETRY_AFTER_S) if is_number else _DEFAULT_RETRY_AFTER_S


def _described(reply: Reply) -> str:
    kind = _media_type(reply.content_type) or "no content type"
    start = reply.body[:60].decode(errors="replace")
    return f"{kind}, {clipped(start)}" if start else f"{kind}, an empty body"


def _media_type(text: str) -> str:
    return printable(text.partition(";")[0].strip().lower()[:60])


_START_ONE = "Start a server with: understudy serve CHECKPOINT; or name others in urls, or in UNDERSTUDY_URL"
OTHER_URL = (
    "Check urls: each is the address of a router or node, with the path under which a proxy publishes it, if any; "
    "a proxy must pass its answers on"
)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
MIN_ATTEMPT_S = 0.02
"""Time that has to be left for another attempt to be worth its cost."""


def attempt_s(left_s: float, wait_s: float) -> float:
    """Return the time of an attempt. While another server is untried, half of the rest is kept for it: a server that
    hangs must not use up the call. The time that a server was asked to wait is its own.
    """
    return min(left_s, wait_s + max(0.0, left_s - wait_s) / 2)


class Call:
    """A request on its way. The shell drives `steps`, which end with the JSON of the answer, or with a stream.

    `endpoint` is the server that answered, `document` what the steps end with, and `body` the JSON as it came.
    """

    endpoint: Endpoint | None = None
    document: Any = None
    body = b""
    _tried: frozenset[Endpoint] = frozenset()
    _attempts: tuple[Attempt, ...] = ()
    _paid = _not_sent = _renewals = 0
    _has_resent = False
    _said: ServerProblemError | None = None

    def __init__(self, state: ClientState, request: Request, deadline_s: float) -> None:
        self._state, self._request, self._deadline_s = state, request, deadline_s

    def steps(self) -> Steps[Any]:
        """Make attempts until there is an answer, or the call must fail. Raises UnderstudyError."""
        state, request = self._state, self._request
        state.budget.asked(1)
        endpoint = state.servers.best(state.now_s(), ())
        while True:
            until_s = self._deadline_s
            if state.settings.retries and len(self._tried | {endpoint}) < len(state.servers.endpoints):
                now_s = state.now_s()
                until_s = now_s + attempt_s(until_s - now_s, request.wait_s)
            shown = state.credential.key
            outcome = yield Send(endpoint, state.named(request), state.headers(request), until_s)
            judged = judge(outcome, request.streams)
            if judged.meaning is Meaning.ANSWER:
                state.servers.answered(endpoint)
                self.endpoint, self.document = endpoint, judged.document
                if isinstance(outcome, Reply):
                    self.body = outcome.body
                return judged.document
            if isinstance(outcome, Opened):
                yield Close(outcome.stream)
            pause_s, endpoint = self._again(endpoint, judged, shown)
            if pause_s > 0:
                yield Wait(pause_s)

    def _again(self, endpoint: Endpoint, judged: Judged, shown: str) -> tuple[float, Endpoint]:
        """Return how long to wait, and which server to ask then. Raises the error of a call that ends here."""
        state, now_s = self._state, self._state.now_s()
        self._note(endpoint, judged, now_s)
        left_s, servers, retries = self._deadline_s - now_s, len(state.servers.endpoints), state.settings.retries
        is_untried = len(self._tried) < servers
        pause_s, is_same, is_paid = 0.0, False, False
        match judged.meaning:
            case Meaning.STALE if not self._has_resent:
                is_same = self._has_resent = True
            case Meaning.UNAUTHENTICATED if self._is_renewed(shown):
                is_same = True
            case Meaning.NOT_SENT if is_untried:
                pass
            case Meaning.NOT_SENT if self._not_sent < servers + retries:
                pause_s = self._backoff_s(self._not_sent - servers)
            case Meaning.BUSY | Meaning.FAILED | Meaning.STALE if is_untried and self._paid < retries:
                is_paid = True
            case Meaning.BUSY | Meaning.FAILED | Meaning.STALE | Meaning.LIMITED if self._paid < retries:
                pause_s = judged.retry_after_s + self._backoff_s(self._paid)
                is_same, is_paid = judged.meaning is Meaning.LIMITED, True
            case _:
                raise self._error(judged, left_s)
        is_too_late = left_s < MIN_ATTEMPT_S or (pause_s > 0 and pause_s + MIN_ATTEMPT_S >= left_s)
        if is_too_late or (is_paid and not state.budget.try_spend(1, now_s * 1000)):
            raise self._error(judged, left_s)
        self._paid += is_paid
        return pause_s, endpoint if is_same else state.servers.best(now_s + pause_s, self._tried)

    def _backoff_s(self, count: int) -> float:
        pause_s: float = FIRST_PAUSE_S * 2.0 ** min(max(count, 0), 16)
        return min(LONGEST_PAUSE_S, pause_s) * (0.5 + self._state.rng.random() / 2)

    def _note(self, endpoint: Endpoint, judged: Judged, now_s: float) -> None:
        self._tried |= {endpoint}
        if len(self._attempts) < 100:
            self._attempts += (Attempt(endpoint.url, judged.why),)
        self._not_sent += judged.meaning is Meaning.NOT_SENT
        if judged.blames_server:
            self._state.servers.failed(endpoint, now_s, judged.retry_after_s)
        elif judged.error is not None:
            self._state.servers.answered(endpoint)
        self._said = judged.error or self._said

    def _is_renewed(self, shown: str) -> bool:
        """Whether there is another credential than the refused one. It is looked for once in a call."""
        self._renewals += 1
        return self._renewals == 1 and self._state.credential.is_renewed(shown)

    def _error(self, judged: Judged, left_s: float) -> UnderstudyError:
        """Return the error of the last attempt."""
        if self._said is not None:  # what a server said tells more than that another one did not answer
            return self._said
        if judged.kind is FailureKind.BAD_REPLY:
            return BadReplyError("the reply is not one of an Understudy server", self._attempts, fix=OTHER_URL)
        if left_s < MIN_ATTEMPT_S or judged.kind is FailureKind.TIMEOUT:
            fix = "Try again, or give the call more time with timeout"
            return DeadlineError("no answer came within the time of the call", self._attempts, fix=fix)
        return UnreachableError("no server gave an answer", self._attempts, fix=_START_ONE)


def call(state: ClientState, request: Request, deadline_s: float) -> Steps[Any]:
    """Return the steps of a request. The time that the server was asked to wait comes on top of the deadline."""
    return Call(state, request, deadline_s + request.wait_s).steps()


def require(is_so: object, what: str) -> None:
    """Raise BadReplyError for an answer that has not the form of one."""
    if not is_so:
        raise BadReplyError(f"the answer is not as the API describes it: {what}", [], fix=OTHER_URL)
