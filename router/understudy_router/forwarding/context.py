"""The objects that all reads of a router share: the nodes' clients, the choice among them, the retry budget, and
counters.
"""

from __future__ import annotations

from collections import Counter

from understudy_router.cluster.watching import Watcher
from understudy_router.forwarding.fallback import Step
from understudy_router.forwarding.read_log import ReadLog
from understudy_router.forwarding.served import ServedReads
from understudy_router.routing.choices import Choices
from understudy_router.settings import RouterSettings
from understudy_router.transport.node_clients import NodeClients
from understudy_shared.base.clock import Clock
from understudy_shared.base.retry_budget import RetryBudget


class ReadContext:
    """The shared objects and the counters for the metrics: `fallbacks` counts failed attempts by reason; `steps` counts
    keys sent to one more node, by what that cost; `not_paid` counts keys that were not sent because the retry budget
    was spent; `served` counts what readers got.
    """

    def __init__(
        self,
        clients: NodeClients,
        choices: Choices,
        watcher: Watcher,
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
        self.log = ReadLog()
        self._hedges = settings.hedge_after_ms > 0

    def may_send(self, step: Step, keys: int) -> bool:
        """Whether so many keys may be sent to one more node; if so, count them and pay for them."""
        if step is Step.HEDGE and not self._hedges:
            return False
        if step in {Step.HEDGE, Step.RETRY} and not self.budget.try_spend(keys, self.clock.monotonic_ms()):
            self.not_paid += keys
            return False
        self.steps[step] += keys
        return True
