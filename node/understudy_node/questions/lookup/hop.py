"""The node's side of a hop: many lookups of a router in one request, in slices, from the visible versions of this node.

A hop names lineage, store and partition count, and only a node that serves exactly these answers it. Each key has its
own outcome; an HTTP status other than 200 means that no key of the hop was looked up. A key counts as absent only if
Spark would have stored it in the partition that was asked: a router with another catalogue may ask the wrong one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import TypeVar, cast

from fastapi import Request

from understudy_node.questions.lookup.reads import NodeReads, ReadLog, keep_for_others, outcome_text
from understudy_node.replica.read_views import Reading
from understudy_node.stores.lookup import Hidden, Said, StoreReader
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.plausible import is_later, is_plausible
from understudy_shared.base.words import StoreName
from understudy_shared.http.edge import (
    App,
    Receive,
    Scope,
    Send,
    bug,
    not_allowed,
    read_body,
    send_problem,
    send_reply,
    without_body,
)
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of, refused
from understudy_shared.questions.lookup.batches import NOT_FOUND
from understudy_shared.questions.lookup.hop import (
    ABSENT,
    CONTENT_TYPE,
    FOUND,
    MAX_HOP_BYTES,
    OPEN,
    PATH,
    PROBLEM,
    HopGroup,
    HopKeys,
    HopOutcome,
    HopOutcomes,
    HopReply,
    HopRequest,
    decode_in_steps,
    decode_request,
    encode_reply,
    indexes_by_partition,
)
from understudy_shared.reads.bounds import Bound, Refusal
from understudy_shared.reads.hop_fields import BadHopError, StoreOfHop
from understudy_shared.reads.tokens import Position
from understudy_shared.server.direct import AnsweringTasks, Exchange, reply_problem
from understudy_shared.telemetry.spans import Kind, Spans, end_request

HOP_SLICE_KEYS = StoreReader.keys_at_once
"""Number of keys answered before the event loop is yielded: about 1 ms."""


def outcome_of(problem: Problem) -> HopOutcome:
    return HopOutcome(PROBLEM, problem.body())


def not_here(detail: str) -> Problem:
    return Problem(ProblemType.NOT_OWNER, detail, fix="Read the catalogue and the assignment again")


def outdated(detail: str) -> Problem:
    return Problem(ProblemType.OUTDATED_CATALOGUE, detail, fix="Read the catalogue again, from this node")


LATE = outcome_of(Problem(ProblemType.DEADLINE, "the hop's deadline passed before this key"))
TOO_LARGE = outcome_of(
    Problem(ProblemType.TOO_LARGE, f"the values of this hop take more than {MAX_HOP_BYTES} bytes", fix="Ask for fewer")
)
"""The outcome of keys that were not looked up. A router drops such a reply and asks for half of the keys."""

MISPLACED = outdated("Spark would have stored this key in another partition")
"""The problem of a key that the asking router placed by another catalogue."""

_MISPLACED = outcome_of(MISPLACED)


class GroupLookups:
    """The lookups of one group, stored as columns, partition by partition, each partition at one version.

    Iteration does the work in slices, and yields the cost of each in keys. `body_bytes`: size of the answers so far in
    a reply.
    """

    def __init__(self, reader: StoreReader, keys: HopKeys, bound: Bound, known_end: int) -> None:
        self.body_bytes = 0
        self._reader = reader
        self._keys = keys
        self._bound = bound
        self._known_end = known_end
        count = len(keys.rows)
        self._kinds = bytearray((OPEN,)) * count
        self._bodies: list[bytes] = [b""] * count
        self._tails: list[bytes] = [b""] * count

    def __iter__(self) -> Iterator[int]:
        partitions, rows = self._keys.partitions, self._keys.rows
        if len(rows) > 1:
            return self._slices()
        self._look_up(partitions[0], self._read_from(partitions[0]), (0,), rows)  # nearly all hops without load
        return iter((1,))

    def _slices(self) -> Iterator[int]:
        partitions, rows, step = self._keys.partitions, self._keys.rows, self._reader.keys_at_once
        for partition, indexes in indexes_by_partition(partitions).items():
            reading = self._read_from(partition)
            for start in range(0, len(indexes), step):
                part = indexes[start : start + step]
                self._look_up(partition, reading, part, [rows[index] for index in part])
                # In keys of plain stores: where fewer keys make a slice, each costs as much more.
                yield len(part) * HOP_SLICE_KEYS // step

    def outcomes(self, rest: HopOutcome) -> HopOutcomes:
        """Return the outcomes in the order of the keys; `rest` is the outcome of keys that were not reached."""
        if OPEN in self._kinds:
            left = [index for index, kind in enumerate(self._kinds) if kind == OPEN]
            self._keep(left, [rest] * len(left))
        return HopOutcomes(self._kinds, self._bodies, self._tails)

    def _read_from(self, partition: int) -> Reading | HopOutcome:
        """Return the version to answer a partition's keys from, or the one outcome of all its keys."""
        if partition >= self._reader.partitions:
            return outcome_of(not_here(f"there is no partition {partition}"))
        reading = self._reader.read_from(partition, self._bound, self._known_end)
        if isinstance(reading, Problem):
            return outcome_of(reading)
        if self._reader.store.codec.is_scattered:
            keep_for_others(self._reader, partition, reading.view)
        return reading

    def _look_up(
        self, partition: int, reading: Reading | HopOutcome, indexes: Sequence[int], rows: Sequence[bytes]
    ) -> None:
        """Look up the rows of these indexes. `reading` is the version of their partition, or their one outcome."""
        if isinstance(reading, HopOutcome):
            self._keep(indexes, [reading] * len(rows))
        else:
            tail = reading.tail
            found = self._reader.find_many(rows, reading, partition, self._bound.selection)
            kinds, bodies, tails = self._kinds, self._bodies, self._tails
            for index, row, each in zip(indexes, rows, found, strict=True):
                if type(each) is bytes:  # nearly always
                    kinds[index] = FOUND
                    bodies[index] = each
                    tails[index] = tail
                else:
                    self._keep((index,), (self._not_found(partition, reading, row, each),))
        self.body_bytes += sum(map(len, map(self._bodies.__getitem__, indexes)))

    def _keep(self, indexes: Sequence[int], outcomes: Sequence[HopOutcome]) -> None:
        for index, outcome in zip(indexes, outcomes, strict=True):
            self._kinds[index], self._bodies[index], self._tails[index] = outcome

    def _not_found(self, partition: int, reading: Reading, row: bytes, said: Said) -> HopOutcome:
        """Return the outcome of a key of which no value is shown."""
        if isinstance(said, Hidden):
            return HopOutcome(ABSENT, said.members, reading.tail)
        return self._absent(partition, reading, row) if said is None else outcome_of(cast(Problem, said))

    def _absent(self, partition: int, reading: Reading, row: bytes) -> HopOutcome:
        """Return the outcome of an absent key. Only absent ones need the check: Spark placed all stored keys."""
        reader = self._reader
        if not reader.store.codec.may_hold(partition, row, reader.partitions):
            return _MISPLACED
        return HopOutcome(ABSENT, NOT_FOUND, reading.tail)


T = TypeVar("T")


def find_reader(
    reads: NodeReads, *, application_id: str, lineage: str, store: str, layout: str, partitions: int
) -> StoreReader | Problem:
    """Return the reader of a store, or why this node does not answer what a router asks of it."""
    try:
        generation = reads.generation()
    except UnderstudyError as error:
        return problem_of(error)
    if application_id != reads.application_id:
        return not_here(f"this node serves {reads.application_id}, not {application_id}")
    if lineage != generation.lineage:
        return Problem(
            ProblemType.LINEAGE_CHANGED,
            f"this node follows lineage {generation.lineage}, not {lineage}",
            where="lineage",
            fix="Read the catalogue again",
        )
    reader = generation.readers.get(StoreName(store))
    if reader is None:
        known = ", ".join(sorted(generation.readers)) or "none"
        detail = f"there is no store {store!r}"
        return Problem(ProblemType.UNKNOWN_STORE, detail, where="store", fix=f"Stores here: {known}")
    if layout != reader.layout:
        return outdated(f"keys of {store} are encoded and placed by layout {reader.layout} here")
    if partitions != reader.partitions:
        return not_here(f"{store} has {reader.partitions} partitions here, not {partitions}")
    return reader


async def read_hop(request: Request, decode: Callable[[bytes], T]) -> T:
    """Read the body of a call, and decode it. Raises the problem of a malformed one."""
    return decoded_hop(await read_body(request.receive, max_bytes=MAX_HOP_BYTES), decode)


def decoded_hop(body: bytes, decode: Callable[[bytes], T]) -> T:
    """Decode the body of a call. Raises the problem of a malformed one."""
    try:
        return decode(body)
    except BadHopError as error:
        raise ProblemError(Problem(ProblemType.BAD_REQUEST, error.what, error.where, error.fix)) from None


def require_reader(reads: NodeReads, hop: StoreOfHop) -> StoreReader:
    """Return the reader that a router asks for. Raises the problem of one that is not exactly that."""
    reader = find_reader(
        reads,
        application_id=hop.application,
        lineage=hop.lineage,
        store=hop.store,
        layout=hop.layout,
        partitions=hop.partitions,
    )
    if isinstance(reader, Problem):
        raise ProblemError(reader)
    return reader


SMALL_HOP_BYTES = 16 * 1024
"""Size up to which hops are decoded at once, in about 1 ms at most; longer ones in slices."""

GROUP_COST_KEYS = 20
"""Cost of a group in keys, even if it is refused: its bound is checked, and a refusal names candidates."""

MAX_REPLY_BYTES = MAX_HOP_BYTES

_ONE_STEP = (0,)
_RAW_PATH = PATH.encode()

Wait = Awaitable[Problem | None]
HopCoroutine = Generator[Wait, Problem | None, bytes | Problem]
"""The work of a hop: it yields awaitables, and gets their results. A hop that yields nothing needs no task."""

Order = Callable[[], tuple[int, int]]
"""A function that returns (term, epoch) of the followed assignment; (0, 0) without one."""


Call = Callable[[bytes], Coroutine[None, None, bytes]]
"""A function that makes the JSON of an answer from the body of a router's call. It raises its problem."""


MAX_SPANS = 100
"""Limit on the spans that one hop records, which takes about 4 ms: any client that reaches the port may send traces."""


def record_hop(spans: Spans, request: HopRequest, outcomes: Sequence[HopOutcome], *, took_s: float) -> None:
    """Record spans for the answered lookups of a hop; they began when the hop came."""
    for place, trace in request.traces[:MAX_SPANS]:
        store, partition = _asked(request, place)
        span = spans.begin("POST", PATH, Kind.SERVER, trace, {"understudy.partition": partition}, ago_s=took_s)
        if span is None:
            continue
        outcome = outcomes[place]
        span.note({"understudy.outcome": outcome_text(outcome)})
        if outcome.kind != PROBLEM:  # Else a store of that name may not exist here.
            span.note({"understudy.store": store})
        end_request(span, 200)


def _asked(request: HopRequest, place: int) -> tuple[str, int]:
    """Return store and partition of a key of a hop."""
    for group in request.groups:
        if place < len(group.keys):
            return group.store, group.keys[place].partition
        place -= len(group.keys)
    raise AssertionError(f"place {place} is behind the keys of the hop")  # its header was checked


class Hops:
    """The ASGI application that answers hops, and passes other requests to `app`. `order`: None without a cluster."""

    def __init__(self, app: App, reads: NodeReads, *, order: Order | None, max_in_flight: int) -> None:
        self.spans: Spans | None = None
        """The recorder of spans of the lookups in hops, if there is one."""
        self.calls: Mapping[bytes, Call] = {}
        """The other calls of routers that are answered without ASGI, by their paths."""
        self._calls = AnsweringTasks()
        self._app = app
        self._reads = reads
        self._order = order
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._counts = reads.requests.of("hop")
        self._log = ReadLog()
        self._later: set[asyncio.Task[None]] = set()

    # ---- the two ways in

    def accepts_body(self, target: bytes, size_bytes: int) -> bool:
        """See `AnswersBodies`: nearly all hops are small."""
        return size_bytes <= SMALL_HOP_BYTES and (target == _RAW_PATH or target in self.calls)

    def answer_body(self, target: bytes, body: bytes, exchange: Exchange) -> None:
        """See `AnswersBodies`. A hop of few keys is answered before this returns."""
        if target != _RAW_PATH:
            self._calls.begin(self.calls[target](body), exchange, "a call of a router")
            return
        problem = self._begin()
        if problem is not None:
            self._reply(problem, exchange)
            return
        hop = self._answered(body)
        try:
            wait = next(hop)
        except StopIteration as end:
            self._reply(end.value, exchange)
        else:
            task = asyncio.get_running_loop().create_task(self._answer_later(hop, wait, exchange), name="a hop")
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["raw_path"] != _RAW_PATH:
            await self._app(scope, receive, send)
            return
        replied = await self._replied(scope["method"], receive)
        if isinstance(replied, Problem):
            self._counts.count(replied.type.slug)
            await send_problem(without_body(send) if scope["method"] == "HEAD" else send, replied)
        else:
            self._counts.count("answered")
            await send_reply(send, 200, replied, CONTENT_TYPE)

    async def _replied(self, method: str, receive: Receive) -> bytes | Problem:
        if method != "POST":
            return not_allowed(method, "POST")
        try:
            body = await read_body(receive, max_bytes=MAX_HOP_BYTES)  # before it counts, as a batch
        except UnderstudyError as error:
            return problem_of(error)
        problem = self._begin()
        if problem is not None:
            return problem
        hop = self._answered(body)
        try:
            return await _rest(hop, next(hop))
        except StopIteration as end:
            return cast(bytes | Problem, end.value)

    async def _answer_later(self, hop: HopCoroutine, wait: Wait, exchange: Exchange) -> None:
        self._reply(await _rest(hop, wait), exchange)

    def _reply(self, replied: bytes | Problem, exchange: Exchange) -> None:
        if isinstance(replied, Problem):
            self._counts.count(replied.type.slug)
            reply_problem(exchange, replied)
        else:
            self._counts.count("answered")
            exchange.reply(200, CONTENT_TYPE, replied)

    # ---- the answer, as a coroutine

    def _begin(self) -> Problem | None:
        """Count one more hop in flight, or return why not; `_answered` counts it out."""
        if self._in_flight >= self._max_in_flight:
            return Problem(ProblemType.OVERLOADED, f"{self._in_flight} hops are in flight", fix="Ask another replica")
        self._in_flight += 1
        return None

    def _answered(self, body: bytes) -> HopCoroutine:
        try:
            return (yield from self._answer(body))
        except BadHopError as error:
            return Problem(ProblemType.BAD_REQUEST, error.what, error.where, error.fix)
        except UnderstudyError as error:
            return problem_of(error)
        except Exception as error:
            return bug(error)
        finally:
            self._in_flight -= 1

    def _answer(self, body: bytes) -> Generator[Wait, Problem | None, bytes]:
        began_s = time.monotonic()
        request = decode_request(body) if len(body) <= SMALL_HOP_BYTES else (yield from _decoded(body, began_s))
        deadline_s = began_s + request.deadline_ms / 1000
        parts: list[HopOutcomes] = []
        since_turn, body_bytes = 0, 0
        over = LATE if request.deadline_ms <= 0 else None
        for group in request.groups:
            lookups = over or (yield from self._lookups(request, group, deadline_s))
            since_turn += GROUP_COST_KEYS
            for count in _ONE_STEP if isinstance(lookups, HopOutcome) else lookups:
                since_turn += count
                if since_turn >= HOP_SLICE_KEYS:
                    since_turn = 0
                    yield _next_turn()
                if over is None and time.monotonic() >= deadline_s:
                    over = LATE
                elif over is None and isinstance(lookups, GroupLookups):
                    over = TOO_LARGE if body_bytes + lookups.body_bytes > MAX_REPLY_BYTES else None
                if over is not None:
                    break
            if isinstance(lookups, HopOutcome):
                parts.append(HopOutcomes.of([lookups] * len(group.keys)))
            else:
                parts.append(lookups.outcomes(over or LATE))
                body_bytes += lookups.body_bytes
        outcomes = parts[0] if len(parts) == 1 else HopOutcomes.joined(parts)
        term, epoch = (0, 0) if self._order is None else self._order()
        encoded = encode_reply(HopReply(term, epoch, self._reads.node.end.version, outcomes))
        self._counts.duration_ms.observe((time.monotonic() - began_s) * 1000)
        if request.traces:
            self._log.traced(outcomes, request.traces)
            if self.spans is not None:
                record_hop(self.spans, request, outcomes, took_s=time.monotonic() - began_s)
        return encoded

    def _lookups(
        self, request: HopRequest, group: HopGroup, deadline_s: float
    ) -> Generator[Wait, Problem | None, GroupLookups | HopOutcome]:
        """Return the lookups of a group, or the one outcome of all its keys."""
        bound, end_version = group.bound, request.end_version
        asked = (request.term, request.epoch)
        if bound.require_active and self._order is not None and is_later(asked, self._order()):
            # The router knows a later assignment: the active may be another node by now.
            return outcome_of(refused(Refusal.NOT_ACTIVE, candidates=[]))
        if bound.min_position is not None:
            problem = yield self._learn(bound.min_position, deadline_s)
            if problem is not None:
                return outcome_of(problem)
        reader = find_reader(
            self._reads,
            application_id=request.application_id,
            lineage=group.lineage,
            store=group.store,
            layout=group.layout,
            partitions=group.partitions,
        )
        if isinstance(reader, Problem):
            return outcome_of(reader)
        assert isinstance(group.keys, HopKeys), "they were decoded"
        own_end = self._reads.node.end.version
        known_end = end_version if end_version > own_end and is_plausible(end_version, own_end) else 0
        return GroupLookups(reader, group.keys, bound, known_end)

    async def _learn(self, position: Position, deadline_s: float) -> Problem | None:
        """Learn when a position was committed; a problem when the deadline passes meanwhile."""
        try:
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                await self._reads.learn(position)
        except TimeoutError:
            return Problem(ProblemType.DEADLINE, "the deadline passed while the position's commit was read")
        return None


def _decoded(body: bytes, began_s: float) -> Generator[Wait, Problem | None, HopRequest]:
    """Decode a large request in slices. Raises a problem when its deadline passes meanwhile."""
    steps = decode_in_steps(body)
    while True:
        try:
            deadline_ms = next(steps)
        except StopIteration as end:
            return cast(HopRequest, end.value)
        if time.monotonic() >= began_s + deadline_ms / 1000:
            raise ProblemError(Problem(ProblemType.DEADLINE, "the deadline passed while the hop was decoded"))
        yield _next_turn()


async def _next_turn() -> None:
    """Let the event loop do other work."""
    await asyncio.sleep(0)


async def _rest(hop: HopCoroutine, wait: Wait) -> bytes | Problem:
    """Return the result of a hop that waits."""
    while True:
        try:
            wait = hop.send(await wait)
        except StopIteration as end:
            return cast(bytes | Problem, end.value)
