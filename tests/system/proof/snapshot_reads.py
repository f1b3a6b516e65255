"""What readers of several stores ask for at one version, and what they make of the answer (pure)."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import orjson
from tests.system.proof.history import ScanOutcome, SnapshotRead, Value
from tests.system.proof.http_talk import HttpReply
from tests.system.proof.question import Question, key_text, said_by
from tests.system.proof.scanning import VERSIONS_BACK, WAIT_MS
from tests.system.proof.subjects import Subject

READS = 6
LEASE_EACH = 6
"""Each so many reads together one takes a lease, whose snapshot the next ones use."""

TTL_S = 4


@dataclass(frozen=True, slots=True)
class SnapshotQuestion:
    """Keys of stores, at a version that is named, at that of an answer before, or at the newest."""

    questions: tuple[Question, ...]
    version: int | None = None
    snapshot: str | None = None
    is_lease: bool = False
    """Whether it asks for a lease of the newest version, and reads nothing."""

    @property
    def request(self) -> bytes:
        """Return the request."""
        if self.is_lease:
            return _post("/v1/snapshots", {"ttl_s": TTL_S, "wait_ms": WAIT_MS})
        members: dict[str, object] = {
            "reads": [{"store": each.store, "keys": [list(each.key)]} for each in self.questions],
            "wait_ms": WAIT_MS,
        }
        if self.snapshot is not None:
            members["snapshot"] = self.snapshot
        elif self.version is not None:
            members["version"] = self.version
        return _post("/v1/read", members)

    def replied(self, number: int, began_ms: float, ended_ms: float, reply: HttpReply) -> SnapshotRead:
        """Return the record of a reply."""
        try:
            body = orjson.loads(reply.body)
            if reply.status not in (200, 201):
                return self._refused(number, began_ms, ended_ms, body)
            results = tuple(map(_result, self.questions, body.get("reads", ())))
            of, snapshot = (number, began_ms, ended_ms, self.version), self.snapshot or body["snapshot"]
            said = SnapshotRead(*of, "whole", version=body["version"], snapshot=snapshot, results=results)
            return replace(said, is_lease=self.is_lease)
        except (ValueError, KeyError, TypeError) as error:
            return self.failed(number, began_ms, ended_ms, f"{error!r} in {reply.body[:300]!r}")

    def failed(self, number: int, began_ms: float, ended_ms: float, detail: str) -> SnapshotRead:
        """Return the record of a read without an answer."""
        return SnapshotRead(number, began_ms, ended_ms, self.version, "failed", detail=detail)

    def _refused(self, number: int, began_ms: float, ended_ms: float, body: dict[str, Any]) -> SnapshotRead:
        candidates = tuple((str(each.get("node_id")), str(each.get("reason"))) for each in body.get("candidates", ()))
        problem = str(body["type"])
        outcome: ScanOutcome = "failed" if problem == "internal" else "refused"
        return SnapshotRead(
            number,
            began_ms,
            ended_ms,
            self.version,
            outcome,
            problem=problem,
            candidates=candidates,
            detail=str(body.get("detail", "")),
        )


def _post(path: str, members: dict[str, object]) -> bytes:
    body = orjson.dumps(members)
    head = f"POST {path} HTTP/1.1\r\nhost: proof\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def choose_snapshot(
    subject: Subject, chance: random.Random, newest: int, before: SnapshotRead | None, absent: set[str]
) -> SnapshotQuestion:
    """Choose keys of stores that are there; `before` is an answer before, whose snapshot may be read again."""
    chosen = (subject.choose(chance, newest) for _ in range(READS * 4))
    questions = tuple(Question(each.store, each.key) for each in chosen if each.store not in absent)[:READS]
    dice = chance.random()
    if before is not None and dice < 0.4:
        return SnapshotQuestion(questions, before.version, before.snapshot)
    back = chance.randrange(VERSIONS_BACK)
    return SnapshotQuestion(questions, max(1, newest - back) if dice > 0.7 else None)


def _result(question: Question, read: dict[str, Any]) -> tuple[str, str, int | None, Value | None, str]:
    (result,) = read["results"]
    of = (question.store, key_text(*question.key))
    if "found" not in result:
        return *of, None, None, str(result["type"])
    return *of, result["version"], said_by(result) if result["found"] else None, ""
