"""The stores, bounds and counts of a node or a router, for reads of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.problems import problem_of
from understudy_shared.reads.bounds import Bound
from understudy_shared.server.direct import ReaderLeftError
from understudy_shared.telemetry.metrics import NO_STORE, RequestCounts


class ServiceReads(Protocol):
    """The stores and the bounds of a service. `requests` counts its requests."""

    requests: RequestCounts

    @property
    def max_key_bytes(self) -> int:
        """The limit on a key of a request."""

    def has_store(self, name: str, /) -> bool:
        """Whether a store has that name: only existing stores get a label."""

    def bound_of(self, store: str, params: Mapping[str, object], /) -> Bound:
        """Return the bound for a read of a store. Raises UnknownStoreError, and the problem of a bad bound."""


@contextmanager
def counted(requests: RequestCounts, operation: str, store: str = NO_STORE) -> Iterator[None]:
    """Count a request by its outcome, and its time."""
    began_s, outcome = monotonic(), "internal"
    try:
        yield
        outcome = "answered"
    except (asyncio.CancelledError, ReaderLeftError):
        outcome = "cancelled"
        raise
    except UnderstudyError as error:
        outcome = problem_of(error).outcome
        raise
    finally:
        counts = requests.of(operation, store)
        counts.count(outcome)
        counts.duration_ms.observe((monotonic() - began_s) * 1000)


@contextmanager
def counted_of_store(service: ServiceReads, operation: str, name: str) -> Iterator[None]:
    """Count a request for a store of this name, if there is one."""
    with counted(service.requests, operation, name if service.has_store(name) else NO_STORE):
        yield
