"""The process of a fleet, its reports about its applications, and the calls that no single application answers:
probes, metrics, and lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client.core import GaugeMetricFamily, Metric

from understudy_shared.auth.access import AUTHORIZATION, Access, authorization_of
from understudy_shared.auth.principals import Action, Authorization, Principal
from understudy_shared.base.background import Supervisor
from understudy_shared.base.texts import clipped
from understudy_shared.base.words import HostInfo
from understudy_shared.fleet.dispatching import APPLICATION, MAX_NAMED, Fleet, Served, judged, not_known
from understudy_shared.http.edge import App, Scope
from understudy_shared.http.health import Status
from understudy_shared.http.lookup_requests import unknown_path
from understudy_shared.http.openapi.document import Service, add_document
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import unknown_application
from understudy_shared.server.app import (
    Framework,
    ProcessReport,
    answer_with_problems,
    json_response,
    probe_routes,
    service_app,
)
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.settings import HttpService, HttpServiceSettings
from understudy_shared.spark.temporal import utc_text

LABEL = "application"


class ApplicationState(StrEnum):
    """The state of an application in a fleet."""

    OPENING = "opening"

    WAITING = "waiting"
    """The application waits for its checkpoint, its first commit, or an answer of its storage."""
    RESTORING = "restoring"
    SERVING = "serving"
    IDLE = "idle"
    """The application has had no nodes for a while; at a node, no commits and no announcements for long."""
    FAILED = "failed"
    """The application cannot be opened at the moment; opening it is retried."""


@dataclass(frozen=True, slots=True)
class ApplicationReport:
    """One application, as the list of a fleet shows it."""

    application_id: str
    checkpoint: str
    """Its location, without secrets; empty where it is not known, as at routers."""
    state: ApplicationState
    since_us: int
    """The wall time at which it entered this state."""
    reason: str | None = None
    """The reason why it is not served, or only in part; None: it is."""
    source: str = "file"
    """The source of the application: `command`, `file`, `announced`, or `heard` if a router heard its nodes."""
    stores: tuple[str, ...] = ()
    end_offset_position: int | None = None
    max_offset_lag: int | None = None
    max_time_lag_ms: int | None = None

    def document(self) -> dict[str, object]:
        return {
            "application": self.application_id,
            "checkpoint": self.checkpoint or None,
            "state": self.state,
            "since": utc_text(self.since_us),
            "reason": self.reason,
            "source": self.source,
            "stores": list(self.stores),
            "end_offset_position": self.end_offset_position,
            "max_offset_lag": self.max_offset_lag,
            "max_time_lag_ms": self.max_time_lag_ms,
        }


class Reported(Served, Protocol):
    """An application of a fleet that reports on itself."""

    @property
    def was_ready(self) -> bool:
        """Whether it has been ready since the process started."""

    @property
    def dead(self) -> str | None:
        """The bug that ended it; None while it runs."""

    def report(self) -> ApplicationReport: ...

    async def leave(self) -> None:
        """Announce that it is about to end. It still answers."""

    def status(self) -> Status:
        """Return its readiness, and its causes of being degraded."""

    def metrics(self) -> Iterable[Metric]:
        """Return its own metric families, without those of the process."""


def readiness(applications: Mapping[str, Reported]) -> Status:
    """Return the readiness of the process. At the start it is not ready until each application that can be opened has
    been ready or has failed. Later it is not ready only if no application is ready.

    So one broken checkpoint does not stop a rolling restart, and a restart waits for its restores.
    """
    statuses = {each: application.status() for each, application in applications.items()}
    waiting, ready = [], 0
    for application_id, application in applications.items():
        if statuses[application_id].http_status == 200:
            ready += 1
        elif not application.was_ready and application.report().state in {
            ApplicationState.OPENING,
            ApplicationState.RESTORING,
        }:
            waiting.append(application_id)
    reasons = [f"{clipped(each)}: {'; '.join(statuses[each].reasons)}" for each in waiting[:MAX_NAMED]]
    if len(waiting) > MAX_NAMED:
        reasons.append(f"{len(waiting) - MAX_NAMED} more applications are not ready")
    if not waiting and applications and not ready:
        reasons = [f"none of {len(applications)} applications is ready"]
    causes: dict[str, str] = {}
    for application_id, status in statuses.items():
        for cause, why in status.causes.items():
            causes.setdefault(cause, f"{clipped(application_id)}: {why}")
    return Status(tuple(reasons), causes)


def state_metrics(applications: Mapping[str, Reported]) -> Iterable[Metric]:
    """Yield the state of each application. It is the only series of an application that was never opened."""
    family = GaugeMetricFamily(
        "understudy_application_state", "1; the state of an application of a fleet", labels=(LABEL, "state")
    )
    for application_id, application in applications.items():
        family.add_metric((application_id, application.report().state), 1)
    yield family


def labelled(families: Mapping[str, Iterable[Metric]], of_process: Iterable[Metric] = ()) -> Iterator[Metric]:
    """Merge the metric families: one of each name, with all samples. Samples of applications get the label of their
    id; samples of the process have no such label.
    """
    found = {family.name: family for family in of_process}
    for application_id, own in families.items():
        for family in own:
            whole = found.get(family.name)
            if whole is None:
                whole = found[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
            whole.samples += [
                sample._replace(labels={LABEL: application_id, **sample.labels}) for sample in family.samples
            ]
    yield from found.values()


_STORES = b"/v1/stores"
_ROOTS = (b"/admin/v1", b"/v1")
"""Beginnings of the paths of calls, which a fleet has for each application."""

LIST_S = 3.0
"""Time limit for the applications to list their stores. The answer names the ones that took longer as missing."""

AnyReported = TypeVar("AnyReported", bound=Reported)


class FleetService(HttpService, Generic[AnyReported]):
    """A process with several applications, of nodes or of routers. `app` is the dispatcher before them. The routes here
    are the calls that no single application answers.
    """

    def __init__(
        self, service: Service, settings: HttpServiceSettings, host: HostInfo, access: Access, guard: ConnectionGuard
    ) -> None:
        """Make the routes of the fleet, with the OpenAPI document of `service`. No application is served yet."""
        self.settings = settings
        self.host = host
        self.access = access
        self.guard = guard
        self.tasks = Supervisor()
        self.is_leaving = False
        http = service_app("Understudy", self._lifespan)
        self.app: Fleet[AnyReported] = Fleet(Framework(http), access, self.unknown_why)
        self.applications: Mapping[str, AnyReported] = self.app.applications
        report = ProcessReport(status=self.status, dead=self.dead, metrics=self._metrics)
        for routes in (probe_routes(report), self._routes(), *self.routes()):
            http.include_router(routes)
        add_document(http, service, is_fleet=True, is_guarded=access.is_on, root_path=access.root_path)
        answer_with_problems(http, self._unknown_path)

    # ---- implemented by nodes and routers

    def routes(self) -> Iterable[APIRouter]:
        """Return further routes. They look up the rest of the process only when they are called."""
        return ()

    async def start(self) -> None:
        """Start on the loop of the service, before the first request."""

    async def stop(self) -> None:
        """End all applications, and close the shared parts. `tasks` are stopped already."""

    def starting(self) -> str | None:
        """Return why it does not know all its applications yet; None if it does."""
        return None

    def unknown_why(self) -> str | None:
        """Return why an unknown application may still exist; None if all applications are known."""
        return self.starting()

    def own_causes(self) -> Mapping[str, str]:
        return {}

    def metrics(self) -> Iterable[Metric]:
        return ()

    # ---- its life, and its state

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        try:
            await self.start()
            yield
        finally:
            await self.tasks.stop()
            await self.stop()

    async def leave(self) -> None:
        self.is_leaving = True
        await asyncio.gather(*[each.leave() for each in self.applications.values()])

    def not_ready(self) -> list[str]:
        """Return why this process should get no requests; empty if it is ready."""
        return list(self.status().reasons)

    def causes(self) -> Mapping[str, str]:
        return {**self.own_causes(), **self.guard.causes(), **self.access.causes()}

    def status(self) -> Status:
        found, starting = readiness(self.applications), self.starting()
        reasons = found.reasons if starting is None else (starting, *found.reasons)
        return Status(reasons, {**found.causes, **self.causes()})

    def dead(self) -> str | None:
        """Return why the process must end: a bug in one application is not a reason while others live."""
        if self.tasks.dead is not None:
            return self.tasks.dead
        reasons = [each.dead for each in self.applications.values()]
        return reasons[0] if reasons and all(reasons) else None

    def _metrics(self) -> Iterator[Metric]:
        families = {each: application.metrics() for each, application in self.applications.items()}
        yield from labelled(families, [*self.metrics(), *state_metrics(self.applications)])

    # ---- its own calls

    def _routes(self) -> APIRouter:
        routes = APIRouter()

        @routes.get("/v1/applications")
        async def applications(request: Request) -> Response:
            """List the applications that the caller sees, with their states."""
            principal = authorization_of(request.scope).principal
            seen = self._known(principal)
            return json_response({"applications": [_shown(principal, each.report()) for each in seen.values()]})

        @routes.get("/v1/applications/{application}")
        async def one(request: Request, application: str) -> Response:
            """Return one application: its state, its stores, its version and lag."""
            principal = authorization_of(request.scope).principal
            found = self._seen(principal).get(application)
            if found is None:
                raise ProblemError(judged(unknown_application(application), self.unknown_why()))
            return json_response(_shown(principal, found.report()))

        @routes.get("/v1/stores")
        async def stores(request: Request) -> Response:
            """List the stores of all applications that the caller sees, each with its application."""
            seen = self._known(authorization_of(request.scope).principal)
            return json_response(await all_stores(seen, request.scope))

        return routes

    def _known(self, principal: Principal) -> Mapping[str, Reported]:
        """Return the applications that a principal sees. Raises ProblemError if it sees no application, but some may
        still be unknown.
        """
        seen = self._seen(principal)
        if not seen and (why := self.unknown_why()) is not None:
            raise ProblemError(not_known(why))
        return seen

    def _unknown_path(self, scope: Scope) -> Problem:
        """Return the problem of an unknown path; if it is a call of one application, say how to name that one."""
        raw_path: bytes = scope["raw_path"]
        root = next((each for each in _ROOTS if raw_path.startswith(b"%b/" % each)), None)
        if root is None or raw_path.startswith(b"%b/applications" % root):
            return unknown_path(raw_path)
        if (why := self.unknown_why()) is not None:
            return not_known(why)
        shown = raw_path[:200].decode(errors="replace")
        one = f"{root.decode()}/applications/{{application}}{shown[len(root) :]}"
        seen = list(self._seen(authorization_of(scope).principal))
        return Problem(
            ProblemType.UNKNOWN_PATH,
            f"nothing is at {shown} of a service of several applications",
            fix=f"Name the application: {one}; GET /v1/applications lists them",
            extra={"applications": seen[:MAX_NAMED]},
        )

    def _seen(self, principal: Principal) -> Mapping[str, Reported]:
        return {each: held for each, held in sorted(self.applications.items()) if principal.sees_application(each)}


async def all_stores(applications: Mapping[str, Reported], scope: Scope) -> dict[str, list[Any]]:
    """Ask each application for `GET /v1/stores`, with the query and the grants of this request, and join the answers.

    `unknown` are the applications that returned no list, with the reason.
    """
    found: dict[str, list[Any]] = {"stores": [], "not_served": [], "unknown": []}

    principal = authorization_of(scope).principal

    async def ask(application_id: str, application: Reported) -> tuple[int, dict[str, Any]]:
        APPLICATION.set(application_id)  # of this task
        granted = {**scope, AUTHORIZATION: Authorization(principal.within(application_id))}
        try:
            async with asyncio.timeout(LIST_S):
                status, body = await asked(application.app, granted, _STORES)
        except TimeoutError:
            return 503, {"detail": "it did not answer in time"}
        return status, orjson.loads(body)

    answers = await asyncio.gather(*[ask(*item) for item in applications.items()])
    for application_id, (status, document) in zip(applications, answers, strict=True):
        if status != 200:
            found["unknown"].append({"application": application_id, "reason": document.get("detail")})
            continue
        for kind in ("stores", "not_served"):
            found[kind] += [{**each, "application": application_id} for each in document[kind]]
    return found


async def asked(app: App, scope: Scope, raw_path: bytes) -> tuple[int, bytes]:
    """Send a GET of another path to an application, with the grants of a request. Return its status and body."""
    status, parts = 500, []
    request = {"type": "http.request", "body": b"", "more_body": False}
    headers = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
    inner = {**scope, "method": "GET", "raw_path": raw_path, "path": raw_path.decode(), "headers": headers}
    inner.pop("endpoint", None), inner.pop("route", None), inner.pop("path_params", None)

    async def receive() -> MutableMapping[str, Any]:
        return request

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(inner, receive, send)
    return status, b"".join(parts)


def _shown(principal: Principal, report: ApplicationReport) -> dict[str, object]:
    """Return the part of a report that a principal may see: location and reasons need the right to monitor."""
    principal = principal.within(report.application_id)
    if not principal.may(Action.MONITOR):
        hidden = {
            "checkpoint": None,
            "reason": None if report.reason is None else "a credential that may monitor shows why",
        }
        stores = [each for each in report.stores if principal.sees(each)]
        return {**report.document(), **hidden, "stores": stores}
    return report.document()
