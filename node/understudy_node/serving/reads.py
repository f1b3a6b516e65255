"""The read calls on one node: parse the target, find the store, answer: bytes in, bytes out, no framework.

Friendly keys repeat, so what a path resolves to is cached; the cache holds parsed requests, never answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import orjson

from understudy_node.generation import Generation
from understudy_node.node import Node
from understudy_node.serving.lookup import Answer, Holding, Key, Reading
from understudy_shared.bounds import NO_BOUND, Bound, parse_bound
from understudy_shared.errors import BadKeyError, UnderstudyError, UnknownStoreError
from understudy_shared.http_target import parse_query, split_path
from understudy_shared.position import Position
from understudy_shared.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.words import StoreName

MAX_BATCH_KEYS = 1000
"""Keys of one batch lookup; more is 413."""

MAX_BODY_BYTES = 8 * 1024 * 1024
"""A thousand keys of 4 KiB, percent and quotes included."""

BATCH_SLICE_KEYS = 100
"""Keys answered between two turns of the event loop: about 2 ms."""

MAX_CACHED_TARGETS = 16_384
MAX_CACHED_TARGET_BYTES = 256
"""Parsed targets kept: at most about 20 MB. When full, the older half goes."""


class Request(NamedTuple):
    """A single-key lookup, parsed: what to ask, and within which bound."""

    holding: Holding
    key: Key
    bound: Bound


class Reads:
    """Answers lookups from whatever generation the node serves at that moment."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._generation: Generation | None = None
        self._young: dict[tuple[bytes, bytes], Request] = {}
        self._old: dict[tuple[bytes, bytes], Request] = {}

    def parse(self, raw_path: bytes, query: bytes) -> Request:
        """A GET of `/v1/stores/{store}/keys/...` or `/v1/stores/{store}/lookup?key=...`.

        Raises the problem of a request that asks for nothing there is.
        """
        generation = self.generation()
        if generation is not self._generation:
            self._generation, self._young, self._old = generation, {}, {}
        target = (raw_path, query)
        request = self._young.get(target)
        if request is None:
            request = self._old.pop(target, None) or self._parse(generation, raw_path, query)
            if len(raw_path) + len(query) <= MAX_CACHED_TARGET_BYTES:
                if len(self._young) >= MAX_CACHED_TARGETS // 2:
                    self._old, self._young = self._young, {}
                self._young[target] = request
        return request

    def generation(self) -> Generation:
        """What is served now; a not-initialised problem before there is anything."""
        generation = self._node.generation
        if generation is None:
            raise ProblemError(
                Problem(
                    ProblemType.NOT_INITIALISED,
                    "; ".join(self._node.not_ready()),
                    fix="Retry when /readyz says so",
                )
            )
        return generation

    def holding(self, name: str) -> Holding:
        """The store of that name; UnknownStoreError names those there are."""
        return _holding(self.generation(), name)

    async def learn(self, position: Position) -> None:
        """Read when a position's version was committed here, once, off the event loop: it shows a rewound history."""
        history = self._node.history
        if position.version <= self._node.end.version and history.known_commit_time_ns(position.version) is None:
            await asyncio.to_thread(history.commit_time_ns, position.version)

    def _parse(self, generation: Generation, raw_path: bytes, query: bytes) -> Request:
        match split_path(raw_path):
            case ["v1", "stores", name, "keys", *segments]:
                holding, parameters = _holding(generation, name), parse_query(query)
                key = holding.resolve(holding.store.codec.parse_segments(_key_segments(segments)))
            case ["v1", "stores", name, "lookup"]:
                holding, parameters = _holding(generation, name), parse_query(query)
                key = holding.resolve(holding.store.codec.parse_json(_json_key(parameters.pop("key", None))))
            case _:
                raise ProblemError(unknown_path(raw_path))
        return Request(holding, key, parse_bound(parameters) if parameters else NO_BOUND)


def parse_batch(body: bytes) -> tuple[list[object], Bound]:
    """The envelope of a batch: `{"keys": [...], "bounds": {...}}`."""
    try:
        envelope = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProblemError(
            Problem(ProblemType.BAD_REQUEST, f"the body is not JSON: {error}", where="body", fix=_BATCH_FORM)
        ) from None
    if not isinstance(envelope, dict) or not isinstance(envelope.get("keys"), list):
        raise ProblemError(
            Problem(ProblemType.BAD_REQUEST, "the body has no list of keys", where="body", fix=_BATCH_FORM)
        )
    unknown = sorted(set(envelope) - {"keys", "bounds"})
    bounds = envelope.get("bounds", {})
    if unknown or not isinstance(bounds, dict):
        what = f"unknown member {unknown[0]!r}" if unknown else "bounds is not an object"
        raise ProblemError(Problem(ProblemType.BAD_REQUEST, what, where="body", fix=_BATCH_FORM))
    keys = envelope["keys"]
    if len(keys) > MAX_BATCH_KEYS:
        detail = f"{len(keys)} keys, above {MAX_BATCH_KEYS}"
        raise ProblemError(Problem(ProblemType.TOO_LARGE, detail, where="keys", fix="Send several batches"))
    return keys, parse_bound(bounds) if bounds else NO_BOUND


_BATCH_FORM = 'Send {"keys": [["a", 1], {"column": "b"}], "bounds": {"max_lag": 5}}; bounds may be left out'


def batch_slices(holding: Holding, keys: list[object], bound: Bound) -> Iterator[list[bytes]]:
    """The results of a batch as JSON objects, a bounded slice at a time, each partition at one version throughout."""
    pinned: dict[int, Reading | Problem] = {}
    for start in range(0, len(keys), BATCH_SLICE_KEYS):
        parsed = [_resolve(holding, key) for key in keys[start : start + BATCH_SLICE_KEYS]]
        answers = iter(holding.look_up_many([key for key in parsed if isinstance(key, Key)], bound, pinned))
        yield [_result(next(answers) if isinstance(item, Key) else item) for item in parsed]


def _resolve(holding: Holding, key: object) -> Key | Problem:
    try:
        return holding.resolve(holding.store.codec.parse_json(key))
    except UnderstudyError as error:
        return problem_of(error)


def _result(outcome: Answer | Problem) -> bytes:
    if isinstance(outcome, Answer):
        return b'{"status":%d,%b' % (outcome.status, outcome.body.rstrip()[1:])
    return outcome.body().rstrip()


def _holding(generation: Generation, name: str) -> Holding:
    holding = generation.holdings.get(StoreName(name))
    if holding is not None:
        return holding
    known = ", ".join(sorted(generation.holdings)) or "none"
    unsupported = [
        f"op{operator.operator_id}: {operator.unsupported.what}"
        for operator in generation.description.operators
        if operator.unsupported is not None
    ]
    hint = f" Not served: {'; '.join(unsupported)}." if unsupported else ""
    raise UnknownStoreError(f"there is no store {name!r}", where="path", fix=f"Stores here: {known}.{hint}")


def _key_segments(segments: list[str]) -> list[str]:
    if "" in segments:
        raise BadKeyError(
            "a path segment of the key is empty",
            where="path",
            fix="Use the exact form: lookup?key=<JSON array>, percent-encoded",
        )
    return segments


def _json_key(text: str | None) -> object:
    if text is None:
        raise BadKeyError(
            "there is no key", where="query", fix="Send lookup?key=<JSON array or object>, percent-encoded"
        )
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadKeyError(
            f"the key is not JSON: {error}",
            where="query parameter 'key'",
            fix='Send for example key=["a",1], percent-encoded',
        ) from None


def unknown_path(raw_path: bytes) -> Problem:
    """404 that cannot be mistaken for an absent key."""
    return Problem(
        ProblemType.UNKNOWN_PATH,
        f"nothing is at {raw_path[:200].decode(errors='replace')}",
        fix="Try /v1/stores, /v1/stores/{store}/keys/{k1}/..., /v1/stores/{store}/lookup?key=..., /admin/v1/lag",
    )
