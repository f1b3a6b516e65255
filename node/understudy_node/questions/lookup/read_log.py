"""The log of single reads at a node: those that it should have answered and could not, and traced ones at DEBUG.

One line of a kind in a minute, with the number of those that were left out. A line has ids and no key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import orjson

from understudy_shared.base.throttles import LogThrottle
from understudy_shared.http.problems import Problem, ProblemType
from understudy_shared.questions.lookup.hop import HopTrace
from understudy_shared.questions.lookup.hop_columns import PROBLEM, HopOutcome
from understudy_shared.telemetry.spans import Trace, ids_of

log = logging.getLogger(__name__)

OUTCOMES = ("found", "absent")
"""Words for the kinds of an outcome that are answers."""


class ReadLog:
    """The writer of one node's lines."""

    def __init__(self) -> None:
        self._throttle = LogThrottle()

    def unread(self, store: str, partition: int, problem: Problem, trace: Trace | None) -> None:
        """Log a lookup that got a problem; those that readers or lag cause do not concern an operator."""
        if problem.type is not ProblemType.STORE_ERROR:
            return
        left_out = self._throttle.admit((store, partition, problem.type), time.monotonic() * 1000)
        if left_out is not None:
            ids = {"store": store, "partition": partition, **ids_of(trace)}
            log.info("a read got no answer: %s", problem.detail, extra={"action": "read-unanswered", **ids, **left_out})

    def traced(self, outcomes: Sequence[HopOutcome], traces: Sequence[HopTrace]) -> None:
        """Log the keys of a hop whose readers sent a trace, each with its outcome."""
        if not log.isEnabledFor(logging.DEBUG):
            return
        for index, trace in traces:
            outcome = outcome_text(outcomes[index])
            log.debug("a traced read: %s", outcome, extra={"action": "read", "outcome": outcome, **trace.ids})


def outcome_text(outcome: HopOutcome) -> str:
    """Return `found`, `absent`, or the type of a problem."""
    return str(orjson.loads(outcome.body)["type"]) if outcome.kind == PROBLEM else OUTCOMES[outcome.kind]
