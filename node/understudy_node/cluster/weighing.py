"""Decides when the assignor looks at weights, and which exchange is in progress.

An application begins one exchange at most for each look, while its assignment is at rest, and looks at moments of its
own: the others see what it moved before they look. The exchange is an input of the assignor until it is complete, or
until nodes come, go, or drain, or another node assigned meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from understudy_node.cluster.assignor import Member
from understudy_node.cluster.exchanges import UNWEIGHED, Weighed, next_exchange
from understudy_node.cluster.task_replicas import TaskSet
from understudy_node.cluster.weights import weights_of
from understudy_shared.base.clock import Clock
from understudy_shared.bus.messages import AssignedTask, Heartbeat

LOOK_MS: Final = 120_000
"""Mean time between two looks."""


class Weighing:
    """The looks of one assignor. Its calls come one after another."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._random = random.Random()  # noqa: S311  # jitter
        self._look_again_ms = float("-inf")
        self._last = UNWEIGHED
        self._circumstances: object = None
        """The term, nodes and tasks for which an exchange is meant."""
        self._zones: Mapping[str, str] | None = None
        """The nodes that may exchange; None while one is away or drains."""
        self._is_due = False
        """Whether this look has not yet seen the assignment at rest."""

    def look(
        self,
        heartbeats: Iterable[Heartbeat],
        members: Sequence[Member],
        away: Sequence[Member],
        tasks: TaskSet,
        term: int,
    ) -> Weighed:
        """Return the weights, of the reports that came before the last look, and the exchange in progress."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._look_again_ms:
            self._look_again_ms = now_ms + self._random.uniform(0.5, 1.5) * LOOK_MS
            self._is_due = True
            self._last = Weighed(self._last.look + 1, weights_of(heartbeats, len(tasks.keys)), self._last.exchange)
        if self._circumstances != (circumstances := (term, members, away, tasks)):
            self._circumstances = circumstances
            is_steady = not away and not any(member.draining for member in members)
            self._zones = {member.node_id: member.zone for member in members} if is_steady else None
            self._last = self._last._replace(exchange=None)
        return self._last

    def no_step_left(self, tasks: Mapping[str, AssignedTask]) -> bool:
        """Note that the assignor has no step left in this assignment. Return whether an exchange begins.

        While a replica warms up, one in progress goes on.
        """
        if any(each.warmups for each in tasks.values()):
            return False
        exchange, zones = None, self._zones
        if self._is_due and zones is not None and all(zones.keys() >= set(each.holders) for each in tasks.values()):
            exchange = next_exchange(tasks, zones, self._last.weights)
        self._is_due = False
        self._last = self._last._replace(exchange=exchange)
        return exchange is not None
