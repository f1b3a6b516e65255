"""The state of a service, alone or with others: whether it is ready, and its metrics.

The routes for /readyz and /metrics ask a `Group`. `Alone` is a service of one process; `WorkerLink` asks the
supervisor, which asks every worker process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

WORKERS = "workers"
"""The cause by which a service is degraded while a worker process keeps ending."""


class Status(NamedTuple):
    """The reasons why a service is not ready, empty when it is; and the causes by which it is degraded."""

    reasons: tuple[str, ...] = ()
    causes: Mapping[str, str] = {}

    @property
    def http_status(self) -> int:
        return 503 if self.reasons else 200

    def document(self) -> dict[str, object]:
        """Return the answer of /readyz."""
        degraded = "; ".join(self.causes.values()) or None
        return {"ready": not self.reasons, "reasons": list(self.reasons), "degraded": degraded}


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """The functions that ask one process for its state."""

    status: Callable[[], Status]
    dead: Callable[[], str | None]
    """Returns the reason why the process cannot go on."""
    metrics: Callable[[], Iterable[Metric]]
    connections: Callable[[], int]


class Group(Protocol):
    """The processes of a service, one or more."""

    def join(self, report: ProcessReport) -> None:
        """Give the group the report of this process; before it serves."""

    def causes(self) -> Mapping[str, str]:
        """Return why the service is degraded by its processes."""

    async def status(self) -> Status:
        """Return the status of all processes together."""

    async def metrics(self) -> bytes:
        """Return the exposition for `GET /metrics`, of all processes."""


class Alone:
    """A service of one process."""

    def __init__(self) -> None:
        self._report: ProcessReport | None = None

    def join(self, report: ProcessReport) -> None:
        self._report = report

    def causes(self) -> Mapping[str, str]:
        return {}

    async def status(self) -> Status:
        assert self._report is not None
        return self._report.status()

    async def metrics(self) -> bytes:
        assert self._report is not None
        return await asyncio.to_thread(exposition, list(self._report.metrics()))


def exposition(families: Iterable[Metric]) -> bytes:
    """Print families for Prometheus. A thousand series take some 10 ms: no event loop should wait for that."""
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def merged_status(statuses: Mapping[int, Status | None], down: Mapping[int, str], causes: Mapping[str, str]) -> Status:
    """Merge the status of all workers. A worker that is `down` or has no status is a reason, so ready means: all are.

    A text of every worker appears once, without a name; `causes` are the supervisor's.
    """
    reasons = [f"worker {number} {why}" for number, why in sorted(down.items())]
    known = {number: status for number, status in sorted(statuses.items()) if status is not None}
    reasons += [f"worker {number} does not answer its supervisor" for number in sorted(statuses.keys() - known.keys())]
    reasons += _said([(number, reason) for number, status in known.items() for reason in status.reasons], len(known))
    found: dict[str, list[tuple[int, str]]] = {}
    for number, status in known.items():
        for cause, why in status.causes.items():
            found.setdefault(cause, []).append((number, why))
    joined = {cause: "; ".join(_said(said, len(known))) for cause, said in found.items()}
    return Status(tuple(reasons), {**joined, **causes})


def _said(said: list[tuple[int, str]], workers: int) -> list[str]:
    """Return each text once: alone when all workers report it, else with the name of each that does."""
    by_text: dict[str, list[int]] = {}
    for number, text in said:
        by_text.setdefault(text, []).append(number)
    return [
        text if len(numbers) == workers else f"worker {', '.join(map(str, numbers))}: {text}"
        for text, numbers in by_text.items()
    ]
