"""The stores, bounds and counts of a service, a node or a router, as reads of all kinds need them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from understudy_shared.reads.bounds import Bound
from understudy_shared.telemetry.metrics import RequestCounts


class ServiceReads(Protocol):
    """The stores and the bounds of a service. `requests` counts its requests."""

    requests: RequestCounts

    def has_store(self, name: str, /) -> bool:
        """Whether a store has that name: only existing stores get a label."""

    def bound_of(self, store: str, params: Mapping[str, object], /) -> Bound:
        """Return the bound of a reader of a store. Raises UnknownStoreError, and the problem of a bad bound."""
