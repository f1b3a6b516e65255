"""The process of several applications: `understudy serve A B C` and `understudy node --applications FILE`.

Everything that can be refused is refused before the port opens: settings, the file of applications, the port. A
checkpoint is not: it is the trouble of its application alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client.core import Metric

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.checkpoint.rooted_files import RootedFiles
from understudy_node.cluster.load import ProcessLoad
from understudy_node.cluster.member import ClusterMember
from understudy_node.cluster.serve import require_address, require_peers
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.fleet.application import NodeApplication, Shared, Source
from understudy_node.fleet.applications import Applications
from understudy_node.fleet.following import CAUSES, Following, announcing_of
from understudy_node.fleet.letting_go import letting_go_routes
from understudy_node.fleet.membership import Membership
from understudy_node.fleet.page import page_for
from understudy_node.fleet.settings import NodeFleetSettings, ServeFleetSettings, watched_applications
from understudy_node.http.metrics import process_metrics
from understudy_node.replica.workers import Workers
from understudy_node.serve import serve_app
from understudy_shared.auth.access import Access
from understudy_shared.auth.audit import note
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.private_files import keep_files_private
from understudy_shared.base.supervise import Supervisor
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Bus
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.fleet.announced import AnnouncedSpec
from understudy_shared.fleet.applications_file import ApplicationSpec
from understudy_shared.fleet.choosing import FLEET
from understudy_shared.fleet.dispatching import Fleet
from understudy_shared.fleet.own_app import OwnApp, OwnProcess
from understudy_shared.fleet.shared_threads import SharedThreads
from understudy_shared.http.edge import Receive, Scope, Send, read_flag
from understudy_shared.server.app import json_response
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.live_pages import page_routes
from understudy_shared.server.probes import CAUSES_OF_PROCESS, degraded_metric
from understudy_shared.server.service import BACKLOG, Departure, bound_socket, cannot_listen
from understudy_shared.server.settings import HttpService
from understudy_shared.telemetry.span_export import require_exporter

MAX_THREADS = 256
"""Threads of blocking calls of requests: applications whose storage hangs leave some to the others."""

STOP_S = 10.0

Settings = ServeFleetSettings | NodeFleetSettings


class FleetProcess(OwnProcess, HttpService):
    """The process: its dispatcher is `fleet`, its applications are `applications`. A node of a cluster has a `bus`."""

    settings: Settings

    def __init__(
        self,
        settings: Settings,
        access: Access,
        host: HostInfo,
        guard: ConnectionGuard,
        bus: Bus | None = None,
        *,
        open_files: Callable[[str], CheckpointFiles] = open_checkpoint_files,
    ) -> None:
        """Read the file of applications, and open nothing. Raises SettingsError if the file cannot be used."""
        self.host = host
        self.draining = False
        self.settings = settings
        self._bus = bus
        self._clock = SystemClock()
        self._tasks = Supervisor()
        self._load = ProcessLoad()
        self._named = settings.named()
        self._file = watched_applications(settings.applications)
        self.shared = Shared(
            cache=BlockCache(settings.statestore_cache_max_bytes),
            workers=Workers(count=settings.workers),
            guard=guard,
            access=access,
            host=host,
            clock=self._clock,
            open_files=open_files,
        )
        self.fleet = Fleet(self._answer, access)
        delay_ms = settings.shutdown_delay_ms if isinstance(settings, NodeFleetSettings) else 0
        self.applications = Applications(self.fleet, self._built, delay_ms=delay_ms)
        self.following = Following(
            self.applications.want,
            self._file,
            self._named,
            announcing=announcing_of(settings, bus, host, self._clock),
            version_of=self._version_of,
            clock=self._clock,
        )
        self._own = OwnApp(
            "node" if isinstance(settings, NodeFleetSettings) else "serve",
            self.applications.served,
            self,
            lifespan=self._lifespan,
            is_guarded=access.is_on,
            more=self._routers(),
        )

    def not_ready(self) -> list[str]:
        return list(self._own.status().reasons)

    async def leave(self) -> None:
        """Announce the departure of all applications. They still answer."""
        await asyncio.gather(*[member.leave() for member in self.members()])

    def members(self) -> list[ClusterMember]:
        """Return the memberships of the applications that are in their clusters."""
        found = [each.membership.member for each in self.applications.served.values() if each.membership is not None]
        return [member for member in found if member is not None]

    def drain(self, draining: bool) -> None:
        """Have the clusters of all applications move this node's tasks away, or cancel that."""
        self.draining = draining
        for member in self.members():
            member.drain(draining)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._own.app(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_default_executor(SharedThreads(MAX_THREADS, "blocking"))
        self.shared.workers.start()
        for name, work in self.following.work().items():
            self._tasks.start(name, work)
        try:
            yield
        finally:
            await self._tasks.stop()
            await self.applications.stop()
            await asyncio.to_thread(self.shared.workers.stop, timeout_s=STOP_S)
            if self._bus is not None:
                await self._bus.close()

    def _version_of(self, application_id: str) -> int | None:
        application = self.applications.served.get(application_id)
        return None if application is None else application.version

    def _built(self, spec: ApplicationSpec) -> NodeApplication:
        settings = self.settings.within(spec)
        membership = None
        if isinstance(settings, NodeFleetSettings):
            assert self._bus is not None, "a node has one"
            identity = self.shared.access.identity
            membership = Membership(
                settings,
                self.host,
                self._bus,
                identity,
                self._clock,
                load=self._load,
                is_draining=lambda: self.draining,
            )
        shared, source = self.shared, Source("command" if spec in self._named else "file")
        if isinstance(spec, AnnouncedSpec):
            source = Source("announced", lambda: self.following.idle(spec.id))
            if (root := spec.root) is not None:
                shared = replace(shared, open_files=lambda location: RootedFiles(root, location))
        return NodeApplication(settings, shared, source, membership)

    def dead(self) -> str | None:
        failure = self.shared.workers.failure
        return self._tasks.dead or (None if failure is None else f"a worker died: {failure!r}")

    def starting(self) -> str | None:
        return self.following.starting

    def causes(self) -> Mapping[str, str]:
        return {**self.following.causes(), **self.shared.guard.causes(), **self.shared.access.causes()}

    def metrics(self) -> Iterator[Metric]:
        yield from process_metrics(self.shared.guard, self.shared.access, self.shared.cache)
        yield degraded_metric("understudy_node_degraded", (*CAUSES, *CAUSES_OF_PROCESS), self.causes())

    def _routers(self) -> list[APIRouter]:
        page = page_routes(partial(page_for, applications=self.applications.served))
        if not isinstance(self.settings, NodeFleetSettings):
            return [page]
        return [page, drain_routes(self), letting_go_routes(self.following)]


def drain_routes(process: FleetProcess) -> APIRouter:
    """Make `POST /admin/v1/drain`, for all applications."""
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

    return routes


def serve(settings: dict[str, object], started: Callable[[FleetProcess], None] | None = None) -> None:
    """Serve several checkpoints in one process, until interrupted. Raises UnderstudyError for what the caller can fix:
    the settings, the file of applications, the port.
    """
    parsed = ServeFleetSettings(**settings)  # type: ignore[arg-type]  # pydantic validates
    run(parsed, parsed.host, started)


def node(settings: dict[str, object], started: Callable[[FleetProcess], None] | None = None) -> None:
    """Serve as one node in the clusters of several applications, until interrupted. Raises as `serve`."""
    parsed = NodeFleetSettings(**settings)  # type: ignore[arg-type]  # pydantic validates
    require_address(parsed)
    if parsed.processes != 1:
        raise SettingsError(
            "a node of several applications is one process",
            where="processes",
            fix="Start more of them, each with a port and a --node-id of its own",
        )
    require_peers(parsed)
    run(parsed, parsed.advertised_host, started)


def run(settings: Settings, host: str, started: Callable[[FleetProcess], None] | None) -> None:
    """Serve until interrupted."""
    settings.require_no_other()
    require_exporter()
    keep_files_private()
    access = settings.access(FLEET, settings.host, is_node=True)
    listener = bound_socket(settings.host, settings.port)
    try:
        port = listener.getsockname()[1]
        settings = settings.model_copy(update={"port": port})
        advertised_port = settings.advertise_port if isinstance(settings, NodeFleetSettings) else 0
        bus = RedisBus(settings.redis_url) if isinstance(settings, NodeFleetSettings) else None
        guard = settings.connection_guard()
        process = FleetProcess(settings, access, HostInfo(host, advertised_port or port), guard, bus)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise cannot_listen(error, settings.host, settings.port) from None
    except BaseException:
        listener.close()
        raise
    if started is not None:
        started(process)
    departure = (
        Departure(process.leave, settings.shutdown_delay_ms) if isinstance(settings, NodeFleetSettings) else None
    )
    serve_app(process.fleet, listener, departure, guard=guard)
