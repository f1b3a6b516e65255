"""What readers of whole stores ask for, and what they make of the pages (pure: no sockets, time passed in).

A scan has one version, which the reader names or the first page chooses. Some have a filter on the last column of the
key. Every page but the first is asked for by the cursor of the one before.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import orjson
from tests.system.proof.history import Scan, ScanOutcome, Value
from tests.system.proof.http_talk import HttpReply
from tests.system.proof.question import key_text, said_by
from tests.system.proof.subjects import Subject

PAGE_ROWS = (3, 40, 1000)
VERSIONS_BACK = 30
WAIT_MS = 2_000
"""For a version that was committed, and that the replica which is asked may not show yet."""

MAX_PAGES = 2_000
"""Above any scan of the proof: a cursor that never ends is a failure, and not an endless reader."""


OVERLOADED = 429
ASK_AGAIN_S = 0.5
MAX_TURNED_AWAY = 10
"""Times that a reader asks again for what an overloaded service refused: a full service says so, and is asked later."""


@dataclass(frozen=True, slots=True)
class ScanQuestion:
    """`below`: only keys whose last column is a text below that."""

    store: str
    rows: int
    version: int | None = None
    column: str = ""
    below: str | None = None

    def request(self, cursor: str | None, call: str = "scan") -> bytes:
        """Return the request for the first page, or for the one at a cursor; or for an export."""
        members: dict[str, object] = {"wait_ms": WAIT_MS}
        if call == "scan":
            members["limit"] = self.rows
        if self.version is not None:
            members["version"] = self.version
        if self.below is not None:
            members["where"] = json.dumps([[self.column, "<", self.below]])
        if cursor is not None:
            members["cursor"] = cursor
        query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in members.items())
        closed = "connection: close\r\n" if call == "export" else ""
        return f"GET /v1/stores/{self.store}/{call}?{query} HTTP/1.1\r\nhost: proof\r\n{closed}\r\n".encode()


def choose_scan(subject: Subject, chance: random.Random, newest: int, columns: dict[str, str]) -> ScanQuestion:
    """Choose a question. `columns` has the last key column of each store of which a row was seen."""
    store = chance.choice(tuple(subject.kinds))
    asked = ScanQuestion(store, chance.choice(PAGE_ROWS))
    if chance.random() < 0.3:
        asked = replace(asked, version=max(1, newest - chance.randrange(VERSIONS_BACK)))
    if store in columns and chance.random() < 0.4:
        asked = replace(asked, column=columns[store], below=chance.choice(("s1w5", "w1", "w25", "w5", "zz")))
    return asked


@dataclass(slots=True)
class Scanning:
    """A scan that is being made, and what its pages had so far."""

    number: int
    question: ScanQuestion
    began_ms: float
    is_export: bool = False
    cursor: str | None = None
    pages: int = 0
    turned_away: int = 0
    """How often in a row an overloaded service refused what is wanted next."""
    versions: set[int] = field(default_factory=set)
    rows: list[tuple[str, Value]] = field(default_factory=list)

    def took(self, ended_ms: float, reply: HttpReply, columns: dict[str, str]) -> Scan | None:
        """Add a page; return the record of the scan when it has ended with it."""
        if self.asks_again(reply.status):
            return None
        try:
            body = orjson.loads(reply.body)
            if reply.status != 200:
                return self.refused(ended_ms, body)
            self.versions.add(body["version"])
            for row in body["rows"]:
                columns[self.question.store] = [*row["key"]][-1]
                self.rows.append((key_text(*row["key"].values()), said_by(row)))
            self.cursor, self.pages = body["next_cursor"], self.pages + 1
        except (ValueError, KeyError, TypeError) as error:
            return self.ended(ended_ms, "failed", detail=f"{error!r} in {reply.body[:300]!r}")
        if self.cursor is not None and self.pages < MAX_PAGES:
            return None
        if self.cursor is not None:
            return self.ended(ended_ms, "failed", detail=f"no end after {self.pages} pages")
        return self.ended(ended_ms, "whole")

    def asks_again(self, status: int) -> bool:
        """Note a status; return whether the reader asks again, because the service is overloaded."""
        self.turned_away = self.turned_away + 1 if status == OVERLOADED else 0
        return 0 < self.turned_away <= MAX_TURNED_AWAY

    def refused(self, ended_ms: float, body: dict[str, Any]) -> Scan:
        """Return the record of a scan that ends with a problem."""
        candidates = tuple(
            (str(each.get("node_id", "")), str(each.get("reason", ""))) for each in body.get("candidates", ())
        )
        problem, detail = str(body["type"]), str(body.get("detail", ""))
        outcome: ScanOutcome = "failed" if problem == "internal" else "refused"
        return self.ended(ended_ms, outcome, problem=problem, candidates=candidates, detail=detail)

    def ended(
        self,
        ended_ms: float,
        outcome: ScanOutcome,
        *,
        problem: str = "",
        candidates: tuple[tuple[str, str], ...] = (),
        detail: str = "",
    ) -> Scan:
        """Return the record of the scan."""
        return Scan(
            number=self.number,
            began_ms=self.began_ms,
            ended_ms=ended_ms,
            store=self.question.store,
            asked_version=self.question.version,
            below=self.question.below,
            outcome=outcome,
            problem=problem,
            candidates=candidates,
            detail=detail,
            pages=self.pages,
            versions=tuple(sorted(self.versions)),
            rows=tuple(self.rows),
            is_export=self.is_export,
        )
