"""The log of reads that the first node did not answer: which node gave no answer and why, and which read got no answer.

At most one line of a kind is logged in a minute, with the number of those that were left out. A line has ids and no
key: the store, the partition, the node, and the trace if the reader sent one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from understudy_router.cluster.candidates import Candidate
from understudy_router.forwarding.fallback import Rejection
from understudy_shared.base.reminders import LogThrottle
from understudy_shared.http.problems import Problem

log = logging.getLogger(__name__)


class ReadLog:
    """The log lines of one router. `ids` are the store, the partition, and the trace if there is one."""

    def __init__(self) -> None:
        self._throttle = LogThrottle()

    def rejected(self, ids: Mapping[str, object], candidate: Candidate, rejection: Rejection, now_ms: float) -> None:
        """Log that a node gave no answer; the read goes on to other replicas, if there are any."""
        left_out = self._throttle.admit(("rejected", candidate.node_id, rejection.reason), now_ms)
        if left_out is not None:
            fields = {"action": "read-fallback", "node": candidate.node_id, "reason": rejection.reason}
            log.info(
                "%s did not answer: %s; the next candidate is asked",
                candidate.node_id,
                rejection.reason,
                extra={**fields, **ids, **left_out},
            )

    def unanswered(self, ids: Mapping[str, object], problem: Problem, took_ms: float, now_ms: float) -> None:
        """Log that a read ends without an answer."""
        left_out = self._throttle.admit(("unanswered", ids["store"], problem.type, problem.refusal), now_ms)
        if left_out is not None:
            fields = {"action": "read-unanswered", "outcome": problem.type.slug, "took_ms": round(took_ms)}
            log.info("a read got no answer: %s", problem.detail, extra={**fields, **ids, **left_out})
