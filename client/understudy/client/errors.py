"""The errors of the client. Each says what was wrong, where, and what to do; all are `UnderstudyError`s.

UnderstudyError
    UsageError              the call is wrong: nothing was sent
    ServerProblemError      a server refused, and said why: `type`, `status`, `detail`, `fix`
        BadRequestError, UnauthenticatedError, ForbiddenError, UnknownStoreError, UnknownApplicationError,
        AmbiguousStoreError, LineageChangedError, VersionGoneError, OverloadedError, UnavailableError
    UnreachableError        no server answered
        DeadlineError       not in time; a TimeoutError as well
        BadReplyError the reply is not from an Understudy server
            WrongKeyError   the answer is of another key: a proxy rewrites requests
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import printable


class UsageError(UnderstudyError, ValueError):
    """A call that cannot be sent as it is."""


class ServerProblemError(UnderstudyError):
    """A problem that a server sent (RFC 9457). `problem` has all of its members; `body` is its JSON as it came."""

    def __init__(self, problem: Mapping[str, Any], status: int = 0, body: bytes = b"") -> None:
        self.problem: Mapping[str, Any] = problem
        self.body = body
        stated = problem.get("status")
        self.status: int = stated if isinstance(stated, int) else status
        self.type: str = _text(problem, "type")
        self.title: str = _text(problem, "title")
        self.detail: str = _text(problem, "detail") or self.title or "the server refused"
        super().__init__(self.detail, where=_text(problem, "where"), fix=_text(problem, "fix"))

    @property
    def candidates(self) -> Sequence[Mapping[str, Any]]:
        """The replicas that could have answered, each with its `reason` not to."""
        found = self.problem.get("candidates")
        return found if isinstance(found, list) else ()


class BadRequestError(ServerProblemError):
    """A key, a bound or another part of the request is wrong; the same request will be refused again."""


class UnauthenticatedError(ServerProblemError):
    """The server asks for a credential, or does not know the one that was shown."""


class ForbiddenError(ServerProblemError):
    """The credential does not allow this."""


class UnknownStoreError(ServerProblemError):
    """No store has that name; `fix` lists those that exist."""


class UnknownApplicationError(ServerProblemError):
    """The application does not exist, or the credential does not show it."""


class AmbiguousStoreError(ServerProblemError):
    """Several applications have a store of that name: name one, by `application`."""

    @property
    def applications(self) -> Sequence[str]:
        """The names of those applications, as far as the server lists them."""
        found = self.problem.get("applications")
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else ()


class AmbiguousKeyError(ServerProblemError):
    """Two partitions of a scattered store have the key; `partitions` says which."""

    @property
    def partitions(self) -> Sequence[int]:
        """The partitions that have it."""
        found = self.problem.get("partitions")
        return [each for each in found if isinstance(each, int)] if isinstance(found, list) else ()


class LineageChangedError(ServerProblemError):
    """The history that a position refers to is gone: the checkpoint was created anew, or rewound."""


class VersionGoneError(ServerProblemError):
    """Spark retains the version no more."""

    @property
    def retained_versions(self) -> tuple[int, int] | None:
        """The first and the last version that can be read, where the server says them."""
        match self.problem.get("retained_versions"):
            case [int(first), int(last)]:
                return first, last
        return None


class OverloadedError(ServerProblemError):
    """Too many requests wait at the server, or this principal sends too many."""


class UnavailableError(ServerProblemError):
    """No server can answer inside the bound now; the same request may work later."""


class Attempt(NamedTuple):
    """An attempt that brought no answer: the server's URL, and why."""

    url: str
    why: str


class UnreachableError(UnderstudyError):
    """No server gave an answer. `attempts` says which were tried, and what came of each."""

    def __init__(self, what: str, attempts: Sequence[Attempt], *, fix: str) -> None:
        self.attempts = tuple(attempts)
        where = "; ".join(f"{each.url}: {printable(each.why)}" for each in attempts[-_MAX_SHOWN:])
        super().__init__(what, where=where, fix=fix)


class DeadlineError(UnreachableError, TimeoutError):
    """The answer did not come within the call's time."""


class BadReplyError(UnreachableError):
    """The reply is not one of an Understudy server: a proxy's page, say, or a body that was cut."""


class WrongKeyError(BadReplyError):
    """The answer is of another key than the one that was asked for: a proxy rewrote the request on its way.

    `asked` and `answered` are the two keys as JSON.
    """

    def __init__(self, store: str, asked: Any, answered: Any) -> None:
        self.asked, self.answered = asked, answered
        super().__init__(
            f"the answer is of another key: {_json(asked)} was asked for, and {_json(answered)} was answered",
            [],
            fix="Let no proxy on the way rewrite paths or queries: docs/api.md, Keys through proxies",
        )
        self.where = f"store {printable(store)}"


_MAX_SHOWN = 5
_MAX_KEY_CHARS = 200

_BY_TYPE: Mapping[str, type[ServerProblemError]] = {
    "unknown-store": UnknownStoreError,
    "unknown-application": UnknownApplicationError,
    "ambiguous-key": AmbiguousKeyError,
    "ambiguous-store": AmbiguousStoreError,
}

_BY_STATUS: Mapping[int, type[ServerProblemError]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    409: LineageChangedError,
    410: VersionGoneError,
    429: OverloadedError,
}


def problem_error(problem: Mapping[str, Any], status: int, body: bytes = b"") -> ServerProblemError:
    """Return the error of a problem."""
    kind = _BY_TYPE.get(str(problem.get("type"))) or _BY_STATUS.get(status)
    if kind is None:
        kind = BadRequestError if 400 <= status < 500 and status != 421 else UnavailableError
    return kind(problem, status, body)


def _json(key: Any) -> str:
    try:
        text = printable(orjson.dumps(key, default=repr).decode())
    except orjson.JSONEncodeError:
        text = repr(key)
    return text if len(text) <= _MAX_KEY_CHARS else text[:_MAX_KEY_CHARS] + "..."


def _text(problem: Mapping[str, Any], name: str) -> str:
    value = problem.get(name)
    return printable(value) if isinstance(value, str) else ""
