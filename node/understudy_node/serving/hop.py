"""The node's end of a hop: many lookups of a router in one request, as plain ASGI in front of everything else.

A hop names lineage, store and partition count, and is answered only by a node that serves exactly these. What comes of
a key is said in its own outcome; an HTTP status other than 200 means that nothing of the hop was looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from understudy_node.serving.lookup import Holding, Reading
from understudy_node.serving.reads import Reads
from understudy_shared.bounds import Bound, Refusal
from understudy_shared.errors import UnderstudyError
from understudy_shared.hop import (
    ABSENT,
    CONTENT_TYPE,
    FOUND,
    MAX_HOP_BYTES,
    PATH,
    PROBLEM,
    BadHopError,
    HopGroup,
    HopKey,
    HopOutcome,
    HopReply,
    HopRequest,
    decode_request,
    encode_reply,
)
from understudy_shared.http_edge import App, Receive, Scope, Send, bug, not_allowed, read_body, send_reply
from understudy_shared.plausible import is_later, is_plausible
from understudy_shared.problems import CONTENT_TYPE as PROBLEM_TYPE
from understudy_shared.problems import Problem, ProblemType, problem_of, refused
from understudy_shared.words import StoreName

HOP_SLICE_KEYS = 200
"""Keys answered between two turns of the event loop: about a millisecond."""

_RAW_PATH = PATH.encode()

Order = Callable[[], tuple[int, int]]
"""(term, epoch) of the assignment that is followed; (0, 0) without one."""


class Hops:
    """ASGI application: hops, and `app` for all else. Alone a node has no assignment to compare with: `order` None."""

    def __init__(
        self, app: App, reads: Reads, *, order: Order | None, max_in_flight: int, requests: Counter[tuple[str, str]]
    ) -> None:
        self._app = app
        self._reads = reads
        self._order = order
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["raw_path"] != _RAW_PATH:
            await self._app(scope, receive, send)
            return
        replied = await self._replied(scope["method"], receive)
        if isinstance(replied, Problem):
            self._requests["hop", replied.type.slug] += 1
            await send_reply(send, replied.status, replied.body(), PROBLEM_TYPE)
        else:
            self._requests["hop", "answered"] += 1
            await send_reply(send, 200, replied, CONTENT_TYPE)

    async def _replied(self, method: str, receive: Receive) -> bytes | Problem:
        if method != "POST":
            return not_allowed(method)
        if self._in_flight >= self._max_in_flight:
            return Problem(ProblemType.OVERLOADED, f"{self._in_flight} hops are in flight", fix="Ask another replica")
        self._in_flight += 1
        try:
            return await self._answer(await read_body(receive, max_bytes=MAX_HOP_BYTES))
        except BadHopError as error:
            return Problem(ProblemType.BAD_REQUEST, error.what, error.where, error.fix)
        except UnderstudyError as error:
            return problem_of(error)
        except Exception as error:
            return bug(error)
        finally:
            self._in_flight -= 1

    async def _answer(self, body: bytes) -> bytes:
        began_s = time.monotonic()
        request = decode_request(body)
        deadline_s = began_s + request.deadline_ms / 1000
        outcomes: list[HopOutcome] = []
        since_turn, is_late = 0, request.deadline_ms <= 0
        for group in request.groups:
            lookups = await self._lookups(request, group, deadline_s)
            if isinstance(lookups, Problem):
                outcomes += [_outcome(lookups)] * len(group.keys)
                continue
            for count in () if is_late else lookups:
                since_turn += count
                if since_turn >= HOP_SLICE_KEYS:
                    since_turn = 0
                    await asyncio.sleep(0)
                if time.monotonic() >= deadline_s:
                    is_late = True
                    break
            outcomes += lookups.outcomes()
        term, epoch = (0, 0) if self._order is None else self._order()
        return encode_reply(HopReply(term, epoch, self._reads.end_version, outcomes))

    async def _lookups(self, request: HopRequest, group: HopGroup, deadline_s: float) -> GroupLookups | Problem:
        """What answers a group, or why nothing of it can be answered here."""
        bound = group.bound
        asked = (request.term, request.epoch)
        if bound.require_active and self._order is not None and is_later(asked, self._order()):
            # Who asks knows of a later assignment: the active may be another node by now.
            return refused(Refusal.NOT_ACTIVE, candidates=[])
        if bound.min_position is not None:
            try:
                async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                    await self._reads.learn(bound.min_position)
            except TimeoutError:
                return Problem(ProblemType.DEADLINE, "the deadline passed while the position's commit was read")
        try:
            generation = self._reads.generation()
        except UnderstudyError as error:
            return problem_of(error)
        if request.application_id != self._reads.application_id:
            return _not_here(f"this node serves {self._reads.application_id}, not {request.application_id}")
        if group.lineage != generation.lineage:
            return Problem(
                ProblemType.LINEAGE_CHANGED,
                f"this node follows lineage {generation.lineage}, not {group.lineage}",
                where="lineage",
                fix="Read the catalogue again",
            )
        holding = generation.holdings.get(StoreName(group.store))
        if holding is None:
            known = ", ".join(sorted(generation.holdings)) or "none"
            detail = f"there is no store {group.store!r}"
            return Problem(ProblemType.UNKNOWN_STORE, detail, where="store", fix=f"Stores here: {known}")
        if group.partitions != holding.partitions:
            return _not_here(f"{group.store} has {holding.partitions} partitions here, not {group.partitions}")
        end_version = request.end_version
        known_end = end_version if is_plausible(end_version, self._reads.end_version) else 0
        return GroupLookups(holding, group.keys, bound, known_end)


class GroupLookups:
    """The lookups of one group, partition by partition: each is read at one version throughout.

    Iterating does the work, in slices, and yields the keys done in each; what was not reached has the deadline's
    problem.
    """

    def __init__(self, holding: Holding, keys: Sequence[HopKey], bound: Bound, known_end: int) -> None:
        self._holding = holding
        self._keys = keys
        self._bound = bound
        self._known_end = known_end
        self._done: list[HopOutcome | None] = [None] * len(keys)

    def __iter__(self) -> Iterator[int]:
        keys = self._keys
        if len(keys) == 1:
            partition, row = keys[0]
            self._done = [*self._look_up(self._read_from(partition), [row])]
            yield 1
            return
        by_partition: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            indexes = by_partition.get(key[0])
            if indexes is None:
                by_partition[key[0]] = [index]
            else:
                indexes.append(index)
        done = self._done
        for partition, indexes in by_partition.items():
            reading = self._read_from(partition)
            for start in range(0, len(indexes), HOP_SLICE_KEYS):
                part = indexes[start : start + HOP_SLICE_KEYS]
                outcomes = self._look_up(reading, [keys[index][1] for index in part])
                for index, outcome in zip(part, outcomes, strict=True):
                    done[index] = outcome
                yield len(part)

    def outcomes(self) -> list[HopOutcome]:
        """In the order of the keys."""
        done = self._done
        if None not in done:
            return cast(list[HopOutcome], done)
        late = _outcome(Problem(ProblemType.DEADLINE, "the hop's deadline passed before this key"))
        return [late if outcome is None else outcome for outcome in done]

    def _read_from(self, partition: int) -> Reading | HopOutcome:
        """The version to answer a partition's keys from, or what comes of all of them."""
        if partition >= self._holding.partitions:
            return _outcome(_not_here(f"there is no partition {partition}"))
        reading = self._holding.read_from(partition, self._bound, self._known_end)
        return _outcome(reading) if isinstance(reading, Problem) else reading

    def _look_up(self, reading: Reading | HopOutcome, rows: list[bytes]) -> list[HopOutcome]:
        if isinstance(reading, HopOutcome):
            return [reading] * len(rows)
        holding = self._holding
        try:
            prefix, rest = holding.row_prefix, holding.rest
            keys = [prefix + row for row in rows] if prefix else rows
            values = reading.view.stores[holding.store.store_name].get_many(keys)
            return [HopOutcome(ABSENT if value is None else FOUND, rest(value, reading)) for value in values]
        except UnderstudyError as error:
            if len(rows) == 1:
                return [_outcome(problem_of(error))]
            return [outcome for row in rows for outcome in self._look_up(reading, [row])]  # damage is of some keys


def _outcome(problem: Problem) -> HopOutcome:
    return HopOutcome(PROBLEM, problem.body())


def _not_here(detail: str) -> Problem:
    return Problem(ProblemType.NOT_OWNER, detail, fix="Read the catalogue and the assignment again")
