"""One application of a process: a whole node with its own application of routes, from its opening to its end.

One of several is opened by a thread of its own: storage that hangs blocks nothing else. It tries with growing pauses
until the checkpoint can be followed, and reports the obstacle meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from prometheus_client.core import Metric

from understudy_node.checkpoint.files import CheckpointFiles, RootedFiles
from understudy_node.checkpoint.opening import is_awaited, open_checkpoint_files, what_is_there
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.http.app import create_app
from understudy_node.node import Node
from understudy_node.questions.lookup.service import NodeLookups
from understudy_node.replica.workers import Workers, WorkerShare
from understudy_node.settings import NodeSettings
from understudy_shared.auth.access import Access, authorization_of
from understudy_shared.auth.permissions import shown_problem
from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.masking import masked_location
from understudy_shared.base.words import HostInfo
from understudy_shared.fleet.dispatching import Lifespan
from understudy_shared.fleet.service import ApplicationReport, ApplicationState
from understudy_shared.http.edge import Receive, Scope, Send, send_problem, without_body
from understudy_shared.http.health import Status
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.questions.lookup.batches import KeyBatch
from understudy_shared.server.app import ProcessReport
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.direct import Exchange, reply_problem
from understudy_shared.telemetry.metrics import RequestCounts

if TYPE_CHECKING:  # `understudy serve` does without the modules of clusters, 10 MiB
    from understudy_node.cluster.member import Clusters

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.25
AWAITED_PAUSE_S = 2.0
"""Longest pause between polls for a checkpoint that a starting query may still make."""

FAILED_PAUSE_S = 30.0
"""Longest pause before retrying a checkpoint that cannot be opened."""

HANGS_AFTER_MS = 10_000
"""Time after which storage without an answer counts as a failure."""


class ApplicationStanding(NamedTuple):
    """The state of an application, and the reason in words if it is not served."""

    state: ApplicationState
    reason: str | None = None


class Opening:
    """The attempts to open one application's checkpoint, until `close`."""

    def __init__(
        self,
        application_id: str,
        open_files: Callable[[], CheckpointFiles],
        build: Callable[[CheckpointFiles], Node],
        clock: Clock,
    ) -> None:
        self._application_id = application_id
        self._open_files = open_files
        self._build = build
        self._clock = clock
        self._closing = threading.Event()
        self._standing = ApplicationStanding(ApplicationState.OPENING, "it is being opened")
        self._asks_since_ms: float | None = None
        """The time since which the storage is asked; None during a pause."""

    def start(self, give: Callable[[Node], bool]) -> None:
        """Begin. `give` gets the node, in the thread, and returns whether it is accepted."""
        name = f"open {self._application_id}"[:60]
        threading.Thread(target=self._run, args=(give,), name=name, daemon=True).start()

    def close(self) -> None:
        """Try no further. A call to storage that hangs ends when the storage answers; what it opened is given up."""
        self._closing.set()

    @property
    def standing(self) -> ApplicationStanding:
        since_ms = self._asks_since_ms
        if since_ms is not None and (waited_ms := self._clock.monotonic_ms() - since_ms) > HANGS_AFTER_MS:
            return ApplicationStanding(
                ApplicationState.FAILED, f"the storage of its checkpoint has not answered for {waited_ms / 1000:.0f} s"
            )
        return self._standing

    def _run(self, give: Callable[[Node], bool]) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closing.is_set():
            self._asks_since_ms = self._clock.monotonic_ms()
            node = self._tried()
            self._asks_since_ms = None
            if node is not None:
                if self._closing.is_set() or not give(node):
                    node.discard()
                return
            self._closing.wait(pause_s)
            longest_s = AWAITED_PAUSE_S if self._standing.state is ApplicationState.WAITING else FAILED_PAUSE_S
            pause_s = min(pause_s * 2, longest_s)

    def _tried(self) -> Node | None:
        try:
            files = self._open_files()
            if not is_awaited(files):
                return self._build(files)
            self._stand(
                ApplicationStanding(
                    ApplicationState.WAITING,
                    f"there is no checkpoint at {masked_location(files.url)}: {what_is_there(files)}",
                )
            )
        except UnderstudyError as error:
            self._stand(ApplicationStanding(ApplicationState.FAILED, str(error)))
        except Exception as error:
            log.exception("a checkpoint was not opened", extra={"action": "application-failed"})
            self._stand(ApplicationStanding(ApplicationState.FAILED, f"{type(error).__name__}: {error}"))
        return None

    def _stand(self, standing: ApplicationStanding) -> None:
        if standing != self._standing:
            log.warning(
                "application %s is %s: %s", self._application_id, standing.state, standing.reason,
                extra={"action": "application-state", "application": self._application_id},
            )  # fmt: skip
        self._standing = standing


class NotOpen(LookupsFirst):
    """The application in the place of one that is not open. `why` says the reason in words."""

    def __init__(self, application_id: str, why: Callable[[], str], access: Access) -> None:
        super().__init__(self._refuse_all, max_in_flight=1, requests=RequestCounts(), access=access)
        self.application_id = application_id
        self._why = why

    def answer(self, target: bytes, exchange: Exchange) -> None:
        self.reply_problem(exchange, self._problem())

    async def look_up_many(self, batch: KeyBatch) -> NoReturn:
        raise ProblemError(self._problem())

    def has_store(self, store: str) -> bool:
        return False

    def accepts_body(self, target: bytes, size_bytes: int) -> bool:
        """Accept nothing: the open application decides for all what is answered without ASGI."""
        return False

    def answer_body(self, target: bytes, body: bytes, exchange: Exchange) -> None:
        reply_problem(exchange, self._problem())

    async def _refuse_all(self, scope: Scope, _receive: Receive, send: Send) -> None:
        shown = shown_problem(authorization_of(scope).principal, self._problem())
        await send_problem(without_body(send) if scope["method"] == "HEAD" else send, shown)

    def _problem(self) -> Problem:
        fix = "Retry; GET /v1/applications/{application} says when it is served"
        return Problem(ProblemType.NOT_INITIALISED, self._why(), "path", fix)


class NodeProcess:
    """The parts of a process that all its applications share, also if there is only one."""

    def __init__(
        self,
        settings: NodeSettings,
        access: Access,
        host: HostInfo,
        guard: ConnectionGuard,
        clusters: Clusters | None = None,
        *,
        open_files: Callable[[str], CheckpointFiles] = open_checkpoint_files,
        clock: Clock | None = None,
    ) -> None:
        self.access = access
        self.host = host
        self.guard = guard
        self.clusters = clusters
        self.is_fleet = settings.is_fleet
        """Whether the process serves several applications: the workers belong to the only one."""
        self.open_files = open_files
        self.clock = clock or SystemClock()
        self.cache = BlockCache(settings.statestore_cache_max_bytes)
        self.workers = Workers(count=settings.workers)


class ApplicationSource(NamedTuple):
    """The source of an application's entry, and why it counts as idle; None while it does not. No symbolic link of its
    checkpoint may leave the folder `root`, if it is set.
    """

    name: str
    idle: Callable[[], str | None] = lambda: None
    root: str | None = None


class NodeApplication:
    """One application. Until its checkpoint can be followed, an application in its place says why it cannot answer.

    `served` opens, starts and ends one of several. The start of a process opens the only one before its port: by
    `open_files`, `build` and `make_app`.
    """

    def __init__(self, settings: NodeSettings, shared: NodeProcess, source: ApplicationSource) -> None:
        """Set the parts. Nothing is opened."""
        self.settings = settings
        self.app: LookupsFirst = NotOpen(settings.application, self._why_not, shared.access)
        self.was_ready = False
        clusters, identity = shared.clusters, shared.access.identity
        self.membership = (
            None if clusters is None else clusters.membership(settings, shared.host, identity, shared.clock)
        )
        self._shared = shared
        self._source = source
        self.node: Node | None = None
        self._report: ProcessReport | None = None
        self._refused: str | None = None
        """The reason why it was opened and could not start."""
        self._opening = Opening(settings.application, self.open_files, self.build, shared.clock)
        self._shown: tuple[ApplicationStanding, int] = (self._opening.standing, shared.clock.wall_us())

    def open_files(self) -> CheckpointFiles:
        """Open the files of the checkpoint. Raises UnderstudyError."""
        root, location = self._source.root, self.settings.checkpoint
        return self._shared.open_files(location) if root is None else RootedFiles(root, location)

    def build(self, files: CheckpointFiles) -> Node:
        """Make the node. Raises UnderstudyError for an unusable checkpoint."""
        shared = self._shared
        workers = WorkerShare(shared.workers) if shared.is_fleet else shared.workers
        node = Node(self.settings, files, host=shared.host, clock=shared.clock, cache=shared.cache, workers=workers)
        if self.membership is not None:
            node.assign({})
        return node

    def make_app(self, node: Node) -> NodeLookups:
        """Make the routes of the node and its member, which has claimed the node id: neither is started."""
        guard, access = self._shared.guard, self._shared.access
        member = None if self.membership is None else self.membership.join(node)
        return create_app(node, member, guard=guard, access=access)

    async def leave(self) -> None:
        """Announce to its cluster, if it is in one, that it ends. It still answers."""
        if self.membership is not None and self.membership.member is not None:
            await self.membership.member.leave()

    @contextlib.asynccontextmanager
    async def served(self, ended: asyncio.Event) -> AsyncIterator[bool]:
        """Open and start it, and end it after the block. Whether it can be asked: not if `ended` was set before that.

        Raises UnderstudyError if it was opened and did not start.
        """
        node = await self._opened(ended)
        if node is None:
            yield False
            return
        app = await self._joined_app(node)
        lifespan = Lifespan(app, self.settings.application)
        try:
            await lifespan.start()
            self.app, self._report, self.node = app, app.report, node
            yield True
        except UnderstudyError as error:
            self._refused = str(error)
            raise
        finally:
            await app.end_streams()
            await lifespan.stop()

    @property
    def is_ready(self) -> bool:
        """Whether it knows its stores."""
        return self.node is not None and self.node.generation is not None

    @property
    def version(self) -> int | None:
        """The newest version of its query; None before one is known."""
        return None if self.node is None else self.node.end.version or None

    @property
    def dead(self) -> str | None:
        return None if self._report is None else self._report.dead()

    def status(self) -> Status:
        if self._report is None:
            return Status((self._why_not(),))
        status = self._report.status_of_application()
        self.was_ready = self.was_ready or not status.reasons
        return status

    def metrics(self) -> Iterable[Metric]:
        return () if self._report is None else self._report.of_application()

    def report(self) -> ApplicationReport:
        standing, idle = self._standing(), self._source.idle()
        if idle is not None:
            found = standing.state if standing.reason is None else f"{standing.state}, {standing.reason}"
            standing = ApplicationStanding(ApplicationState.IDLE, f"{idle}; it is {found}")
        if standing.state is not self._shown[0].state:
            self._shown = (standing, self._shared.clock.wall_us())
        generation = None if self.node is None else self.node.generation
        replicas = [] if generation is None else generation.replicas
        lags = [None if each.view is None else each.progress.lag_of(each.view) for each in replicas]
        return ApplicationReport(
            application_id=self.settings.application,
            checkpoint=masked_location(self.settings.checkpoint),
            state=standing.state,
            since_us=self._shown[1],
            reason=standing.reason,
            source=self._source.name,
            stores=() if generation is None else tuple(sorted(generation.readers)),
            end_offset_position=self.version,
            max_offset_lag=_greatest([None if lag is None else lag.offset_lag for lag in lags]),
            max_time_lag_ms=_greatest([None if lag is None else lag.time_lag_ms for lag in lags]),
        )

    def _standing(self) -> ApplicationStanding:
        node, status = self.node, self.status()
        if node is None:
            return (
                self._opening.standing
                if self._refused is None
                else ApplicationStanding(ApplicationState.FAILED, self._refused)
            )
        why = "; ".join(status.reasons) or None
        if self.dead is not None:
            return ApplicationStanding(ApplicationState.FAILED, self.dead)
        if why is None:
            return ApplicationStanding(ApplicationState.SERVING, "; ".join(status.causes.values()) or None)
        if node.waits_for is not None:
            return ApplicationStanding(ApplicationState.WAITING, f"it waits for {node.waits_for}")
        has_failed = (node.generation is None and node.error is not None) or node.stalled()
        return ApplicationStanding(ApplicationState.FAILED if has_failed else ApplicationState.RESTORING, why)

    def _why_not(self) -> str:
        standing = (
            self._opening.standing
            if self._refused is None
            else ApplicationStanding(ApplicationState.FAILED, self._refused)
        )
        return f"application {self.settings.application} is {standing.state}: {standing.reason}"

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

    async def _joined_app(self, node: Node) -> NodeLookups:
        try:
            if self.membership is not None:
                await self.membership.claim(node)
            return self.make_app(node)
        except UnderstudyError as error:
            node.discard()
            self._refused = str(error)
            raise


def _greatest(lags: Sequence[int | None]) -> int | None:
    """Return the greatest lag; None without any, and where one is unknown."""
    known = [lag for lag in lags if lag is not None]
    return max(known, default=None) if len(known) == len(lags) else None
