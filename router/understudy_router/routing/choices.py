"""The choice for each partition, kept while nothing that it depends on changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from understudy_router.cluster.candidates import basis_of, candidates_of
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.cluster.tables import Tables
from understudy_router.cluster.watching import Watcher
from understudy_router.routing.choose import Choice, Reason, choose
from understudy_router.routing.explain import key_hash
from understudy_shared.base.clock import Clock
from understudy_shared.reads.bounds import Bound

MAX_CHOICE_AGE_MS = 100
"""Far below a heartbeat, which is how old the tables of a choice may be."""

MAX_CHOICES = 16_384
"""Cached choices by partition and bound; when there are more, the cache is cleared."""


@dataclass(slots=True)
class _Chosen:
    """A cached choice: for which bound it was made, when, of what, and at which version of the tables it last held."""

    bound: Bound
    at_ms: float
    choice: Choice
    version: int
    holders: tuple[str, ...]
    basis: tuple[object, ...]


class Choices:
    """The choices of replicas by the tables, cached. `load` is keys in flight, by node id."""

    def __init__(self, tables: Tables, watcher: Watcher, *, load: Mapping[str, int], clock: Clock) -> None:
        self._tables = tables
        self._watcher = watcher
        self._load = load
        self._clock = clock
        self._chosen: dict[tuple[int, int, int], _Chosen] = {}

    def choose(self, route: StoreRoute, partition: int, bound: Bound) -> Choice:
        """Choose for a partition. The choice is cached while its inputs stay the same, at most MAX_CHOICE_AGE_MS:
        ages grow. A heartbeat of a node without this partition changes nothing: a thousand nodes send one a second.
        """
        now_ms, tables = self._clock.monotonic_ms(), self._tables
        place = (route.operator_id, partition, id(bound))
        kept = self._chosen.get(place)
        if kept is not None and kept.bound is bound and now_ms - kept.at_ms <= MAX_CHOICE_AGE_MS:
            if kept.version == tables.version:
                return kept.choice
            if kept.basis == basis_of(tables, kept.holders, now_ms):
                kept.version = tables.version
                return kept.choice
        if len(self._chosen) >= MAX_CHOICES:
            self._chosen.clear()
        candidates = candidates_of(tables, route.operator_id, partition, now_ms)
        holders = tuple(candidate.node_id for candidate in candidates)
        basis = basis_of(tables, holders, now_ms)
        choice = choose(candidates, bound, key_hash=key_hash(route, partition), load=self._load)
        if any(each.reason is Reason.LINEAGE_CHANGED for each in choice.exclusions):
            self._watcher.refresh()  # two histories are about: it may be this router that is behind
        self._chosen[place] = _Chosen(bound, now_ms, choice, tables.version, holders, basis)
        return choice
