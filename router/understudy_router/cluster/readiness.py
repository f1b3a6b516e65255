"""Whether a router knows enough to route reads: its stores, what it lacks, and what is wrong while reads work."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from understudy_router.cluster.catalogue import Stores
from understudy_router.cluster.degraded import causes_of
from understudy_router.cluster.neighbour_applications import NeighbourApplications
from understudy_router.cluster.tables import Tables
from understudy_router.cluster.watching import Watcher
from understudy_shared.base.clock import Clock
from understudy_shared.bus.gossip import Gossip
from understudy_shared.http.problems import Problem, ProblemError, ProblemType


class Readiness:
    """The readiness of one router, by its tables and its watcher."""

    def __init__(
        self,
        tables: Tables,
        watcher: Watcher,
        gossip: Gossip,
        *,
        unfit: Callable[[], list[str]],
        where: str,
        clock: Clock,
    ) -> None:
        """Make it. `unfit` returns why the process itself should get no readers; `where` names the bus, without its
        password.
        """
        self.neighbours = NeighbourApplications(gossip, where=where, is_unheard=self._is_unheard, clock=clock)
        self._tables = tables
        self._watcher = watcher
        self._gossip = gossip
        self._unfit = unfit
        self._clock = clock

    def stores(self) -> Stores:
        """Return the stores that can be read. Raises a not-initialised ProblemError while they are unknown."""
        stores = self._watcher.catalogue.stores
        if stores is None or self._tables.assignment is None:
            why = "; ".join([*self._lacks(), *self.causes().values()])
            unheard = self.neighbours.fix()
            fix = "Retry when /readyz says so" if unheard is None else f"{unheard}; retry when /readyz says so"
            raise ProblemError(Problem(ProblemType.NOT_INITIALISED, why, fix=fix))
        return stores

    def causes(self) -> Mapping[str, str]:
        """Return the faults that leave lookups working, by cause."""
        found = causes_of(
            self._tables,
            bus_lost_why=self._watcher.bus_lost_why,
            unheard=self._watcher.silent_nodes.unheard(),
            no_catalogue_why=self._watcher.catalogue.unusable or self._watcher.catalogue.last_error,
            now_ms=self._clock.monotonic_ms(),
        )
        return {**found, **self._gossip.auth.causes()}

    def not_ready(self) -> list[str]:
        """Return why the router should get no readers; empty when it should get them. Lag and a lost bus are never
        reasons.
        """
        unheard = self.neighbours.reason()
        return self._lacks() + ([] if unheard is None else [unheard])

    def _lacks(self) -> list[str]:
        reasons = self._unfit()
        if self._watcher.catalogue.stores is None:
            reasons.append("no catalogue is known yet")
        if self._tables.assignment is None:
            reasons.append("no assignment is known yet")
        return reasons

    def _is_unheard(self) -> bool:
        """Whether the router waits for the documents of a node while the bus is reachable without any node."""
        is_waiting = self._watcher.catalogue.stores is None or self._tables.assignment is None
        return is_waiting and self._watcher.bus_lost_why is None and not self._tables.nodes
