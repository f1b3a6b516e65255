"""One application of a process: a whole node with its own application of routes, from its opening to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from prometheus_client.core import Metric

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.cluster.routes import cluster_routes
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.fleet.membership import Membership
from understudy_node.fleet.opening import Opening, Standing
from understudy_node.http.app import create_app
from understudy_node.http.lookups import NodeLookups
from understudy_node.node import Node
from understudy_node.replica.workers import Workers, WorkerShare
from understudy_node.settings import NodeSettings
from understudy_shared.auth.access import Access
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.masking import masked_location
from understudy_shared.base.words import HostInfo
from understudy_shared.fleet.lifespans import Lifespan
from understudy_shared.fleet.not_open import NotOpen
from understudy_shared.fleet.reporting import ApplicationReport, State
from understudy_shared.http.status import Status
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.lookups import LookupsFirst
from understudy_shared.server.probes import ProcessReport


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that all applications of a process share."""

    cache: BlockCache
    workers: Workers
    guard: ConnectionGuard
    access: Access
    host: HostInfo
    clock: Clock
    open_files: Callable[[str], CheckpointFiles]


class Source(NamedTuple):
    """The place that names an application, and why it counts as idle; None while it does not."""

    name: str
    idle: Callable[[], str | None] = lambda: None


class Turns(NamedTuple):
    """The calls when an application can be asked, and before it ends."""

    served: Callable[[NodeApplication], None]
    leaving: Callable[[NodeApplication], Awaitable[None]]


class NodeApplication:
    """One application. Until its checkpoint can be followed, an application in its place says why it cannot answer."""

    def __init__(self, settings: NodeSettings, shared: Shared, source: Source, membership: Membership | None) -> None:
        """Set the parts. `membership`: how it joins its cluster, if any."""
        self.settings = settings
        self.app: LookupsFirst = NotOpen(settings.application, self._why_not, shared.access)
        self.was_ready = False
        self.membership = membership
        self._shared = shared
        self._source = source
        self._node: Node | None = None
        self._report: ProcessReport | None = None
        self._refused: str | None = None
        """The reason why it was opened and could not start."""
        self._opening = Opening(
            settings.application,
            lambda: shared.open_files(settings.checkpoint),
            self._build,
            shared.clock,
        )
        self._shown: tuple[Standing, int] = (self._opening.standing, shared.clock.wall_us())

    async def serve(self, ended: asyncio.Event, turns: Turns) -> None:
        """Open, start and serve it, and end it once `ended` is set.

        Raises UnderstudyError if it was opened and did not start.
        """
        node = await self._opened(ended)
        if node is None:
            return
        app = await self._started_app(node)
        lifespan = Lifespan(app, self.settings.application)
        try:
            await lifespan.start()
            self.app, self._report, self._node = app, app.report, node
            turns.served(self)
            await ended.wait()
            await turns.leaving(self)
        except UnderstudyError as error:
            self._refused = str(error)
            raise
        finally:
            await app.end_streams()
            await lifespan.stop()

    @property
    def is_ready(self) -> bool:
        """Whether it knows its stores."""
        return self._node is not None and self._node.generation is not None

    @property
    def version(self) -> int | None:
        """The newest version of its query; None before one is known."""
        return None if self._node is None else self._node.end.version or None

    @property
    def dead(self) -> str | None:
        return None if self._report is None else self._report.dead()

    def status(self) -> Status:
        """Return its readiness."""
        if self._report is None:
            return Status((self._why_not(),))
        status = self._report.status_of_application()
        self.was_ready = self.was_ready or not status.reasons
        return status

    def metrics(self) -> Iterable[Metric]:
        return () if self._report is None else self._report.of_application()

    def report(self) -> ApplicationReport:
        """Return what the list of applications shows."""
        standing, idle = self._standing(), self._source.idle()
        if idle is not None:
            found = standing.state if standing.reason is None else f"{standing.state}, {standing.reason}"
            standing = Standing(State.IDLE, f"{idle}; it is {found}")
        if standing.state is not self._shown[0].state:
            self._shown = (standing, self._shared.clock.wall_us())
        generation = None if self._node is None else self._node.generation
        views = (
            [] if generation is None else [each.progress.lag_of(each.view) for each in generation.replicas if each.view]
        )
        offsets = [lag.offset_lag for lag in views if lag.offset_lag is not None]
        times_ms = [lag.time_lag_ms for lag in views if lag.time_lag_ms is not None]
        return ApplicationReport(
            application_id=self.settings.application,
            checkpoint=masked_location(self.settings.checkpoint),
            state=standing.state,
            since_us=self._shown[1],
            reason=standing.reason,
            source=self._source.name,
            stores=() if generation is None else tuple(sorted(generation.readers)),
            end_offset_position=self.version,
            max_offset_lag=max(offsets, default=None),
            max_time_lag_ms=max(times_ms, default=None),
        )

    def _standing(self) -> Standing:
        node, status = self._node, self.status()
        if node is None:
            return self._opening.standing if self._refused is None else Standing(State.FAILED, self._refused)
        why = "; ".join(status.reasons) or None
        if self.dead is not None:
            return Standing(State.FAILED, self.dead)
        if why is None:
            return Standing(State.SERVING, "; ".join(status.causes.values()) or None)
        if node.waits_for is not None:
            return Standing(State.WAITING, f"it waits for {node.waits_for}")
        has_failed = (node.generation is None and node.error is not None) or node.stalled()
        return Standing(State.FAILED if has_failed else State.RESTORING, why)

    def _why_not(self) -> str:
        standing = self._opening.standing if self._refused is None else Standing(State.FAILED, self._refused)
        return f"application {self.settings.application} is {standing.state}: {standing.reason}"

    def _build(self, files: CheckpointFiles) -> Node:
        shared = self._shared
        node = Node(
            self.settings,
            files,
            host=shared.host,
            clock=shared.clock,
            cache=shared.cache,
            workers=WorkerShare(shared.workers),
        )
        if self.membership is not None:
            node.assign({})
        return node

    async def _opened(self, ended: asyncio.Event) -> Node | None:
        """Wait until the checkpoint can be followed; None when `ended` comes first. Meanwhile its cluster hears what
        this node waits for.
        """
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Node] = loop.create_future()

        def take(node: Node) -> None:
            if opened.done():
                node.discard()
            else:
                opened.set_result(node)

        def give(node: Node) -> bool:
            try:
                loop.call_soon_threadsafe(take, node)
            except RuntimeError:  # the loop was closed: the process ends
                return False
            return True

        self._opening.start(give)
        ending = asyncio.ensure_future(ended.wait())
        either: list[asyncio.Future[Any]] = [opened, ending]
        try:
            async with contextlib.AsyncExitStack() as stack:
                if self.membership is not None:
                    await stack.enter_async_context(
                        self.membership.waiting(lambda: self._opening.standing.reason or "")
                    )
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            self._opening.close()
            if not opened.done():
                opened.cancel()
        return None if opened.cancelled() else opened.result()

    async def _started_app(self, node: Node) -> NodeLookups:
        shared = self._shared
        try:
            if self.membership is None:
                return create_app(node, guard=shared.guard, access=shared.access)
            member = await self.membership.joined(node)
            return create_app(node, member, cluster_routes(member), guard=shared.guard, access=shared.access)
        except UnderstudyError as error:
            node.discard()
            self._refused = str(error)
            raise
