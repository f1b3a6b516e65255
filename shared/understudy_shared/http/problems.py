"""The HTTP form of every failure: `application/problem+json` (RFC 9457) with a stable `type`.

A problem says what was wrong (`detail`), `where`, and what to do (`fix`). One table maps our errors to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import orjson

from understudy_shared.base.errors import BadKeyError, CheckpointError, NoSuchStoreError, UnderstudyError
from understudy_shared.reads.bounds import BadBoundError, Refusal
from understudy_shared.reads.tokens import BadCursorError, BadPositionError, OtherLineageError

CONTENT_TYPE = b"application/problem+json"
AUTHENTICATE = b'Bearer realm="understudy"'
"""Challenge to a request without a valid credential (RFC 6750)."""


class ProblemType(Enum):
    """The stable names of problems, with status and title."""

    BAD_KEY = ("bad-key", 400, "The key does not fit the store's key columns")
    BAD_BOUND = ("bad-bound", 400, "A bound is unknown, mistyped or out of range")
    BAD_REQUEST = ("bad-request", 400, "The request does not parse")
    UNAUTHENTICATED = ("unauthenticated", 401, "The request needs a valid credential")
    CROSS_SITE = ("cross-site", 403, "A page of another site may not change anything here")
    FORBIDDEN = ("forbidden", 403, "The credential does not allow this")
    UNKNOWN_STORE = ("unknown-store", 404, "There is no such store")
    UNKNOWN_APPLICATION = ("unknown-application", 404, "There is no such application")
    UNKNOWN_PATH = ("unknown-path", 404, "There is nothing at this path")
    METHOD_NOT_ALLOWED = ("method-not-allowed", 405, "This path does not take this method")
    REQUEST_TIMEOUT = ("request-timeout", 408, "The request did not come in time")
    AMBIGUOUS_KEY = ("ambiguous-key", 409, "Several partitions have the key")
    AMBIGUOUS_STORE = ("ambiguous-store", 409, "Several applications have a store of this name")
    LISTED_APPLICATION = ("listed-application", 409, "The application did not announce itself")
    LINEAGE_CHANGED = ("lineage-changed", 409, "The history that the position refers to is gone")
    VERSION_GONE = ("version-gone", 410, "No replica can read the version that was asked for")
    TOO_LARGE = ("too-large", 413, "The request, or its answer, is larger than the limit")
    TARGET_TOO_LONG = ("target-too-long", 414, "The request target is longer than the limit")
    NOT_JSON = ("not-json", 415, "What changes something must be sent as JSON")
    NOT_OWNER = ("not-owner", 421, "This host does not hold the key's partition")
    OUTDATED_CATALOGUE = ("outdated-catalogue", 421, "The key was encoded or placed by another catalogue")
    OVERLOADED = ("overloaded", 429, "Too many requests are waiting")
    RATE_LIMITED = ("rate-limited", 429, "This principal asks more often than it may")
    HEADERS_TOO_LARGE = ("headers-too-large", 431, "The headers are larger than the limit")
    INTERNAL = ("internal", 500, "A bug: please report it with the log")
    STORE_ERROR = ("store-error", 502, "The state could not be read")
    NODE_UNREACHABLE = ("node-unreachable", 502, "The node does not answer")
    BAD_REPLY = ("bad-reply", 502, "The node's answer cannot be passed on")
    NOT_INITIALISED = ("not-initialised", 503, "Not ready yet: retry")
    NO_ACCEPTABLE_REPLICA = ("no-acceptable-replica", 503, "No replica may answer inside the bound")
    TOO_MANY_VIEWERS = ("too-many-viewers", 503, "Too many watch this router")
    DEADLINE = ("deadline", 504, "The deadline passed")

    def __init__(self, slug: str, status: int, title: str) -> None:
        self.slug = slug
        self.status = status
        self.title = title


REFUSED_BY_BOUND = "refused-by-bound"
"""The outcome of a request whose bound no replica meets."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal. `extra` holds further members, such as the candidates and their reasons.

    `refusal` is the reason if no replica meets a bound. `allow` lists the methods that the path accepts, if the problem
    is a method that it does not.
    """

    type: ProblemType
    detail: str
    where: str = ""
    fix: str = ""
    extra: dict[str, object] = field(default_factory=dict)
    refusal: Refusal | None = None
    allow: str = ""
    retry_after_s: int = 1

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the response, besides type and length."""
        found = [(b"retry-after", b"%d" % self.retry_after_s)] if self.status in (429, 503) else []
        found += [(b"www-authenticate", AUTHENTICATE)] if self.status == 401 else []
        return [*found, (b"allow", self.allow.encode())] if self.allow else found

    @property
    def status(self) -> int:
        return self.type.status

    @property
    def outcome(self) -> str:
        """The outcome of a request in the metrics: the slug, or REFUSED_BY_BOUND."""
        is_of_bound = self.refusal is not None and self.type is ProblemType.NO_ACCEPTABLE_REPLICA
        return REFUSED_BY_BOUND if is_of_bound else self.type.slug

    def as_dict(self) -> dict[str, object]:
        """Return the members of the JSON object, without empty ones."""
        members = {
            "type": self.type.slug,
            "title": self.type.title,
            "status": self.type.status,
            "detail": self.detail,
            "where": self.where,
            "fix": self.fix,
            **self.extra,
        }
        return {name: value for name, value in members.items() if value != ""}

    def body(self) -> bytes:
        return orjson.dumps(self.as_dict(), option=orjson.OPT_APPEND_NEWLINE)


class ProblemError(UnderstudyError):
    """A problem raised from below the HTTP edge."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail, where=problem.where, fix=problem.fix)
        self.problem = problem


_BY_ERROR: tuple[tuple[type[UnderstudyError], ProblemType], ...] = (
    (BadKeyError, ProblemType.BAD_KEY),
    (BadBoundError, ProblemType.BAD_BOUND),
    (BadPositionError, ProblemType.BAD_BOUND),
    (BadCursorError, ProblemType.BAD_BOUND),
    (OtherLineageError, ProblemType.LINEAGE_CHANGED),
    (NoSuchStoreError, ProblemType.UNKNOWN_STORE),
    (CheckpointError, ProblemType.STORE_ERROR),
)


def problem_of(error: UnderstudyError) -> Problem:
    """Return the problem of an error. An error without an entry is a bug."""
    if isinstance(error, ProblemError):
        return error.problem
    for kind, problem_type in _BY_ERROR:
        if isinstance(error, kind):
            return Problem(problem_type, error.what, error.where, error.fix)
    return Problem(ProblemType.INTERNAL, error.what, error.where, error.fix)


RETAINED = "retained_versions"
"""The member of a refusal with the first and the last version that the checkpoint retains."""
LAYOUT_SINCE = "layout_since"
"""The member of a candidate with the first version of the layout that it serves, if older versions have another."""

_REFUSALS: dict[Refusal, tuple[ProblemType, str]] = {
    Refusal.LAG_EXCEEDED: (ProblemType.NO_ACCEPTABLE_REPLICA, "Retry, or accept a larger max_lag or max_staleness_ms"),
    Refusal.LAG_UNKNOWN: (ProblemType.NO_ACCEPTABLE_REPLICA, "Retry, or accept it with unknown_lag=serve"),
    Refusal.BELOW_MIN_POSITION: (ProblemType.NO_ACCEPTABLE_REPLICA, "Retry, or wait longer with wait_ms"),
    Refusal.NOT_ACTIVE: (ProblemType.NO_ACCEPTABLE_REPLICA, "Retry, or leave out require_active"),
    Refusal.LINEAGE_CHANGED: (
        ProblemType.LINEAGE_CHANGED,
        "Drop the position: it is of another history of this checkpoint, one that was rewound or re-created",
    ),
    Refusal.VERSION_NOT_YET: (ProblemType.NO_ACCEPTABLE_REPLICA, "Retry, or wait longer with wait_ms"),
    Refusal.VERSION_OPENING: (ProblemType.NOT_INITIALISED, "Retry after a second: it is read from the checkpoint"),
    Refusal.VERSION_GONE: (
        ProblemType.VERSION_GONE,
        "Ask for a newer version, or begin again; spark.sql.streaming.minBatchesToRetain says how many Spark keeps",
    ),
}


def refused(
    reason: Refusal, *, candidates: list[dict[str, object]], retained: tuple[int, int] | None = None
) -> Problem:
    """Return the problem of a bound that no replica meets, with each candidate and its reason. `retained` has the first
    and the last version of the checkpoint, if a version is gone and no candidate names them.
    """
    problem_type, fix = _REFUSALS[reason]
    versions = next((each[RETAINED] for each in candidates if RETAINED in each), retained)
    since = next((each[LAYOUT_SINCE] for each in candidates if LAYOUT_SINCE in each), None)
    if since is not None:
        fix = (
            f"Ask for version {since} or a newer one: before it the state had another number of partitions, or another "
            "state store provider. Spark's own state reader reads those versions"
        )
    return Problem(
        problem_type,
        f"no replica may answer: {reason}",
        where="bounds",
        fix=fix,
        extra={"candidates": candidates} | ({RETAINED: versions} if versions else {}),
        refusal=reason,
    )
