"""The process of several applications: which are wanted, and a task for the life of each.

A checkpoint that cannot be opened affects only its application: it is retried with growing pauses, and no other
notices. A process of one application needs none of this: its application answers for the process.

`/admin/` of a process with several applications lists those that the caller may monitor, the worst first. Each has its
own page below it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client.core import Metric

from understudy_node.cluster.member import ClusterMember
from understudy_node.fleet.application import ApplicationSource, NodeApplication, NodeProcess
from understudy_node.fleet.following import ACTION, CAUSES, Following, announcing_of
from understudy_node.http.metrics import process_metrics
from understudy_node.settings import ClusterNodeSettings, NodeSettings
from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.audit import note
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.files import WatchedFile
from understudy_shared.base.texts import clipped
from understudy_shared.fleet.announced_applications import AnnouncedSpec
from understudy_shared.fleet.applications_file import ApplicationSpec, parse_applications
from understudy_shared.fleet.dispatching import Fleet, SharedThreads
from understudy_shared.fleet.service import ApplicationReport, ApplicationState, FleetService, Reported
from understudy_shared.http.edge import read_flag
from understudy_shared.http.openapi.document import Service
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import unknown_application
from understudy_shared.page.routes import fleet_page_routes
from understudy_shared.server.app import CAUSES_OF_PROCESS, degraded_metric, json_response
from understudy_shared.spark.temporal import utc_text

log = logging.getLogger(__name__)

MAX_THREADS = 256
"""Threads for blocking calls of requests: applications with hanging storage leave some to the others."""

STOP_S = 10.0

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
END_S = 20.0
"""Time limit for all applications to end when the process does."""

Build = Callable[[ApplicationSpec], NodeApplication]


class FleetProcess(FleetService[NodeApplication]):
    """A node's process of several applications, which come and go with what `following` says."""

    settings: NodeSettings

    def __init__(self, settings: NodeSettings, shared: NodeProcess) -> None:
        """Read the file of applications, and open nothing. Raises SettingsError if the file cannot be used."""
        service: Service = "node" if isinstance(settings, ClusterNodeSettings) else "serve"
        super().__init__(service, settings, shared.host, shared.access, shared.guard)
        self.shared = shared
        self._named = settings.named()
        delay_ms = settings.shutdown_delay_ms if isinstance(settings, ClusterNodeSettings) else 0
        self._lives = Lives(self.app, self._built, delay_ms=delay_ms)
        self.following = Following(
            self._lives.want,
            None if settings.applications is None else WatchedFile(settings.applications, parse_applications),
            self._named,
            announcing=announcing_of(settings, shared.clusters, shared.host, shared.clock),
            version_of=self._version_of,
            clock=shared.clock,
        )

    def members(self) -> list[ClusterMember]:
        found = [each.membership.member for each in self.applications.values() if each.membership is not None]
        return [member for member in found if member is not None]

    def drain(self, draining: bool) -> None:
        """Have the clusters of all applications move this node's tasks away, or cancel that."""
        if self.shared.clusters is not None:
            self.shared.clusters.draining = draining
        for member in self.members():
            member.drain(draining)

    async def start(self) -> None:
        asyncio.get_running_loop().set_default_executor(SharedThreads(MAX_THREADS, "blocking"))
        self.shared.workers.start()
        for name, work in self.following.work().items():
            self.tasks.start(name, work)

    async def stop(self) -> None:
        await self._lives.stop()
        await asyncio.to_thread(self.shared.workers.stop, timeout_s=STOP_S)
        if self.shared.clusters is not None:
            await self.shared.clusters.bus.close()

    def _version_of(self, application_id: str) -> int | None:
        application = self.applications.get(application_id)
        return None if application is None else application.version

    def _built(self, spec: ApplicationSpec) -> NodeApplication:
        source = ApplicationSource("command" if spec in self._named else "file")
        if isinstance(spec, AnnouncedSpec):
            source = ApplicationSource("announced", lambda: self.following.idle(spec.id), spec.root)
        return NodeApplication(self.settings.within(spec), self.shared, source)

    def dead(self) -> str | None:
        failure = self.shared.workers.failure
        return super().dead() if failure is None else f"a worker died: {failure!r}"

    def starting(self) -> str | None:
        return self.following.starting

    def own_causes(self) -> Mapping[str, str]:
        return self.following.causes()

    def metrics(self) -> Iterator[Metric]:
        yield from process_metrics(self.guard, self.access, self.shared.cache)
        yield degraded_metric("understudy_node_degraded", (*CAUSES, *CAUSES_OF_PROCESS), self.causes())

    def routes(self) -> Iterator[APIRouter]:
        yield fleet_page_routes(partial(fleet_overview, applications=self.applications))
        if isinstance(self.settings, ClusterNodeSettings):
            yield operator_routes(self)


class Lives:
    """The life cycles of the applications of `fleet`: each opens, is served, and ends.

    `build` makes one of what is wanted. Others hear within `delay_ms` that a removed one leaves.
    """

    def __init__(self, fleet: Fleet[NodeApplication], build: Build, *, delay_ms: int) -> None:
        self._fleet = fleet
        self._build = build
        self._delay_s = delay_ms / 1000
        self._wanted: dict[str, ApplicationSpec] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._is_ending = False

    def want(self, specs: Iterable[ApplicationSpec]) -> None:
        """Serve these, and no others. Changes start now, on the running loop, and complete by themselves."""
        before, self._wanted = self._wanted, {each.id: each for each in specs}
        for application_id in before.keys() | self._wanted.keys():
            wanted = self._wanted.get(application_id)
            if wanted == before.get(application_id):
                continue
            if application_id in self._changed:
                self._changed[application_id].set()
            if wanted is not None and application_id not in self._lives:
                self._begin(application_id)

    async def stop(self) -> None:
        """End all, in bounded time: the process ends."""
        self._is_ending = True
        lives = list(self._lives.values())
        self.want(())
        if lives:
            _, late = await asyncio.wait(lives, timeout=END_S)
            for life in late:
                life.cancel()

    def _begin(self, application_id: str) -> None:
        self._changed[application_id] = asyncio.Event()
        life = asyncio.get_running_loop().create_task(self._live(application_id), name=f"application {application_id}")
        self._lives[application_id] = life
        life.add_done_callback(lambda _: self._ended(application_id))

    def _ended(self, application_id: str) -> None:
        del self._lives[application_id], self._changed[application_id]
        self._fleet.remove(application_id)
        if application_id in self._wanted and not self._is_ending:  # it was added again at the last moment
            self._begin(application_id)

    async def _live(self, application_id: str) -> None:
        pause_s = FIRST_PAUSE_S
        changed = self._changed[application_id]
        while (spec := self._wanted.get(application_id)) is not None:
            changed.clear()
            application = self._build(spec)
            self._fleet.add(application_id, application)
            try:
                async with application.served(changed) as is_served:
                    if is_served:
                        self._fleet.add(application_id, application)
                        await changed.wait()
                        await self._leave(application_id, application)
                pause_s = FIRST_PAUSE_S
                continue
            except UnderstudyError as error:
                log.error("application %s: %s", application_id, error, extra={"action": "application-failed"})
            except Exception:
                log.exception("application %s failed", application_id, extra={"action": "application-failed"})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    async def _leave(self, application_id: str, application: NodeApplication) -> None:
        """Announce that an application leaves. Refuse new requests for it if it is not wanted any more."""
        if application.membership is not None and not self._is_ending:
            await application.leave()
            await asyncio.sleep(self._delay_s)
        if application_id not in self._wanted:
            self._fleet.remove(application_id)


def operator_routes(process: FleetProcess) -> APIRouter:
    routes = APIRouter()

    @routes.post("/admin/v1/drain")
    async def drain(request: Request) -> Response:
        """Ask the clusters of all applications to move this node's tasks away; `{"drain": false}` cancels that."""
        wanted = await read_flag(request.receive, "drain", default=True)
        note(request.scope, drain=wanted)
        process.drain(wanted)
        node_ids = sorted({member.node_id for member in process.members()})
        return json_response(
            {"node_id": node_ids[0] if node_ids else None, "draining": wanted, "applications": len(process.members())},
            202,
        )

    @routes.delete("/admin/v1/applications/{application}")
    async def remove(application: str) -> Response:
        """Let an application go at all nodes, until it is announced again."""
        await let_go(process.following, application)
        return json_response({"application": application, "let_go": True}, 202)

    return routes


async def let_go(following: Following, application_id: str) -> None:
    """Remove an announced application at all nodes. Raises the problem of any other one."""
    place = following.place_of(application_id)
    if place is not None:
        what = f"{clipped(application_id)} did not announce itself: {place} names it"
        raise ProblemError(Problem(ProblemType.LISTED_APPLICATION, what, "path", f"Take it out of {place}"))
    announcements = None if following.announcing is None else following.announcing.announcements
    if announcements is None or application_id not in announcements.queries:
        raise ProblemError(unknown_application(application_id))
    try:
        await announcements.let_go(application_id)
    except UnderstudyError as error:
        what = f"the announcement of {clipped(application_id)} cannot be changed: {error.what}"
        raise ProblemError(Problem(ProblemType.NOT_INITIALISED, what, error.where, error.fix or "Retry")) from None
    log.warning("application %s is removed: an operator asked for it", clipped(application_id), extra=ACTION)


_WORST_FIRST = (
    ApplicationState.FAILED,
    ApplicationState.WAITING,
    ApplicationState.OPENING,
    ApplicationState.RESTORING,
    ApplicationState.IDLE,
    ApplicationState.SERVING,
)
_HEALTH = {ApplicationState.FAILED: "hurt", ApplicationState.SERVING: "ok"}


async def fleet_overview(request: Request, applications: Mapping[str, Reported]) -> dict[str, Any]:
    """Return the applications that the caller may monitor, the worst first, for their page."""
    monitors = authorization_of(request.scope).principal.monitors
    reports = [each.report() for name, each in applications.items() if monitors(name)]
    reports.sort(key=lambda each: (_WORST_FIRST.index(each.state), each.application_id))
    rows = [_row(each) for each in reports]
    return {"generated_at": utc_text(SystemClock().wall_us()), "is_of_clusters": False, "applications": rows}


def _row(report: ApplicationReport) -> dict[str, Any]:
    return {
        "application": report.application_id,
        "state": report.state,
        "reason": report.reason,
        "health": {"state": _HEALTH.get(report.state, "attention"), "headline": report.state},
        "lag": {"worst_batches": report.max_offset_lag, "worst_ms": report.max_time_lag_ms},
        "stores": report.stores,
    }
