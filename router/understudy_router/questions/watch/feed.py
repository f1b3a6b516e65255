"""The feed of the watched keys of one partition: one stream of a node, however many watch at this router.

When the node ends, drains, or stands still while another replica is ahead, that one takes over after the feed's
position. The feed ends when no replica can for a while.

A stream is an endless reply, read only as fast as it is passed on, over its own connection. What the router does not
read stays at the node, which then sends only the newest value; so no queue grows anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import monotonic
from typing import Any, Final, cast

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.context import ReadContext, while_heard_of
from understudy_router.forwarding.fallback import (
    Rejection,
    ReplicaPlan,
    Step,
    is_outdated,
    next_step,
    readers_mistake,
    rejection_by_error,
    rejection_by_problem,
)
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.cluster.node_calls import CallKind, NodeCallError, NodeCalls
from understudy_shared.cluster.wire import WireConnection, WireError
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.watch.events import MEDIA_TYPE, EndReason, HopEvent, read_event
from understudy_shared.questions.watch.hop import (
    KEYS_PATH,
    MAX_FED_KEYS,
    OPEN_PATH,
    FedPartition,
    FeedHop,
    FeedKey,
    FeedKeysHop,
    HeardFeed,
    WatchKey,
)
from understudy_shared.questions.watch.streams import HEARTBEAT_S, WatchStream, slices_of
from understudy_shared.reads.bounds import NO_BOUND, Bound, Refusal, Selection

MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
"""Limit on one event: it holds a value, which may be as long as any."""


class NodeWatch:
    """A watch that a node has begun. `next` returns its events."""

    def __init__(self, connection: WireConnection) -> None:
        self._connection = connection
        self._body = bytearray()
        self._searched = 0
        self._is_complete = False

    async def next(self) -> bytes | None:
        """Return the next event, without its empty line; None at the end. It may be cancelled and called again. Raises
        OSError for a connection that breaks, ValueError for bytes that no node sends.
        """
        while True:
            event = self.buffered()
            if event is not None:
                return event
            if self._searched > MAX_EVENT_BYTES:
                raise ValueError(f"an event has more than {MAX_EVENT_BYTES} bytes")
            if self._is_complete:
                return None
            part = await self._connection.read()
            self._body += part
            self._is_complete = not part

    def buffered(self) -> bytes | None:
        """Return the next event, if all of it was read."""
        body = self._body
        end = body.find(b"\n\n", max(0, self._searched - 1))
        if end < 0:
            self._searched = len(body)
            return None
        event = bytes(body[:end])
        del body[: end + 2]
        self._searched = 0
        return event

    def close(self) -> None:
        """Close the connection."""
        self._connection.give_up(WireError.RESET, "the watch has ended")


BEGIN_S: Final = 8.0
"""Longest time until a node sends its first event: it may wait for a version that the watchers have seen."""

LOOK_S: Final = 3.0
"""Time of silence after which the router checks whether the node should still have the keys."""

SILENT_S: Final = 2 * HEARTBEAT_S + LOOK_S
"""Time of silence after which a node is given up: it sends a sign of life every `HEARTBEAT_S`."""

PATIENCE_S: Final = 30.0
"""Time to retry replicas when all of them refuse."""

RETRY_S: Final = 0.2
TURN_S: Final = 0.001
"""Longest time to process events in one turn of the event loop."""

BEHIND_S: Final = 10.0
"""Longest time that a replica may stand still while another one is ahead."""

KEYS_S: Final = 5.0
"""Longest time until a node has added keys."""

PAUSE_S: Final = 0.01
"""Time between two calls that add keys: keys in between are added together."""

MAX_REPLY_BYTES: Final = 64 * 1024

log = logging.getLogger(__name__)


class WatchFeed:
    """The watched keys of a partition of the store that `route` returns. `ended` is called when it cannot continue."""

    def __init__(
        self,
        context: ReadContext,
        nodes: NodeCalls,
        route: Callable[[], StoreRoute],
        *,
        partition: int,
        selection: Selection,
        ended: Callable[[WatchFeed], None],
    ) -> None:
        self._context, self._nodes, self._route = context, nodes, route
        first = route()
        self.heard = HeardFeed(first.lineage)
        self.of = _fed(first, partition, selection)
        self.is_over = False
        self._bound = NO_BOUND
        """The bound for choosing replicas."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = ended
        self._failed: UnderstudyError | None = None
        self._new: dict[FeedKey, None] = {}
        """Keys that the node was not given yet."""
        self._dropped: list[int] = []
        self._unused: set[FeedKey] = set()
        self._refused: dict[FeedKey, ProblemError] = {}
        self._joining: set[WatchStream] = set()
        self._has_work = asyncio.Event()
        self._has_gone_on = asyncio.Event()
        self._ahead_since_s: float | None = None
        self._looked_at = -1

    def start(self) -> None:
        """Begin to follow."""
        self._spawn(self._run(), "follow a feed")

    def close(self) -> Sequence[asyncio.Task[None]]:
        """End the stream. Return the tasks that end."""
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task until it ends, or the feed is closed."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- watchers

    def join(self, keys: Iterable[WatchKey], stream: WatchStream) -> list[FeedKey]:
        """Return the keys that a watcher joins; `ready` says when they have their values."""
        known, found = self.heard.keys, []
        for each in keys:
            key = known.get(each.row)
            if key is None:
                key = known[each.row] = FeedKey(each.row, each.printed)
                self._new[key] = None
                self._has_work.set()
            key.users.add(stream)
            found.append(key)
        return found

    async def ready(self, keys: Sequence[FeedKey], stream: WatchStream) -> None:
        """Wait until keys have their values. Raises the problem of keys that get no value."""
        self._joining.add(stream)
        within_s = self._context.deadline_ms / 1000 + BEGIN_S
        try:
            async with asyncio.timeout(within_s):
                while not self._are_ready(keys):
                    await stream.wait()
        except TimeoutError:
            what = f"no node has told the values of these keys within {within_s:.0f} s"
            raise ProblemError(Problem(ProblemType.DEADLINE, what, fix="Retry after a second")) from None
        finally:
            self._joining.discard(stream)

    def _are_ready(self, keys: Sequence[FeedKey]) -> bool:
        if self._failed is not None:
            raise self._failed.with_traceback(None)
        if self._refused:
            for key in keys:
                if key in self._refused:
                    raise self._refused[key].with_traceback(None)
        return all(key.is_ready for key in keys)

    def leave(self, keys: Iterable[FeedKey], stream: WatchStream) -> None:
        """Take a watcher from its keys."""
        for key in keys:
            key.users.discard(stream)
            if not key.users:
                self._unused.add(key)

    def sweep(self) -> bool:
        """Drop keys that are not watched any more. Return whether any are left."""
        gone = [key for key in self._unused if not key.users]
        self._unused.clear()
        for key in gone:
            self._new.pop(key, None)
            self._refused.pop(key, None)
        dropped = self.heard.drop(gone)
        if dropped:
            self._dropped += dropped
            self._has_work.set()
        return bool(self.heard.keys)

    # ---- one node after another

    async def _run(self) -> None:
        try:
            await self._follow_on()
        except UnderstudyError as error:
            self._fail(error)
        except Exception as error:
            log.exception("a feed of a node ended by a bug", extra={"action": "watch-failed"})
            fix = "Connect again after a second"
            self._fail(ProblemError(Problem(ProblemType.BAD_REPLY, repr(error), fix=fix)))

    async def _follow_on(self) -> None:
        """Follow one replica after another until the keys move. Raises the problem once all replicas fail."""
        began_s = monotonic()
        until_s = began_s + self._context.deadline_ms / 1000
        plan = self._plan()
        while self._is_current(self._route()):
            candidate = plan.next()
            if candidate is None:
                self._require_hope(plan, began_s, until_s)
                await asyncio.sleep(RETRY_S)
                plan = self._plan()
                continue
            opened_s = monotonic()
            rejection = await self._follow(candidate)
            if rejection is not None:
                self._note(plan, candidate, rejection)
                continue
            began_s = monotonic()
            until_s = began_s + PATIENCE_S
            await asyncio.sleep(RETRY_S if began_s - opened_s < 1 else 0)
            plan = self._plan()
        self._fail(None)

    def _plan(self) -> ReplicaPlan:
        return ReplicaPlan(self._context.choices.choose(self._route(), self.of.partition, self._bound))

    def _is_current(self, route: StoreRoute) -> bool:
        """Whether keys are still encoded and placed as when it began, in the same history."""
        return route.layout == self.of.layout and route.lineage == self.of.lineage

    def _require_hope(self, plan: ReplicaPlan, began_s: float, until_s: float) -> None:
        """Raise the problem of a partition that no replica can resume, unless that may pass."""
        reasons = {rejection.reason for _, rejection in plan.asked}
        now_s = monotonic()
        is_gone = bool(reasons) and reasons <= {Refusal.VERSION_GONE, Refusal.NOT_ACTIVE}
        may_pass = plan.may_pass or plan.is_restoring or any(map(is_outdated, reasons)) or bool(self.heard.position)
        if is_gone or not may_pass or now_s >= until_s:
            late = bool(plan.rest) and now_s >= until_s
            raise ProblemError(plan.refused(Bound(), late=late, after_ms=(now_s - began_s) * 1000))

    def _note(self, plan: ReplicaPlan, candidate: Candidate, rejection: Rejection) -> None:
        """Note that a candidate cannot continue. Raises the problem of a mistake that all nodes would find."""
        self._context.rejected(rejection.reason)
        if next_step(rejection.reason) is Step.STOP:
            raise ProblemError(readers_mistake(rejection))
        plan.begin(candidate.node_id, candidate)
        plan.ended(candidate.node_id, rejection)

    def _fail(self, error: UnderstudyError | None) -> None:
        """End the watchers: with the problem of keys that cannot be followed, or because they moved."""
        if self.is_over:
            return
        self.is_over = True
        moved = ProblemError(Problem(ProblemType.NOT_INITIALISED, EndReason.MOVED.detail, fix="Retry after a second"))
        self._failed = error or moved
        self._ended(self)
        self._spawn(self._end_all(EndReason.MOVED if error is None else EndReason.UNAVAILABLE), "end watches")

    async def _end_all(self, reason: EndReason) -> None:
        streams = {cast(WatchStream, stream) for key in self.heard.keys.values() for stream in key.users}
        for few in slices_of(streams):
            for stream in few:
                if stream in self._joining:
                    stream.wake()  # it raises the problem
                else:
                    stream.end(reason)
            await asyncio.sleep(0)

    async def _follow(self, candidate: Candidate) -> Rejection | None:
        """Take the events of a node until it ends. Return why it did not begin; None if it had begun."""
        route, heard = self._route(), self.heard
        known, new = heard.begin()
        self._new, self._dropped, name = dict.fromkeys(new), [], secrets.token_hex(16)
        self._has_gone_on.clear()
        body = FeedHop(self.of, name, heard.after, len(known)).encode()
        try:
            async with while_heard_of(candidate, self._context.watcher):
                begun = await self._nodes.begin(candidate.endpoint, OPEN_PATH, body, accept=MEDIA_TYPE, limit_s=BEGIN_S)
        except NodeCallError as error:
            return rejection_by_error(error)
        if not isinstance(begun, WireConnection):
            return rejection_by_problem(begun[1])
        events = NodeWatch(begun)
        keeping = asyncio.get_running_loop().create_task(
            self._keep_keys(candidate, name, known), name="keep the keys of a feed"
        )
        keeping.add_done_callback(lambda _: events.close())
        try:
            upstream = self._events_of(events, candidate, route)
            async with while_heard_of(candidate, self._context.watcher), aclosing(upstream) as found:
                async for event in found:
                    for changed in heard.heard(event):
                        await self._tell(changed)
                    if event.position is not None:
                        self._has_gone_on.set()
        except (OSError, ValueError, LookupError, TypeError, UnderstudyError) as error:  # a node may send anything
            log.info("a feed of %s ended: %s", candidate.node_id, error, extra={"action": "watch-upstream-ended"})
        finally:
            events.close()
            keeping.cancel()
            await asyncio.wait([keeping])
        return None

    async def _events_of(
        self, events: NodeWatch, candidate: Candidate, route: StoreRoute
    ) -> AsyncGenerator[HopEvent, None]:
        """Yield a node's events until it ends. Raises OSError for a broken connection, ValueError for bad events."""
        looked_s = heard_s = turn_s = monotonic()
        while monotonic() - heard_s < SILENT_S:
            block = events.buffered()
            now_s = monotonic()
            if block is None or now_s - turn_s > TURN_S:
                await asyncio.sleep(0)
                turn_s = monotonic()
            if block is None:
                try:
                    async with asyncio.timeout(LOOK_S):
                        block = await events.next()
                except TimeoutError:
                    block = b""
            heard_s = monotonic() if block else heard_s
            if monotonic() - looked_s >= LOOK_S:
                looked_s = monotonic()
                if not self._should_have(route, candidate):
                    return
            if block is None:
                return
            event = read_event(block) if block else None
            if event is not None and event.kind == "end":
                return
            if event is not None:
                yield event

    async def _tell(self, changed: Sequence[FeedKey]) -> None:
        """Wake the watchers of changed keys, a slice in a turn: each sends before the next version is read."""
        if not changed:
            await asyncio.sleep(0)
            return
        streams = {cast(WatchStream, stream) for key in changed for stream in key.users}
        for few in slices_of(streams):
            for stream in few:
                stream.wake()
            await asyncio.sleep(0)

    def _should_have(self, route: StoreRoute, candidate: Candidate) -> bool:
        """Whether the feed stays with a candidate: lookups could be sent to it, and no other replica does better."""
        choice = self._context.choices.choose(route, self.of.partition, self._bound)
        name = candidate.node_id
        if not any(each.node_id == name and each.is_live and not each.is_silent for each in choice.asked):
            return False
        mine = next((each for each in choice.order if each.node_id == name), candidate)
        others = [each for each in choice.order if each.node_id != name and not each.is_draining]
        if mine.is_draining and any((each.version or 0) >= self.heard.version for each in others):
            return False
        return not self._is_left_behind(max((each.version or 0 for each in others), default=0))

    def _is_left_behind(self, ahead: int) -> bool:
        """Whether the feed stood still for long while another replica is at `ahead`; the next one must be there too."""
        stands_still, self._looked_at = self.heard.version == self._looked_at, self.heard.version
        if ahead <= self.heard.version or not stands_still:
            self._ahead_since_s = None
            return False
        since_s = self._ahead_since_s = self._ahead_since_s or monotonic()
        if monotonic() - since_s < BEHIND_S:
            return False
        self._ahead_since_s = None
        shown = self.heard.after
        if shown is not None:
            self._bound = Bound(min_position=replace(shown, version=ahead, committed_at_us=None))
        return True

    # ---- the keys of the node's feed

    async def _keep_keys(self, candidate: Candidate, name: str, known: Sequence[FeedKey]) -> None:
        """Give a node the keys that are watched, until its feed ends. Return when it does not take them."""
        for start in range(0, len(known), MAX_FED_KEYS):
            if not await self._give(candidate, name, known[start : start + MAX_FED_KEYS], goes_on=True):
                return
        if known:
            await self._has_gone_on.wait()
        while True:
            if not self._new and not self._dropped:
                self._has_work.clear()
                await self._has_work.wait()
            few = list(self._new)[:MAX_FED_KEYS]
            for key in few:
                del self._new[key]
            if not await self._give(candidate, name, few, goes_on=False):
                return
            await asyncio.sleep(PAUSE_S)

    async def _give(self, candidate: Candidate, name: str, keys: Sequence[FeedKey], *, goes_on: bool) -> bool:
        """Add keys to a node's feed, and drop those that are not watched any more. Return whether the feed
        continues.
        """
        dropped, self._dropped = self._dropped, []
        first = self.heard.number(keys)
        dropped += self.heard.drop([key for key in keys if self.heard.keys.get(key.row) is not key])
        given = [WatchKey(self.of.partition, key.row, key.printed) for key in keys]
        body = FeedKeysHop(name, first, given, goes_on, dropped).encode()
        try:
            status, reply = await self._nodes.ask(
                CallKind.WATCH, candidate.endpoint, KEYS_PATH, body, max_bytes=MAX_REPLY_BYTES, limit_s=KEYS_S
            )
        except UnderstudyError as error:
            log.info("%s does not add keys: %s", candidate.node_id, error, extra={"action": "watch-upstream-ended"})
            return False
        if status == 200:
            return True
        rejection = rejection_by_problem(reply)
        log.info("%s does not add keys: %s", candidate.node_id, rejection, extra={"action": "watch-upstream-ended"})
        if rejection.reason != ProblemType.OVERLOADED.slug:
            return False
        self.heard.drop(keys)
        problem = ProblemError(Problem(ProblemType.OVERLOADED, rejection.detail, fix="Retry after a second"))
        self._refused.update(dict.fromkeys(keys, problem))
        self._unused.update(keys)
        await self._tell(keys)
        return True


def _fed(route: StoreRoute, partition: int, selection: Selection) -> FedPartition:
    return FedPartition(
        route.application_id, route.lineage, route.name, route.layout, route.partitions, partition, selection
    )
