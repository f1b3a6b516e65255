"""The objects that all reads of a router share: the nodes' clients, the choice among them, the retry budget, counters,
and the log of reads that the first node did not answer.

At most one line of a kind is logged in a minute, with the number of lines left out. A line has ids, but no key: the
store, the partition, the node, and the trace if the reader sent one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.watching import ClusterWatcher
from understudy_router.forwarding.answer_ages import ServedReads
from understudy_router.forwarding.fallback import Rejection, Step, is_catalogue_outdated, is_outdated
from understudy_router.routing.choose import Choices
from understudy_router.settings import RouterSettings
from understudy_router.transport.node_clients import NodeClients
from understudy_shared.base.clock import Clock
from understudy_shared.base.throttles import LogThrottle, RetryBudget
from understudy_shared.cluster.node_calls import NodeTimeoutError
from understudy_shared.http.problems import Problem

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""Time between two checks whether a node that a long call waits for is still heard of."""


class ForwardingLog:
    """The log lines of one router. `ids` are the store, the partition, and the trace if there is one."""

    def __init__(self) -> None:
        self._throttle = LogThrottle()

    def rejected(self, ids: Mapping[str, object], candidate: Candidate, rejection: Rejection, now_ms: float) -> None:
        """Log that a node gave no answer; the read continues at other replicas, if there are any."""
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


class ReadContext:
    """The shared objects and the counters for the metrics: `fallbacks` counts failed attempts by reason; `steps` counts
    keys sent to one more node, by what that cost; `not_paid` counts keys that were not sent because the retry budget
    was spent; `served` counts what readers got.
    """

    def __init__(
        self,
        clients: NodeClients,
        choices: Choices,
        watcher: ClusterWatcher,
        budget: RetryBudget,
        *,
        settings: RouterSettings,
        clock: Clock,
    ) -> None:
        self.fallbacks: Counter[str] = Counter()
        self.steps: Counter[Step] = Counter()
        self.not_paid = 0
        self.served = ServedReads()
        self.clients = clients
        self.choices = choices
        self.watcher = watcher
        self.budget = budget
        self.hop_timeout_ms = settings.hop_timeout_ms
        self.deadline_ms = settings.deadline_ms
        self.clock = clock
        self.log = ForwardingLog()
        self._hedges = settings.hedge_after_ms > 0

    def rejected(self, reason: str) -> None:
        """Count a failed attempt. If it shows that the assignment or the catalogue here is old, have it read again."""
        self.fallbacks[reason] += 1
        if is_outdated(reason):
            self.watcher.refresh()
        if is_catalogue_outdated(reason):
            self.watcher.catalogue.doubt()

    def may_send(self, step: Step, keys: int) -> bool:
        """Whether so many keys may be sent to one more node; if so, count them and pay for them."""
        if step is Step.HEDGE and not self._hedges:
            return False
        if step in {Step.HEDGE, Step.RETRY} and not self.budget.try_spend(keys, self.clock.monotonic_ms()):
            self.not_paid += keys
            return False
        self.steps[step] += keys
        return True


@asynccontextmanager
async def while_heard_of(candidate: Candidate, watcher: ClusterWatcher) -> AsyncIterator[None]:
    """Run a block that may wait for a node for many seconds. Raise NodeTimeoutError once the node is silent: one
    that stands still keeps its connections, and another replica could answer meanwhile.
    """
    loop = asyncio.get_running_loop()
    next_look: asyncio.TimerHandle

    def look() -> None:
        nonlocal next_look
        if watcher.is_heard_of(candidate.node_id):
            next_look = loop.call_later(LOOK_S, look)
        else:
            limit.reschedule(loop.time())

    next_look = loop.call_later(LOOK_S, look)
    try:
        async with asyncio.timeout(None) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise NodeTimeoutError("the node became silent before it answered", where=candidate.node_id) from None
    finally:
        next_look.cancel()
