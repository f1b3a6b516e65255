"""The stores, bounds and counts of a node or a router, for reads of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
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
        """Return the bound for a read of a store. Raises NoSuchStoreError, and the problem of a bad bound."""


class counted:  # noqa: N801  # read as a function: `with counted(...)`
    """Count a request by its outcome, and its time, when it ends. A generator would cost twice the calls."""

    __slots__ = ("_began_s", "_operation", "_requests", "_store")

    def __init__(self, requests: RequestCounts, operation: str, store: str = NO_STORE) -> None:
        self._requests, self._operation, self._store = requests, operation, store
        self._began_s = monotonic()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, (asyncio.CancelledError, ReaderLeftError)):
            outcome = "cancelled"
        elif isinstance(error, UnderstudyError):
            outcome = problem_of(error).outcome
        else:
            outcome = "answered" if error is None else "internal"
        counts = self._requests.of(self._operation, self._store)
        counts.count(outcome)
        counts.duration_ms.observe((monotonic() - self._began_s) * 1000)


def counted_of_store(service: ServiceReads, operation: str, name: str) -> counted:
    """Count a request for a store of this name, if there is one."""
    return counted(service.requests, operation, name if service.has_store(name) else NO_STORE)
