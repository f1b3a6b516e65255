"""What readers ask for, and what they make of an answer (pure: no sockets, time passed in).

A session is one reader: it has one kind of bounds, and one lookup in flight at most, so that its reads have an order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
from tests.system.proof.history import NO_BOUNDS, Bounds, Outcome, Read
from tests.system.proof.http_talk import HttpReply
from tests.system.proof.question import Question, key_text, said_by

from understudy_shared.reads.bounds import WAIT_WITH_POSITION_MS
from understudy_shared.reads.tokens import Position, decode_position

FAILURES = frozenset({"internal"})
"""Problems that are no answer at all; every other typed problem says no, and the checker judges whether it may."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of reader: its bounds, and whether it carries its position from read to read."""

    bounds: Bounds = NO_BOUNDS
    is_monotonic: bool = False
    versions_back: int | None = None
    """It names the version that lies so many before the newest."""


KINDS: tuple[tuple[int, Kind], ...] = (
    (28, Kind()),
    (1, Kind(versions_back=4)),
    (1, Kind(versions_back=40)),
    (8, Kind(Bounds(max_lag=1))),
    (8, Kind(Bounds(max_lag=3))),
    (5, Kind(Bounds(max_lag=2, unknown_lag="serve"))),
    (7, Kind(Bounds(max_staleness_ms=1500))),
    (7, Kind(Bounds(max_staleness_ms=5000))),
    (20, Kind(is_monotonic=True)),
    (5, Kind(Bounds(max_lag=2), is_monotonic=True)),
    (5, Kind(Bounds(require_active=True))),
    (5, Kind(Bounds(unknown_lag="refuse"))),
)
"""How many of a hundred sessions are of which kind."""


class Session:
    """One reader. `position` is the newest that its answers carried; `way` that of the Python client by which it asks,
    if not by bare HTTP.
    """

    def __init__(self, number: int, kind: Kind, way: str = "") -> None:
        self.number = number
        self.kind = kind
        self.way = way
        self.position: Position | None = None
        self._reads = 0

    def next_seq(self) -> int:
        self._reads += 1
        return self._reads

    def bounds(self, newest: int) -> Bounds:
        """The bounds of the session's next read, when a version is the newest."""
        if self.kind.versions_back is not None:
            version = max(1, newest - self.kind.versions_back)
            return replace(self.kind.bounds, version=version, wait_ms=WAIT_WITH_POSITION_MS)
        if not self.kind.is_monotonic or self.position is None:
            return self.kind.bounds
        return replace(self.kind.bounds, min_version=self.position.version, wait_ms=WAIT_WITH_POSITION_MS)

    def took(self, position: Position) -> None:
        """An answer carried a position."""
        self.position = position if self.position is None else self.position.merge(position)


def every_kind() -> list[Kind]:
    """A hundred sessions, of each kind its share."""
    return [kind for share, kind in KINDS for _ in range(share)]


def choose_kind(chance: random.Random) -> Kind:
    """A kind by its share."""
    return chance.choices([kind for _, kind in KINDS], weights=[share for share, _ in KINDS])[0]


def request_of(session: Session, bounds: Bounds, question: Question, cursor: str | None = None) -> bytes:
    """The lookup as bytes, or that of the page at a cursor."""
    parameters = []
    if question.limit is not None:
        parameters.append(f"limit={question.limit}")
    if cursor is not None:
        parameters.append(f"cursor={cursor}")
    if bounds.max_lag is not None:
        parameters.append(f"max_lag={bounds.max_lag}")
    if bounds.max_staleness_ms is not None:
        parameters.append(f"max_staleness_ms={bounds.max_staleness_ms}")
    if bounds.require_active:
        parameters.append("require_active=true")
    if bounds.unknown_lag is not None:
        parameters.append(f"unknown_lag={bounds.unknown_lag}")
    if bounds.version is not None:
        parameters.append(f"version={bounds.version}&wait_ms={bounds.wait_ms}")
    if bounds.min_version is not None and session.position is not None:
        parameters.append(f"min_position={session.position.encode()}")
    target = question.path + (f"?{'&'.join(parameters)}" if parameters else "")
    return f"GET {target} HTTP/1.1\r\nhost: proof\r\n\r\n".encode()


class Replied(NamedTuple):
    """What came of a request: the read so far, the position that the answer carried, and where its next page begins."""

    read: Read
    position: Position | None = None
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A read that is being made."""

    session: int
    seq: int
    began_ms: float
    question: Question
    bounds: Bounds
    way: str = ""

    def failed(self, ended_ms: float, router: str, detail: str, *, status: int = 0, problem: str = "") -> Read:
        """The record of a read with neither an answer nor a typed refusal."""
        return self._read(ended_ms, router, status, "failed", problem=problem, detail=detail)

    def replied(self, ended_ms: float, router: str, reply: HttpReply) -> Replied:
        """What a reply says."""
        try:
            body = orjson.loads(reply.body)
            if reply.status in (200, 404) and reply.content_type == "application/json":
                return self.said(ended_ms, router, reply.status, body)
            return self.refused(ended_ms, router, reply.status, body)
        except (ValueError, KeyError, TypeError) as error:
            return Replied(self.failed(ended_ms, router, f"{error!r} in {reply.body[:300]!r}", status=reply.status))

    def said(self, ended_ms: float, router: str, status: int, body: Mapping[str, Any]) -> Replied:
        """What an answer says."""
        position = decode_position(body["position"])
        read = self._answered(ended_ms, router, status, body, position)
        return Replied(read, position, body.get("next_cursor"))

    def refused(self, ended_ms: float, router: str, status: int, body: Mapping[str, Any]) -> Replied:
        """What a problem says."""
        problem, detail = str(body["type"]), str(body.get("detail", ""))
        if problem in FAILURES:
            return Replied(self.failed(ended_ms, router, detail, status=status, problem=problem))
        candidates = tuple(
            (str(candidate.get("node_id", "")), str(candidate.get("reason", "")))
            for candidate in body.get("candidates", ())
        )
        refused = self._read(ended_ms, router, status, "refused", problem=problem, detail=detail)
        return Replied(replace(refused, candidates=candidates))

    def _answered(self, ended_ms: float, router: str, status: int, body: Mapping[str, Any], position: Position) -> Read:
        lag, served_by, committed_at = body["lag"], body["served_by"], body["committed_at"]
        return replace(
            self._read(ended_ms, router, status, "found" if body["found"] else "absent"),
            value=said_by(body) if body["found"] else None,
            version=body["version"],
            committed_at_us=None if committed_at is None else _micros(committed_at),
            offset_lag=lag["offset_lag"],
            time_lag_ms=lag["time_lag_ms"],
            partition=body["partition"],
            node=served_by.get("node_id", ""),
            role=served_by["role"],
            position_version=position.version,
        )

    def _read(
        self, ended_ms: float, router: str, status: int, outcome: Outcome, *, problem: str = "", detail: str = ""
    ) -> Read:
        return Read(
            session=self.session,
            seq=self.seq,
            began_ms=self.began_ms,
            ended_ms=ended_ms,
            router=router,
            store=self.question.store,
            key=key_text(*self.question.key),
            bounds=self.bounds,
            status=status,
            outcome=outcome,
            problem=problem,
            detail=detail,
            way=self.way,
        )


def _micros(text: str) -> int:
    since = datetime.fromisoformat(text) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
