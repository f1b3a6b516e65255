"""The routes by which machines look at a service: whether it lives, whether it is ready, and its metrics as Prometheus
reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.authentication import CREDENTIALS, ISSUERS
from understudy_shared.auth.redaction import shown_status
from understudy_shared.http.status import Status
from understudy_shared.server.app import json_response
from understudy_shared.server.connection_guard import MEMORY
from understudy_shared.tls.service_tls import TLS


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


CAUSES_OF_PROCESS = (MEMORY, CREDENTIALS, ISSUERS, TLS)
"""The causes by which a whole process is degraded, whatever it serves."""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """The functions that ask this process for its state."""

    status: Callable[[], Status]
    dead: Callable[[], str | None]
    """Returns the reason why the process cannot go on."""
    metrics: Callable[[], Iterable[Metric]]
    """Returns all families of the process."""
    of_application: Callable[[], Iterable[Metric]] = tuple
    """Returns those of the application alone: in a fleet the others are there once."""

    def status_of_application(self) -> Status:
        """Return the status without the causes of the process: in a fleet it has them once."""
        found = self.status()
        causes = {cause: why for cause, why in found.causes.items() if cause not in CAUSES_OF_PROCESS}
        return Status(found.reasons, causes)


def degraded_metric(name: str, known: Iterable[str], causes: Collection[str]) -> Metric:
    """Return the family that says of each `known` cause whether it is there."""
    family = GaugeMetricFamily(name, "1: this does not work although lookups do", labels=("cause",))
    for cause in known:
        family.add_metric((cause,), cause in causes)
    return family


def probe_routes(report: ProcessReport) -> APIRouter:
    """Make /livez, /readyz and /metrics."""
    routes = APIRouter()

    @routes.get("/healthz")
    @routes.get("/livez")
    async def livez(request: Request) -> Response:
        """Report that the event loop turns and no background task died."""
        dead = report.dead()
        shown = shown_status(authorization_of(request.scope).principal, {"alive": dead is None, "reason": dead})
        return json_response(shown, 200 if dead is None else 503)

    @routes.get("/readyz")
    async def readyz(request: Request) -> Response:
        """Report whether this process can answer lookups; lag does not matter here."""
        status = report.status()
        shown = shown_status(authorization_of(request.scope).principal, status.document())
        return json_response(shown, status.http_status)

    @routes.get("/metrics")
    async def prometheus(request: Request) -> Response:
        """Return the exposition for Prometheus."""
        text = await asyncio.to_thread(exposition, list(report.metrics()))
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return routes
