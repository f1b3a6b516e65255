"""What the log says of reads that did not go straight: which node gave no answer and why, and which read got none.

One line of a kind in a minute, with the number of those that were left out. A line has ids and no key: the store, the
partition, the node, and the trace of the reader who sent one.
"""

from __future__ import annotations

import logging

from understudy_router.forwarding.fallback import Rejection
from understudy_router.forwarding.read import Read
from understudy_router.routing.candidates import Candidate
from understudy_shared.base.reminders import Repeats
from understudy_shared.http.problems import Problem
from understudy_shared.telemetry.trace import ids_of

log = logging.getLogger(__name__)


class ReadLog:
    """Writes the lines of one router."""

    def __init__(self) -> None:
        self._repeats = Repeats()

    def rejected(self, read: Read, partition: int, candidate: Candidate, rejection: Rejection, now_ms: float) -> None:
        """A node that was asked gave no answer; other replicas are asked, if there are any."""
        left_out = self._repeats.due(("rejected", candidate.node_id, rejection.reason), now_ms)
        if left_out is not None:
            log.info(
                "%s did not answer: %s; the next candidate is asked",
                candidate.node_id,
                rejection.reason,
                extra={
                    "action": "read-fallback",
                    "node": candidate.node_id,
                    "reason": rejection.reason,
                    **_ids(read, partition, left_out),
                },
            )

    def unanswered(self, read: Read, partition: int, problem: Problem, now_ms: float) -> None:
        """A read ends without an answer."""
        left_out = self._repeats.due(("unanswered", read.route.name, problem.type, problem.refusal), now_ms)
        if left_out is not None:
            log.info(
                "a read got no answer: %s",
                problem.detail,
                extra={
                    "action": "read-unanswered",
                    "outcome": problem.type.slug,
                    "took_ms": round(now_ms - read.began_ms),
                    **_ids(read, partition, left_out),
                },
            )


def _ids(read: Read, partition: int, left_out: int) -> dict[str, object]:
    ids: dict[str, object] = {"store": read.route.name, "partition": partition, **ids_of(read.trace)}
    return {**ids, "left_out": left_out} if left_out else ids
