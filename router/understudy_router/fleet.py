"""The applications of a router process: one, or many that each have a whole router behind one dispatcher.

Many are opened when a node sends a heartbeat, and closed after a long silence. They are found by the keys of their
nodes, listed every few seconds, and sooner after an announcement. An announcement only hints that there may be
something new: what a router knows of an application comes from documents that the application's own key verifies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client.core import Metric

from understudy_router.admin.api import unknown_node
from understudy_router.admin.overview import figures_of
from understudy_router.http.app import create_app
from understudy_router.http.metrics import process_metrics
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_router.transport.client_context import NodeConnections
from understudy_shared.auth.access import Access, authorization_of
from understudy_shared.auth.audit import note
from understudy_shared.auth.principals import matches
from understudy_shared.base.background import sliced
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.texts import clipped, named
from understudy_shared.base.throttles import Reminder
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Bus, BusError
from understudy_shared.bus.gossip import ANNOUNCED, applications_on
from understudy_shared.cluster.node_calls import NodeCallError
from understudy_shared.cluster.without_bus import Remembered
from understudy_shared.fleet.applications_file import require_id
from understudy_shared.fleet.dispatching import Lifespan, not_known
from understudy_shared.fleet.service import ApplicationReport, ApplicationState, FleetService
from understudy_shared.http.edge import read_flag
from understudy_shared.http.health import Status
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import unknown_application
from understudy_shared.page.routes import fleet_page_routes
from understudy_shared.page.series import STEP_MS
from understudy_shared.server.app import CAUSES_OF_PROCESS, degraded_metric, json_response
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.spark.temporal import utc_text

log = logging.getLogger(__name__)

HOLDS_UP_MS = 30_000
"""Longest time that an application that knows too little keeps the process from being ready."""

IDLE_AFTER_MS = 60_000
"""Time without nodes after which an application is listed as idle."""


@dataclass(slots=True)
class RouterProcess:
    """The parts of a process that all its applications share, also if there is only one."""

    settings: RouterSettings
    bus: Bus
    access: Access
    guard: ConnectionGuard
    host: HostInfo
    clock: Clock
    learns_within_ms: int = 0
    connections: NodeConnections | None = field(init=False)
    """The connections to nodes that several applications share; None: the only one has its own, and the bus."""

    def __post_init__(self) -> None:
        self.connections = NodeConnections() if self.settings.applications else None


class HeldApplication:
    """A router and its routes. `heard` notes that it has nodes."""

    def __init__(self, settings: RouterSettings, shared: RouterProcess) -> None:
        """Make the parts; nothing is started. Raises UnderstudyError for unusable settings."""
        self.application_id = settings.application_id
        auth = settings.message_auth(self.application_id, sender=f"router {shared.host.host}:{shared.host.port}")
        self.router = Router(
            settings,
            shared.bus,
            host=shared.host,
            clock=shared.clock,
            remembered=Remembered(settings.data_directory, self.application_id, auth),
            auth=auth,
            identity=shared.access.identity.within(self.application_id),
            shared=shared.connections,
        )
        self.app = create_app(self.router, shared.guard, shared.access, learns_within_ms=shared.learns_within_ms)
        self.lifespan = Lifespan(self.app, self.application_id)
        self._wall_us = shared.clock.wall_us
        self._began_ms = self._heard_ms = self.router.now_ms()
        self.was_ready = False
        """Whether it was ready once."""
        self._state = ApplicationState.OPENING
        self._since_us = self._wall_us()

    def __repr__(self) -> str:
        return f"HeldApplication({self.application_id}, {self._state})"

    async def leave(self) -> None:
        """Announce that it stops, while it still answers."""
        await self.router.leave()

    def heard(self) -> None:
        self._heard_ms = self.router.now_ms()

    @property
    def silent_ms(self) -> float:
        """The time without nodes: neither the bus names one nor does the router hear one."""
        return 0.0 if self.router.tables.nodes else self.router.now_ms() - self._heard_ms

    @property
    def may_hold_unseen(self) -> bool:
        """Whether its nodes may hold replicas that this router does not know of: it has read no assignment, and they do
        not say that they wait for the checkpoint.
        """
        tables = self.router.tables
        waits = bool(tables.nodes) and all(each.heartbeat.standing == "waiting" for each in tables.nodes.values())
        return tables.assignment is None and not waits and self.silent_ms <= IDLE_AFTER_MS

    @property
    def is_ready(self) -> bool:
        """Whether it knows its stores."""
        return self.router.watcher.catalogue.stores is not None

    @property
    def dead(self) -> str | None:
        """The bug that ended it; None while it lives."""
        return self.router.dead

    def status(self) -> Status:
        """Return its readiness, and its causes of being degraded."""
        found = self.app.report.status_of_application()
        self.was_ready = self.was_ready or not found.reasons
        return found

    def metrics(self) -> Iterable[Metric]:
        """Return its own families, without the process's."""
        return self.app.report.of_application()

    def report(self) -> ApplicationReport:
        """Return its entry for the list of applications."""
        status, stores, lag = self.status(), self.router.watcher.catalogue.stores, self.app.admin.last_lag()
        reason = "; ".join([*status.reasons, *status.causes.values()]) or None
        is_new = not self.was_ready and self.router.now_ms() - self._began_ms <= HOLDS_UP_MS
        waits = ApplicationState.OPENING if is_new else ApplicationState.WAITING
        state = waits if status.reasons else ApplicationState.SERVING
        if self.silent_ms > IDLE_AFTER_MS:
            state, reason = ApplicationState.IDLE, "no node of it is heard"
        if state is not self._state:
            self._state, self._since_us = state, self._wall_us()
        return ApplicationReport(
            application_id=self.application_id,
            checkpoint="",
            state=state,
            since_us=self._since_us,
            reason=reason,
            source="heard",
            stores=() if stores is None else tuple(sorted(stores.by_name)),
            end_offset_position=self.router.tables.end_version or None,
            max_offset_lag=None if lag is None else lag["worst_batches"],
            max_time_lag_ms=None if lag is None else lag["worst_ms"],
        )


Document = Mapping[str, Any]

FRESH_MS = 1000
"""Longest age of a list of rows that several viewers get."""

_WORST_FIRST = ("hurt", "unknown", "attention", "ok")


MAX_ASKED = 3
"""Nodes that are asked, one after the other, until one answers."""

_OF_A_NODE = (ProblemType.LISTED_APPLICATION, ProblemType.UNKNOWN_APPLICATION, ProblemType.NOT_INITIALISED)
"""Problems of a node that are passed on as they are."""


def _refusal(node_id: str, status: int, document: dict[str, object]) -> Problem:
    detail, fix = (f"{document.get(name, '')!s:.500}" for name in ("detail", "fix"))
    for kind in _OF_A_NODE:
        if (kind.slug, kind.status) == (document.get("type"), status):
            return Problem(kind, f"node {clipped(node_id)}: {detail}", "path", fix)
    what = f"the node refuses with {status}: {detail or 'no reason'}"
    return Problem(ProblemType.BAD_REPLY, what, node_id, "Look at that node and its log")


class FleetReports:
    """The reports of the applications in `held`, which changes while the process runs."""

    def __init__(
        self,
        held: Mapping[str, HeldApplication],
        clock: Clock,
        unknown_why: Callable[[], str | None],
        elsewhere: Callable[[str], Sequence[str]],
    ) -> None:
        """Set the parts. `unknown_why` returns why not all applications are known here; None once they are.
        `elsewhere` returns those that have a node and are not served here.
        """
        self._held = held
        self._unknown_why = unknown_why
        self._elsewhere = elsewhere
        self._clock = clock
        self._rows: Sequence[Document] = ()
        self._made_ms = float("-inf")
        self._making = asyncio.Lock()

    async def overview(self, sees: Callable[[str], bool]) -> dict[str, Any]:
        """Return a row for each application that the caller sees, the worst first."""
        async with self._making:
            if self._clock.monotonic_ms() - self._made_ms > FRESH_MS:
                self._rows = sorted([await _row(each) for each in self._held.values()], key=_badness)
                self._made_ms = self._clock.monotonic_ms()
            rows = self._rows
        found = [row for row in rows if sees(row["application"])]
        return {"schema": 1, "generated_at": utc_text(self._clock.wall_us()), "applications": found}

    async def safe_to_stop(self, node_id: str, sees: Callable[[str], bool]) -> dict[str, Any]:
        """Return whether a node may be stopped in all its applications. Raises ProblemError for a node that none of
        them knows. An application with unknown nodes may have replicas there: it is not safe.
        """
        knowing = self._knowing(node_id, sees)
        documents = await asyncio.gather(*[held.app.admin.safe_to_stop(node_id) for held in knowing.values()])
        each = dict(zip(knowing, documents, strict=True))
        for name, held in self._held.items():
            if sees(name) and name not in each and held.may_hold_unseen:
                each[name] = held.app.admin.unknown_safety(node_id)
        for name in self._elsewhere(node_id):
            unknown = next(iter(knowing.values())).app.admin.unknown_safety(node_id)
            why_unknown = "this router does not serve it: ask one that does"
            each[name if sees(name) else "(another)"] = {**unknown, "safe": None, "why": why_unknown}
        unsafe = {name: document for name, document in each.items() if not document["safe"]}
        why = [f"{clipped(name)}: {document['why']}" for name, document in (unsafe or each).items()]
        verdicts = [document["safe"] for document in each.values()]
        return {
            "node_id": node_id,
            "safe": False if False in verdicts else None if None in verdicts else True,
            "why": "; ".join(why),
            "applications": each,
            "checked_at": utc_text(self._clock.wall_us()),
        }

    async def drain(self, node_id: str, sees: Callable[[str], bool], *, drain: bool) -> dict[str, Any]:
        """Drain a node in all its applications. Raises ProblemError when one of them refuses: the others drain."""
        knowing = self._knowing(node_id, sees)
        asking = [_drained(held, node_id, drain=drain) for held in knowing.values()]
        each = dict(zip(knowing, await asyncio.gather(*asking), strict=True))
        failed = {name: found for name, found in each.items() if isinstance(found, Problem)}
        if failed:
            what = "; ".join(f"{clipped(name)}: {problem.detail}" for name, problem in failed.items())
            fix = f"Repeat it: {len(each) - len(failed)} of {len(each)} applications took it"
            first = next(iter(failed.values()))
            raise ProblemError(Problem(first.type, what, node_id, fix, {"applications": sorted(failed)}))
        return {"node_id": node_id, "drain": drain, "applications": each}

    async def let_go(self, application_id: str) -> dict[str, object]:
        """Remove an announced application, and return the answer of a node. Raises ProblemError when it refuses, and
        when no node answers.
        """
        held, why = self._held.get(application_id), "none is heard"
        if held is None:
            raise ProblemError(unknown_application(application_id))
        for node_id, node in sorted(held.router.tables.nodes.items())[:MAX_ASKED]:
            try:
                status, document = await held.router.nodes.let_go(node.heartbeat.endpoint.host_info())
            except NodeCallError as error:
                why = str(error)
                continue
            if status < 400:
                return document
            raise ProblemError(_refusal(node_id, status, document))
        what = f"no node of {clipped(application_id)} answers: {why}"
        raise ProblemError(Problem(ProblemType.NODE_UNREACHABLE, what, "path", "Retry, or ask a node of the fleet"))

    def _knowing(self, node_id: str, sees: Callable[[str], bool]) -> dict[str, HeldApplication]:
        """Return the applications that know a node."""
        seen = {name: held for name, held in self._held.items() if sees(name)}
        found = {name: held for name, held in seen.items() if node_id in held.router.tables.known_nodes}
        if not found:
            if (why := self._unknown_why()) is not None:
                raise ProblemError(not_known(why))
            known = frozenset[str]().union(*[held.router.tables.known_nodes for held in seen.values()])
            raise ProblemError(unknown_node(node_id, known))
        return found


def fleet_routes(reports: FleetReports) -> APIRouter:
    """Make the routes. Those of one application are below `/admin/v1/applications/{application}/`."""
    routes = APIRouter()

    @routes.get("/admin/v1/applications")
    async def applications(request: Request) -> Response:
        """Return every application that the caller may monitor: health, freshness, lag and reads, the worst first."""
        return json_response(await reports.overview(monitored_by(request)))

    @routes.delete("/admin/v1/applications/{application}")
    async def remove(application: str) -> Response:
        """Remove an announced application, at all nodes, until it is announced again."""
        return json_response(await reports.let_go(application), 202)

    @routes.get("/admin/v1/nodes/{node_id}/safe-to-stop")
    async def safe_to_stop(node_id: str, request: Request) -> Response:
        """Whether a node may be stopped now, in all its applications."""
        return json_response(await reports.safe_to_stop(node_id, monitored_by(request)))

    @routes.post("/admin/v1/nodes/{node_id}/drain")
    async def drain(node_id: str, request: Request) -> Response:
        """Ask the cluster to move a node's tasks of all applications to others; `{"drain": false}` takes that back."""
        wanted = await read_flag(request.receive, "drain", default=True)
        note(request.scope, drain=wanted)
        return json_response(await reports.drain(node_id, monitored_by(request), drain=wanted), 202)

    routes.include_router(fleet_page_routes(lambda request: reports.overview(monitored_by(request))))
    return routes


def monitored_by(request: Request) -> Callable[[str], bool]:
    """Return which applications the caller of a request may monitor."""
    return authorization_of(request.scope).principal.monitors


async def _drained(held: HeldApplication, node_id: str, *, drain: bool) -> object:
    try:
        return await held.router.drain(node_id, drain=drain)
    except UnderstudyError as error:
        return problem_of(error)


async def _row(held: HeldApplication) -> Document:
    """Return the row of one application. Its figures are at most as old as a point of its history."""
    seen = await held.app.admin.observed(max_age_ms=STEP_MS)
    report, figures = held.report(), figures_of(seen)
    return {
        "application": report.application_id,
        "state": report.state,
        "reason": report.reason,
        **figures,
        "stores": list(report.stores),
    }


def _badness(row: Document) -> tuple[int, bool, int, str]:
    state, lag = row["health"]["state"], row["lag"]["worst_batches"]
    rank = _WORST_FIRST.index(state) if state in _WORST_FIRST else 0
    return rank, lag is not None, -(lag or 0), row["application"]


MAX_STARTING = 16
"""Number of applications that start at the same time: their calls wait for the few connections to the bus."""

UNLISTED = "applications-unlisted"
LEFT_OUT = "applications-left-out"
CAUSES = (UNLISTED, LEFT_OUT)
"""The labels of the metric, with the process's."""

LET_GO_AFTER_MS = 600_000
"""Time without nodes after which an application is closed; it is found again when it has some."""

MAX_APPLICATIONS = 1000
LOOK_EVERY_MS = 3000
NEWS_EVERY_MS = 250
"""The time between two searches after an announcement: the query has no nodes before some have opened its
checkpoint.
"""

NEWS_LAST_MS = 10_000
MAX_KEYS = 32 * MAX_APPLICATIONS
"""Most keys that a search lists: the nodes and the documents of all applications."""


def parse_patterns(text: str) -> tuple[str, ...]:
    """Parse patterns that are separated by commas. Raises SettingsError."""
    patterns = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(patterns):
        fix = "Write patterns such as '*' or 'orders-*,flights'"
        raise SettingsError(f"{clipped(text)} has a pattern without a character", where="applications", fix=fix)
    return patterns


def wanted(heard: Iterable[str], patterns: Sequence[str], served: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the applications that are heard and to be served, but are not yet, in order; and those that are left out
    because a process would serve more than MAX_APPLICATIONS.
    """
    found = sorted(name for name in heard if name not in served and _is_usable(name))
    matching = [name for name in found if any(matches(pattern, name) for pattern in patterns)]
    room = max(0, MAX_APPLICATIONS - len(served))
    return matching[:room], matching[room:]


def _is_usable(application_id: str) -> bool:
    try:
        require_id(application_id)
    except SettingsError:
        return False
    return True


class RouterFleet(FleetService[HeldApplication]):
    """The routers of a process."""

    settings: RouterSettings

    def __init__(self, settings: RouterSettings, shared: RouterProcess) -> None:
        """Make the parts of the process. Raises SettingsError for unusable patterns."""
        self._shared = shared
        super().__init__("router", settings, shared.host, shared.access, shared.guard)
        self._patterns = parse_patterns(settings.applications)
        self._lost_why: str | None = None
        """The reason why the last search for applications failed."""
        self._is_listed = False
        """Whether a search was complete."""
        self._news_until_ms = float("-inf")
        self._announced = asyncio.Event()
        self._reminder = Reminder()
        self._left_out: str | None = None
        """The reason why some applications are not served; None: all are."""
        self._unserved: Mapping[str, Collection[str]] = {}
        """The nodes of each application that is not served here: no pattern matches, or there is no room."""
        self._starting = asyncio.Semaphore(MAX_STARTING)

    def __repr__(self) -> str:
        return f"RouterFleet({len(self.applications)} applications)"

    # ---- the life of the process

    def routes(self) -> Iterator[APIRouter]:
        yield fleet_routes(FleetReports(self.applications, self._shared.clock, self.unknown_why, self.elsewhere))

    async def start(self) -> None:
        await self.look()
        self.tasks.start("look for applications", self._look_for_ever())
        self.tasks.start("listen for announcements", self._listen())

    async def stop(self) -> None:
        await asyncio.gather(*[self._close(each) for each in list(self.applications)])
        if self._shared.connections is not None:
            self._shared.connections.close()
        await self._shared.bus.close()

    async def look(self) -> None:
        """Search once for applications that have nodes. A bus that is away changes nothing."""
        clock = self._shared.clock
        try:
            listed = await applications_on(self._shared.bus, limit=MAX_KEYS)
        except BusError as error:
            self._lost_why = str(error)
            if self._reminder.is_due(clock.monotonic_ms()):
                log.warning("applications cannot be listed: %s", error, extra={"action": "bus-lost"})
            return
        self._lost_why = None
        self._reminder.reset()
        await self._found(listed.node_ids, is_all=listed.is_all)
        self._is_listed = True

    def elsewhere(self, node_id: str) -> Sequence[str]:
        """Return the applications that have this node, by the last search, and are not served here."""
        return [name for name, node_ids in self._unserved.items() if node_id in node_ids]

    async def _look_for_ever(self) -> None:
        """Search every few seconds, and more often after an announcement."""
        while True:
            if self._shared.clock.monotonic_ms() < self._news_until_ms:
                await asyncio.sleep(NEWS_EVERY_MS / 1000)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_MS / 1000):
                        await self._announced.wait()
            self._announced.clear()
            await self.look()

    async def _listen(self) -> None:
        async for heard in self._shared.bus.listen(ANNOUNCED):
            if isinstance(heard, bytes):
                self._news_until_ms = self._shared.clock.monotonic_ms() + NEWS_LAST_MS
                self._announced.set()

    async def _found(self, heard: Mapping[str, Collection[str]], *, is_all: bool) -> None:
        """Open what is new, and close what has had no nodes for long: only a complete search shows that."""
        for application_id in heard:
            if application_id in self.applications:
                self.applications[application_id].heard()
        new, left_out = wanted(heard, self._patterns, self.applications)
        self._leave_out(left_out, is_all=is_all)
        opening = (self._opening(application_id) for application_id in new)
        opened = [each async for few in sliced(opening) for each in few]  # each takes some ms of the loop
        await asyncio.gather(*[self._start(each) for each in opened if each is not None])
        self._unserved = {name: heard[name] for name in sorted(heard.keys() - self.applications.keys())}
        for application_id, held in list(self.applications.items()) if is_all else ():
            if held.silent_ms > LET_GO_AFTER_MS:
                log.info("%s is let go: it has no nodes", application_id, extra={"action": "application-idle"})
                await self._close(application_id)

    def _leave_out(self, names: Sequence[str], *, is_all: bool) -> None:
        """Log once that there are more applications than a process serves, and keep it for the status."""
        why = (
            None if is_all else "Redis has more keys than a search lists: there may be applications that are not found"
        )
        if names:
            why = f"{len(names)} applications are left out, above {MAX_APPLICATIONS}: {named(map(clipped, names), 5)}"
        if why is not None and self._left_out is None:
            log.warning("%s; choose fewer with --applications", why, extra={"action": "applications-left-out"})
        self._left_out = why

    def _opening(self, application_id: str) -> HeldApplication | None:
        """Make the router of an application, and its routes; None if it cannot be made now."""
        try:
            return HeldApplication(self.settings.within(application_id), self._shared)
        except UnderstudyError as error:  # it is tried again at the next search
            log.error("%s cannot be served: %s", application_id, error, extra={"action": "application-failed"})
            return None

    async def _start(self, held: HeldApplication) -> None:
        application_id = held.application_id
        try:
            async with self._starting:
                await held.lifespan.start()
        except UnderstudyError as error:  # it is tried again at the next search
            log.error("%s cannot be served: %s", application_id, error, extra={"action": "application-failed"})
            return
        self.app.add(application_id, held)
        log.info("%s is served", application_id, extra={"action": "application-served", "of": MAX_APPLICATIONS})
        if self.is_leaving:
            await held.leave()

    async def _close(self, application_id: str) -> None:
        held = self.app.remove(application_id)
        assert held is not None, "it is served"
        try:
            await held.app.end_streams()
            await held.lifespan.stop()
        except UnderstudyError as error:
            log.error("%s", error, extra={"action": "application-failed"})

    # ---- the status of the process

    def starting(self) -> str | None:
        if self._is_listed:
            return None
        return f"applications have not been listed yet: {self._lost_why or 'the first search is running'}"

    def unknown_why(self) -> str | None:
        return self.starting() or (None if self.applications else "no node of any application is heard yet")

    def own_causes(self) -> Mapping[str, str]:
        lost = self._lost_why
        found: dict[str, str] = {} if lost is None else {UNLISTED: f"applications cannot be listed: {lost}"}
        if self._left_out is not None:
            found[LEFT_OUT] = self._left_out
        return found

    def metrics(self) -> Iterator[Metric]:
        yield from process_metrics(self.guard, self.access)
        yield degraded_metric("understudy_router_degraded", (*CAUSES, *CAUSES_OF_PROCESS), self.causes())
