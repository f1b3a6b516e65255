"""Sends every call about rows but lookups to nodes: scans, exports, changes, histories, missed changes of watchers.

It asks one candidate after another, as lookups do, but never hedges: these calls are long, and a second copy would only
add to the load. A node that is silent for far longer than a part takes is given up for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, starmap
from time import monotonic
from typing import Final, Generic, TypeVar

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.context import ReadContext, while_heard_of
from understudy_router.forwarding.fallback import (
    Rejection,
    ReplicaPlan,
    Step,
    next_step,
    readers_mistake,
    rejection_by_error,
    rejection_by_problem,
)
from understudy_router.routing.choose import Choice
from understudy_shared.cluster.node_calls import CallKind, NodeCallError, NodeCalls
from understudy_shared.cluster.wire import WireError
from understudy_shared.http.problems import ProblemError
from understudy_shared.questions.changes.histories import MAX_HISTORY_BYTES, HistoryHop, decode_history
from understudy_shared.questions.changes.histories import PATH as HISTORY_PATH
from understudy_shared.questions.changes.service import MAX_CHANGES_PART_BYTES, ChangesHop, VersionLines, decode_changes
from understudy_shared.questions.changes.service import PATH as CHANGES_PATH
from understudy_shared.questions.export.hop import (
    END_PATH,
    EXPORT_PATH,
    MAX_EXPORT_PART_BYTES,
    PART_TYPE,
    EndHop,
    ExportHop,
    ExportPart,
    decode_export_part,
)
from understudy_shared.questions.scan.hop import (
    ESTIMATE_PATH,
    MAX_PART_BYTES,
    PATH,
    VERSION_PATH,
    ScanHop,
    VersionHop,
    decode_estimate,
    decode_part,
    decode_version,
)
from understudy_shared.questions.scan.page import PartPage
from understudy_shared.questions.watch.events import MEDIA_TYPE
from understudy_shared.questions.watch.hop import MISSED_PATH, MissedHop
from understudy_shared.reads.bounds import NO_BOUND, Bound, ReadVersion, bound_at
from understudy_shared.reads.hop_fields import BadHopError

MAX_SMALL_BYTES: Final = 64 * 1024
"""Limit on a reply without rows."""

MAX_MISSED_BYTES: Final = 64 * 1024 * 1024
"""Limit on a reply with missed events. A node ends it after 4 MiB, but sends at least one version whole."""

EXPORT_PART_S: Final = 8.0
"""Time, beside the deadline of a read, within which a node makes a part of an export: parts wait for their turn."""

AGREE_TURNS: Final = 3
"""Most times that nodes are asked for their version until all name the same one."""

AGREE_S: Final = 0.02
"""Time between two such rounds: a commit becomes visible on all nodes within moments."""

ATTEMPT_S: Final = 1.0
"""Time of an attempt, beyond what the page takes, while other candidates are left."""

OPENING_S: Final = 0.05
"""Time until a node that opens the version is asked again."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeCall(Generic[T]):
    """A call to a node, and how its reply is read."""

    kind: CallKind
    path: str
    body: bytes
    max_bytes: int
    decode: Callable[[bytes], T]
    accept: str = ""
    """The media type of a reply that is not JSON."""


@dataclass(frozen=True, slots=True)
class ScanForwarder:
    """The sender of all calls about rows but lookups: each method is one kind of call."""

    context: ReadContext
    nodes: NodeCalls

    async def version(
        self, route: StoreRoute, partitions: Sequence[int], bound: Bound, kind: CallKind = CallKind.SCAN
    ) -> ReadVersion:
        """Return the version that a bound names, else the newest that a replica of each of these partitions shows. The
        replicas keep it for a while. Raises the problem of a partition that cannot be read.
        """
        if bound.read_version is not None:
            partitions = partitions[:1]
        until_s = monotonic() + bound.wait_ms / 1000
        found: set[ReadVersion] = set()
        ask = partial(self._of_nodes, kind, route, partitions, bound, path=VERSION_PATH, decode=decode_version)
        for turn in count(1):
            try:
                found = set(await ask())
            except ProblemError as error:
                refusal = error.problem.refusal
                if refusal is None or not refusal.may_pass or monotonic() >= until_s:
                    raise
            if len(found) == 1 or (found and turn >= AGREE_TURNS):
                break
            await asyncio.sleep(AGREE_S)
        return min(found, key=lambda version: version.number)

    async def estimate(self, route: StoreRoute, partitions: Sequence[int], bound: Bound) -> int:
        """Return about how many keys these partitions have. Raises the problem of a partition that cannot be read."""
        return sum(
            await self._of_nodes(CallKind.SCAN, route, partitions, bound, path=ESTIMATE_PATH, decode=decode_estimate)
        )

    async def part(self, route: StoreRoute, hop: ScanHop, until_s: float, kind: CallKind = CallKind.SCAN) -> PartPage:
        """Return a part of a page, by the first replica that has its version. Raises the problem of a partition that
        cannot be read.
        """
        bound = bound_at(hop.application, hop.lineage, hop.version)
        call = NodeCall(kind, PATH, hop.encode(), MAX_PART_BYTES, decode_part)
        return await self._of_replica(route, hop.partition, bound, call, until_s)

    async def export_part(self, route: StoreRoute, hop: ExportHop) -> ExportPart:
        """Return a part of an export, by the first replica that has its version. Raises the problem of a partition that
        cannot be read.
        """
        call = NodeCall(
            CallKind.EXPORT, EXPORT_PATH, hop.encode(), MAX_EXPORT_PART_BYTES, decode_export_part, PART_TYPE
        )
        return await self._of_export(route, hop.scan, call)

    async def arrow_last(self, route: StoreRoute, hop: EndHop) -> bytes:
        """Return the last record batch of an Arrow stream. Raises the problem of a partition that cannot be read."""
        call = NodeCall(CallKind.EXPORT, END_PATH, hop.encode(), MAX_SMALL_BYTES, bytes, PART_TYPE)
        return await self._of_export(route, hop.scan, call)

    async def _of_export(self, route: StoreRoute, scan: ScanHop, call: NodeCall[T]) -> T:
        bound = bound_at(scan.application, scan.lineage, scan.version)
        return await self._of_replica(route, scan.partition, bound, call, monotonic() + EXPORT_PART_S)

    async def history(self, route: StoreRoute, hop: HistoryHop) -> bytes:
        """Return a page of the history of a key, as the JSON after the key, from the first replica that can read it.
        Raises the problem of a history that cannot be read.
        """
        call = NodeCall(CallKind.SCAN, HISTORY_PATH, hop.encode(), MAX_HISTORY_BYTES, decode_history)
        return await self._of_replica(route, hop.partition, NO_BOUND, call, monotonic())

    async def missed(self, route: StoreRoute, hop: MissedHop) -> bytes:
        """Return the events that watchers missed, by the first replica that can read them. Raises the problem of
        versions that cannot be read.
        """
        call = NodeCall(CallKind.WATCH, MISSED_PATH, hop.encode(), MAX_MISSED_BYTES, bytes, MEDIA_TYPE)
        bound = Bound(min_position=hop.after)
        return await self._of_replica(route, hop.of.partition, bound, call, monotonic() + EXPORT_PART_S)

    async def changes(
        self, route: StoreRoute, hop: ChangesHop, kind: CallKind = CallKind.EXPORT
    ) -> tuple[VersionLines, ...]:
        """Return a part of the changes of a partition, by the first replica that can read them. Raises the problem of
        versions that cannot be read.
        """
        first = hop.scan.version.number

        def decode(body: bytes) -> tuple[VersionLines, ...]:
            return decode_changes(body, first)

        call = NodeCall(kind, CHANGES_PATH, hop.encode(), MAX_CHANGES_PART_BYTES, decode, PART_TYPE)
        return await self._of_replica(route, hop.scan.partition, NO_BOUND, call, monotonic() + EXPORT_PART_S)

    async def _of_replica(
        self, route: StoreRoute, partition: int, bound: Bound, call: NodeCall[T], until_s: float
    ) -> T:
        """Ask the replicas of a partition, one after another, until one answers."""
        context, began_s = self.context, monotonic()
        # NO_BOUND, because choices are cached by the bound object, and `bound` is new each time. The node checks it.
        choose = partial(context.choices.choose, route, partition, NO_BOUND)
        plan = ReplicaPlan(choose())
        deadline_s = max(until_s, began_s) + context.deadline_ms / 1000
        candidate = plan.next()
        while candidate is not None:
            is_last = len(plan.rest) <= 1
            asked = self._asked if is_last else self._asked_while_heard_of
            said = await asked(candidate, call, _attempt_until_s(until_s, deadline_s, is_last=is_last))
            if not isinstance(said, Rejection):
                return said
            candidate = await self._after(plan, candidate, said, deadline_s, choose)
        raise _refused(plan, bound, began_s, deadline_s)

    async def _of_nodes(
        self,
        kind: CallKind,
        route: StoreRoute,
        partitions: Sequence[int],
        bound: Bound,
        *,
        path: str,
        decode: Callable[[bytes], T],
    ) -> list[T]:
        """Ask the nodes of these partitions, each once for all that it is chosen for; return their answers."""
        context, began_s = self.context, monotonic()
        deadline_s = began_s + context.deadline_ms / 1000
        plans = {each: ReplicaPlan(context.choices.choose(route, each, bound)) for each in partitions}
        next_of = {each: plan.next() for each, plan in plans.items()}
        found: list[T] = []
        while next_of:
            lost = next((each for each, candidate in next_of.items() if candidate is None), None)
            if lost is not None:
                raise _refused(plans[lost], bound, began_s, deadline_s)
            asked = _by_node(next_of)
            asks = []
            for candidate, wanted in asked:
                call = NodeCall(kind, path, _body(route, bound, wanted), MAX_SMALL_BYTES, decode)
                is_last = max([len(plans[each].rest) for each in wanted]) <= 1
                asks.append((candidate, call, _attempt_until_s(began_s, deadline_s, is_last=is_last)))
            if len(asks) == 1:
                replies = [await self._asked(*asks[0])]
            else:
                replies = await asyncio.gather(*starmap(self._asked, asks))
            for (candidate, wanted), said in zip(asked, replies, strict=True):
                if not isinstance(said, Rejection):
                    found.append(said)
                for each in wanted:
                    if isinstance(said, Rejection):
                        choose = partial(context.choices.choose, route, each, bound)
                        next_of[each] = await self._after(plans[each], candidate, said, deadline_s, choose)
                    else:
                        del next_of[each]
        return found

    async def _asked_while_heard_of(self, candidate: Candidate, call: NodeCall[T], deadline_s: float) -> T | Rejection:
        """Do what `_asked` does, but give a node up once it is silent: it is not the last that could answer."""
        try:
            async with while_heard_of(candidate, self.context.watcher):
                return await self._asked(candidate, call, deadline_s)
        except NodeCallError as error:
            return rejection_by_error(error)

    async def _asked(self, candidate: Candidate, call: NodeCall[T], deadline_s: float) -> T | Rejection:
        """Return the answer of a node, or the reason for which it gave no answer."""
        left_s = deadline_s - monotonic()
        if left_s <= 0:
            return Rejection(WireError.TIMEOUT, "the deadline passed before it was asked")
        try:
            status, said = await self.nodes.ask(
                call.kind,
                candidate.endpoint,
                call.path,
                call.body,
                max_bytes=call.max_bytes,
                limit_s=left_s,
                accept=call.accept,
            )
            return call.decode(said) if status == 200 else rejection_by_problem(said)
        except BadHopError as error:
            return Rejection(WireError.BAD_REPLY, error.what)
        except NodeCallError as error:
            return rejection_by_error(error)

    async def _after(
        self,
        plan: ReplicaPlan,
        candidate: Candidate,
        rejection: Rejection,
        deadline_s: float,
        choose: Callable[[], Choice],
    ) -> Candidate | None:
        """Return the candidate to ask after a rejection: the same one in a moment, while it opens the version; after
        the last one a replica that took over while the part was read, by a newer choice. Raises the problem of a
        mistake that all nodes would find.
        """
        context, reason = self.context, rejection.reason
        if next_step(reason) is Step.WAIT and monotonic() + OPENING_S < deadline_s:
            await asyncio.sleep(OPENING_S)
            return candidate
        plan.begin(candidate.node_id, candidate)
        plan.ended(candidate.node_id, rejection)
        context.rejected(reason)
        if next_step(reason) is Step.STOP:
            raise ProblemError(readers_mistake(rejection))
        plan.renew(choose())
        return plan.after(reason, lambda step: context.may_send(step, 1))


def _attempt_until_s(page_until_s: float, deadline_s: float, *, is_last: bool) -> float:
    """Return when an attempt is given up: with the deadline if no other candidate is left."""
    return deadline_s if is_last else min(deadline_s, max(monotonic(), page_until_s) + ATTEMPT_S)


def _body(route: StoreRoute, bound: Bound, wanted: tuple[int, ...]) -> bytes:
    of = (route.application_id, route.lineage, route.name, route.layout, route.partitions)
    return VersionHop(*of, wanted, bound).encode()


def _refused(plan: ReplicaPlan, bound: Bound, began_s: float, deadline_s: float) -> ProblemError:
    now_s = monotonic()
    return ProblemError(plan.refused(bound, late=now_s >= deadline_s, after_ms=(now_s - began_s) * 1000))


def _by_node(next_of: Mapping[int, Candidate | None]) -> list[tuple[Candidate, tuple[int, ...]]]:
    found: dict[str, tuple[Candidate, list[int]]] = {}
    for partition, candidate in next_of.items():
        if candidate is not None:
            found.setdefault(candidate.node_id, (candidate, []))[1].append(partition)
    return [(candidate, tuple(partitions)) for candidate, partitions in found.values()]
