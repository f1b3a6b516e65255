"""Parses and answers the read calls of one node, from bytes to bytes, without a framework.

Keys of a scattered store are looked up in all partitions, if this node holds all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import NamedTuple, cast

import orjson

from understudy_node.generations import Generation
from understudy_node.node import Node
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import Hidden, LookupAnswer, ResolvedKey, Said, StoreReader
from understudy_shared.auth.principals import KeyScope
from understudy_shared.base.clock import wall_ms
from understudy_shared.base.errors import NoSuchStoreError
from understudy_shared.base.texts import did_you_mean
from understudy_shared.base.throttles import LogThrottle
from understudy_shared.base.words import ApplicationId, StoreName
from understudy_shared.http.lookup_requests import (
    ReadParams,
    key_and_params,
    pop_longs,
    require_own_position,
    unknown_path,
)
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, refused
from understudy_shared.http.target import split_path
from understudy_shared.questions.lookup.batches import (
    NOT_FOUND,
    BatchAnswer,
    BatchKeys,
    Unsettled,
    answer_of,
    at_one_version,
    in_partition,
    problem_result,
    resolve_keys,
)
from understudy_shared.questions.lookup.hop import ABSENT, FOUND, PROBLEM, HopOutcome, HopTrace
from understudy_shared.reads.bound_parsing import StoreBounds
from understudy_shared.reads.bounds import Bound, Refusal
from understudy_shared.reads.tokens import Position, SnapshotLease
from understudy_shared.server.parsed_cache import MAX_TARGET_BYTES, ParsedCache
from understudy_shared.spark.key_codec import ANY_PARTITION
from understudy_shared.telemetry.metrics import OperationCounts, RequestCounts
from understudy_shared.telemetry.spans import Trace, ids_of

log = logging.getLogger(__name__)

OUTCOMES = ("found", "absent")
"""Words for the kinds of an outcome that are answers."""


class ReadLog:
    """The writer of one node's lines."""

    def __init__(self) -> None:
        self._throttle = LogThrottle()

    def unread(self, store: str, partition: int, problem: Problem, trace: Trace | None) -> None:
        """Log a lookup that got a problem; those that readers or lag cause do not concern an operator."""
        if problem.type is not ProblemType.STORE_ERROR:
            return
        left_out = self._throttle.admit((store, partition, problem.type), time.monotonic() * 1000)
        if left_out is not None:
            ids = {"store": store, "partition": partition, **ids_of(trace)}
            log.info("a read got no answer: %s", problem.detail, extra={"action": "read-unanswered", **ids, **left_out})

    def traced(self, outcomes: Sequence[HopOutcome], traces: Sequence[HopTrace]) -> None:
        """Log the keys of a hop whose readers sent a trace, each with its outcome."""
        if not log.isEnabledFor(logging.DEBUG):
            return
        for index, trace in traces:
            outcome = outcome_text(outcomes[index])
            log.debug("a traced read: %s", outcome, extra={"action": "read", "outcome": outcome, **trace.ids})


def outcome_text(outcome: HopOutcome) -> str:
    """Return `found`, `absent`, or the type of a problem."""
    return str(orjson.loads(outcome.body)["type"]) if outcome.kind == PROBLEM else OUTCOMES[outcome.kind]


def find_everywhere(
    reader: StoreReader, rows: Sequence[bytes], bound: Bound, readings: MutableMapping[int, Reading | Problem]
) -> Sequence[HopOutcome | Problem]:
    """Return the answer of all partitions together for each of these keys. `readings` has the versions of partitions
    that were read before, and gets the others; under ANY_PARTITION it gets why they cannot be read at one version.
    """
    if len(reader.replicas) < reader.partitions:
        return [_not_all_held(reader)] * len(rows)
    found: list[Sequence[HopOutcome | Problem]] = []
    for partition in range(reader.partitions):
        reading = readings.get(partition)
        if reading is None:
            reading = readings[partition] = reader.read_from(partition, bound)
        if isinstance(reading, Problem):
            return [in_partition(reading, partition)] * len(rows)
        keep_for_others(reader, partition, reading.view)
        tail = reading.tail
        found.append([_outcome(each, tail) for each in reader.find_many(rows, reading, partition, bound.selection)])
    answers = [answer_of(reader.store.name, parts) for parts in zip(*found, strict=True)]
    oldest = next((answer.oldest for answer in answers if isinstance(answer, Unsettled)), None)  # each has the same
    unsettled = [row for row, answer in zip(rows, answers, strict=True) if isinstance(answer, Unsettled)]
    settled = iter(() if oldest is None else _settled(reader, unsettled, at_one_version(oldest, bound), readings))
    return [next(settled) if isinstance(answer, Unsettled) else answer for answer in answers]


def _settled(
    reader: StoreReader, rows: Sequence[bytes], bound: Bound, readings: MutableMapping[int, Reading | Problem]
) -> Sequence[HopOutcome | Problem]:
    """Return the answers of all partitions for these keys at the one version of `bound`. A batch that waits for its
    versions waits for that one, too, while it is opened; its other keys are answered from the versions read before.
    """
    at: dict[int, Reading | Problem] = {}
    answers = find_everywhere(reader, rows, bound, at)
    for reading in at.values():
        if isinstance(reading, Problem):
            readings[ANY_PARTITION] = reading
    return answers


def keep_for_others(reader: StoreReader, partition: int, view: TaskView) -> None:
    """Keep a version of a scattered store for a while: another partition may still be at it when this one moved on."""
    replica = reader.replicas.get(partition)
    if replica is not None:
        replica.pin(view)


def look_up_everywhere(reader: StoreReader, key: ResolvedKey, bound: Bound) -> LookupAnswer | Problem:
    """Answer one key inside `bound`."""
    (found,) = find_everywhere(reader, [key.stored[len(reader.row_prefix) :]], bound, {})
    if isinstance(found, Problem):
        return found
    body = b'{"store":%b,"key":%b,%b%b' % (reader.json_name, key.json, found.body, found.tail)
    return LookupAnswer(200 if found.kind == FOUND else 404, body)


def _outcome(said: Said, tail: bytes) -> HopOutcome | Problem:
    if type(said) is bytes:
        return HopOutcome(FOUND, said, tail)
    if isinstance(said, Hidden):
        return HopOutcome(ABSENT, said.members, tail)
    return HopOutcome(ABSENT, NOT_FOUND, tail) if said is None else cast(Problem, said)


def _not_all_held(reader: StoreReader) -> Problem:
    return Problem(
        ProblemType.NOT_OWNER,
        f"a key of {reader.store.name} may be in each of its {reader.partitions} partitions: it is scattered, and this"
        " node does not hold all of them",
        where=f"partitions held: {', '.join(map(str, sorted(reader.replicas))) or 'none'}",
        fix="Ask a router",
    )


BATCH_SLICE_KEYS = 100
"""Number of keys answered before the event loop is yielded: about 2 ms."""

MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Limit on the results of a batch of keys with many elements; the keys beyond it are refused one by one."""

_NO_ROOM = problem_result(
    Problem(
        ProblemType.TOO_LARGE,
        f"the results before this key take more than {MAX_BATCH_BYTES} bytes",
        where="keys",
        fix="Send several batches",
    )
)


class LookupRequest(NamedTuple):
    """A parsed single-key lookup: its store, key and bound, and the counts of its store."""

    reader: StoreReader
    key: ResolvedKey
    bound: Bound
    longs_as_text: bool
    counts: OperationCounts
    look_up: Callable[[ResolvedKey, Bound], LookupAnswer | Problem]


class NodeReads:
    """The answers to lookups, from the generation that the node serves now. `requests` counts the requests."""

    def __init__(self, node: Node, store_bounds: StoreBounds) -> None:
        self.requests = RequestCounts()
        self.lease_used: Callable[[SnapshotLease], None] = _ignore
        """The function that renews a lease whose snapshot is read."""
        self.node = node
        self.application_id = node.settings.application
        self.store_bounds = store_bounds
        self._generation: Generation | None = None
        self._targets: ParsedCache[LookupRequest] = ParsedCache(max_key_bytes=MAX_TARGET_BYTES)

    def parse(self, target: bytes) -> LookupRequest:
        """Parse a GET of `/v1/stores/{store}/keys/...` or `/v1/stores/{store}/lookup?key=...`.

        Raises the problem of a request for an unknown path or store, or with a bad key or bound.
        """
        generation = self.generation()
        if generation is not self._generation:
            self._generation = generation
            self._targets.clear()
            self.store_bounds.warn_of_unknown(generation.readers)
        request = self._targets.get(target)
        if request is None:
            request = self._parse(generation, target)
            self._targets.keep(target, request)
        return request

    def generation(self) -> Generation:
        """Return the generation that is served now. Raises a not-initialised problem before there is one."""
        generation = self.node.generation
        if generation is None:
            raise ProblemError(
                Problem(
                    ProblemType.NOT_INITIALISED,
                    "; ".join(self.node.not_ready()),
                    fix="Retry when /readyz says so",
                )
            )
        return generation

    def has_store(self, name: str) -> bool:
        """Whether a store of that name is served now."""
        generation = self.node.generation
        return generation is not None and name in generation.readers

    def reader(self, name: str) -> StoreReader:
        """Return the store of that name. Raises NoSuchStoreError, which names the existing ones."""
        return _reader(self.generation(), name)

    def bound(self, reader: StoreReader, params: ReadParams) -> Bound:
        """Return the bound of a reader of a store."""
        return require_own_position(self.store_bounds.bound(reader.store.name, params), self.application_id)

    def bound_of(self, store: str, params: ReadParams) -> Bound:
        return self.bound(self.reader(store), params)

    @property
    def max_key_bytes(self) -> int:
        """The limit on a key of a request."""
        return self.node.settings.max_key_bytes

    async def resolved(self, bound: Bound) -> Bound:
        """Return the bound with the version of the moment that it names, read off the event loop. Renew its lease.

        Raises the problem of a moment before the first version that the checkpoint retains.
        """
        if bound.lease is not None:
            self.lease_used(bound.lease)
        moment_us = bound.moment_us(wall_ms() * 1000)
        return bound if moment_us is None else bound.resolved_at(await self.position_at(moment_us))

    async def position_at(self, at_us: int) -> Position:
        """Return the newest version that was committed at a moment or before. Raises a version-gone problem."""
        lineage, history = self.generation().lineage, self.node.history
        found = await asyncio.to_thread(history.newest_at, at_us)
        if found is None:
            retained = await asyncio.to_thread(history.retained)
            raise ProblemError(refused(Refusal.VERSION_GONE, candidates=[], retained=retained))
        return Position(ApplicationId(self.application_id), lineage, *found)

    async def learn(self, position: Position) -> None:
        """Read once, off the event loop, when a position's version was committed: this shows a rewound history."""
        history = self.node.history
        if position.version <= self.node.end.version and not history.is_commit_time_learned(position.version):
            await asyncio.to_thread(history.learn_commit_time, position.version)

    def _parse(self, generation: Generation, target: bytes) -> LookupRequest:
        raw_path, _, query = target.partition(b"?")
        match split_path(raw_path):
            case ["v1", "stores", name, *form] if form and form[0] in {"keys", "lookup"}:
                reader = _reader(generation, name)
                row, params = key_and_params(reader.store.codec, form, query)
                longs = pop_longs(params)
                counts = self.requests.of("lookup", reader.store.name)
                is_scattered = reader.store.codec.is_scattered
                look_up = partial(look_up_everywhere, reader) if is_scattered else reader.look_up
                return LookupRequest(reader, reader.resolve(row), self.bound(reader, params), longs, counts, look_up)
            case _:
                raise ProblemError(unknown_path(raw_path))


def batch_slices(  # noqa: PLR0917  # what is read, as it is printed, and what was read
    reader: StoreReader,
    keys: Sequence[object],
    bound: Bound,
    answer: BatchAnswer,
    scope: KeyScope,
    readings: dict[int, Reading | Problem],
) -> Iterator[list[bytes]]:
    """Yield the results of a batch, a bounded slice at a time, each partition at one version throughout. A key outside
    of `scope` gets a problem. `readings` gets the version of each partition, or why it has no answer.
    """
    step, room = min(BATCH_SLICE_KEYS, reader.keys_at_once), MAX_BATCH_BYTES
    if reader.store.codec.is_scattered:
        step = max(1, step // reader.partitions)
    for start in range(0, len(keys), step):
        part = keys[start : start + step]
        if room <= 0:
            yield [_NO_ROOM] * len(part)
            continue
        resolved = resolve_keys(reader.store.codec, part, reader.partitions, reader.max_key_bytes, scope)
        results = _results(reader, resolved, bound, readings, answer)
        if step < BATCH_SLICE_KEYS:  # a key may have many elements
            room -= sum(map(len, results))
        yield results


def _results(
    reader: StoreReader,
    resolved: BatchKeys,
    bound: Bound,
    readings: dict[int, Reading | Problem],
    answer: BatchAnswer,
) -> list[bytes]:
    """Return the results of some keys. `readings` holds the version that was first read of each partition."""
    rows, printed = resolved.rows, resolved.printed
    results = [b""] * len(rows)
    for index, problem in resolved.problems.items():
        results[index] = problem_result(problem)
    for partition, indexes in resolved.by_partition().items():
        part = [rows[index] for index in indexes]
        if partition == ANY_PARTITION:
            for index, each in zip(indexes, find_everywhere(reader, part, bound, readings), strict=True):
                results[index] = answer.result(printed[index], each)
            continue
        reading = readings.get(partition)
        if reading is None:
            reading = readings[partition] = reader.read_from(partition, bound)
        if isinstance(reading, Problem):
            _refuse(results, indexes, reading)
            continue
        end = answer.end_of(reading.tail)
        for index, found in zip(indexes, reader.find_many(part, reading, partition, bound.selection), strict=True):
            if type(found) is bytes:
                results[index] = b"".join((answer.found, printed[index], b",", found, end))
            elif isinstance(found, Problem):
                results[index] = problem_result(found)
            else:
                said = found.members if isinstance(found, Hidden) else NOT_FOUND
                results[index] = b"".join((answer.absent, printed[index], b",", said, end))
    return results


def _refuse(results: list[bytes], indexes: Sequence[int], problem: Problem) -> None:
    refusal = problem_result(problem)
    for index in indexes:
        results[index] = refusal


def _ignore(_: SnapshotLease) -> None:
    """Do nothing: the default of `lease_used`."""


def _reader(generation: Generation, name: str) -> StoreReader:
    reader = generation.readers.get(StoreName(name))
    if reader is not None:
        return reader
    known = ", ".join(sorted(generation.readers)) or "none"
    unsupported = [
        f"{store or f'op{operator.operator_id}'}: {reason.what}"
        for operator in generation.description.operators
        for store, reason in operator.refusals
    ]
    hint = f" Not served: {'; '.join(unsupported)}." if unsupported else ""
    raise NoSuchStoreError(
        f"there is no store {name!r}",
        where="path",
        fix=f"{did_you_mean(name, generation.readers)}Stores here: {known}.{hint}",
    )
