"""Watches of keys, the same at nodes and routers: parsed, granted, limited, and sent as server-sent events.

In a scattered store a key is watched in all partitions. The events of one partition say what it holds. A watcher is
sent the first value when each partition has told its own, and a problem as soon as two of them have the key. Partitions
at different versions cannot say together that a key is absent (see `lookup.scattered`). The watcher reads of such a key
when all of them have told their changes up to the newest of those versions.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Any, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response

from understudy_shared.auth.access import authorization_of, regranted
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import Scope, read_body
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import split_path
from understudy_shared.questions.lookup.scattered import ambiguous_key
from understudy_shared.questions.scan.service import Scans
from understudy_shared.questions.watch.events import (
    EndReason,
    HopEvent,
    KeyEvent,
    key_event,
    read_event,
    version_text,
    with_id,
)
from understudy_shared.questions.watch.hop import WatchKey
from understudy_shared.questions.watch.requests import (
    Beginning,
    WatchedStore,
    WatchRequest,
    members_with_prefix,
    parse_watch,
    parse_watch_body,
)
from understudy_shared.questions.watch.sending import Begun, Events, WatchResponse, begun
from understudy_shared.questions.watch.streams import WatchStream, WatchStreams
from understudy_shared.reads.bounds import Bound, Selection
from understudy_shared.reads.tokens import Position, decode_position
from understudy_shared.server.request_counts import NO_STORE, RequestCounts
from understudy_shared.spark.key_codec import KeyCodec

Parse = Callable[[KeyCodec], WatchRequest]
WatchPrefix = Callable[[str, Mapping[str, Any], bytes, str, Scope], Awaitable[Begun]]
"""A function that begins a watch of a prefix: of a store, with the members of a body, the query, and a last id."""


Data = dict[str, Any]


class ScatteredWatch:
    """The knowledge of one watcher: which partitions have each of its keys."""

    def __init__(self, store: str, partitions: int) -> None:
        self._store, self._partitions = store, partitions
        self._told: dict[bytes, list[tuple[Data, bytes]]] = {}
        """The first values of keys, by the partitions that told them, while others did not."""
        self.there: dict[bytes, set[int]] = {}
        """The partitions that have a key, of each key of which all have told."""
        self._unsettled: dict[bytes, Data] = {}
        """The data of the newest partition, of each key that all of them lacked at different versions."""

    def passed(self, piece: bytes) -> bytes:
        """Return what the watcher is sent of some events. Raises the problem of a key that two partitions have."""
        sent: list[bytes] = []
        for block in piece.split(b"\n\n"):
            event = read_event(block) if block else None
            if event is None:
                sent.append(block + b"\n\n" if block else b"")
                continue
            text, texts = self._text(event), []
            if event.position is not None:
                version = decode_position(event.position).version
                texts = self._settled(version)
                text = text or version_text(version, event.position)
            texts += [text] if text else []
            sent += [with_id(text, None) for text in texts[:-1]]
            sent += [with_id(text, event.position) for text in texts[-1:]]
        return b"".join(sent)

    def forget_first(self) -> None:
        """Tell no first values any more: the watcher has those of before."""
        self._told.clear()
        self._unsettled.clear()

    def _settled(self, version: int) -> list[bytes]:
        """Return the first events of keys that are absent, by all changes up to a version."""
        settled = [key for key, data in self._unsettled.items() if data["version"] <= version]
        return [_nowhere(self._unsettled.pop(key)) for key in settled]

    def _text(self, event: HopEvent) -> bytes:
        """Return an event as the watcher gets it, without its last line; nothing for one that is not sent."""
        if event.kind == "reset":
            self.forget_first()
            self.there.clear()
        if event.kind not in {KeyEvent.SNAPSHOT, KeyEvent.VALUE, KeyEvent.DELETED}:
            return event.text
        data = orjson.loads(event.text.partition(b"data: ")[2])
        key, partition = orjson.dumps(data["key"]), data["partition"]
        if event.kind == KeyEvent.SNAPSHOT:
            return self._first(key, data, event.text)
        there = self.there.setdefault(key, set())
        if event.kind == KeyEvent.DELETED:
            there.discard(partition)
        else:
            there.add(partition)
            self._require_one(there)
            if self._unsettled.pop(key, None) is not None:
                return key_event(KeyEvent.SNAPSHOT, orjson.dumps(data))
        return b"" if key in self._unsettled else event.text

    def _first(self, key: bytes, data: Data, text: bytes) -> bytes:
        told = self._told.setdefault(key, [])
        told.append((data, text))
        if len(told) < self._partitions:
            return b""
        del self._told[key]
        having = {data["partition"]: text for data, text in told if data["found"] or "expired" in data}
        self.there[key] = set(having)
        self._require_one(self.there[key])
        if having:
            return having.popitem()[1]
        versions = {data["version"]: data for data, _ in told}
        newest = versions[max(versions)]
        if len(versions) == 1:
            return _nowhere(newest)
        self._unsettled[key] = newest
        return b""

    def _require_one(self, there: set[int]) -> None:
        if len(there) > 1:
            raise ProblemError(ambiguous_key(self._store, sorted(there)))


def _nowhere(data: Data) -> bytes:
    """Write the first event of a key that no partition has."""
    return key_event(KeyEvent.SNAPSHOT, orjson.dumps({**data, "partition": None}))


class WatchQuestion(NamedTuple):
    """The keys to watch, and the position behind which their watcher goes on; None for a new one."""

    keys: Sequence[WatchKey]
    after: Position | None
    selection: Selection
    longs_as_text: bool

    def by_partition(self) -> dict[int, list[int]]:
        """Return the indexes of the keys of each partition."""
        found: dict[int, list[int]] = {}
        for index, key in enumerate(self.keys):
            found.setdefault(key.partition, []).append(index)
        return found


class Watches(ABC):
    """The answers to requests for watches. `requests` counts them, `streams` limits them, `scans` knows versions."""

    def __init__(self, requests: RequestCounts, streams: WatchStreams, scans: Scans) -> None:
        self.streams = streams
        self._requests = requests
        self._scans = scans

    @property
    @abstractmethod
    def application_id(self) -> str:
        """The application whose stores are watched."""

    @abstractmethod
    def has_store(self, name: str) -> bool:
        """Whether a store has that name: only existing stores get a label."""

    @abstractmethod
    def store(self, name: str) -> WatchedStore:
        """Return the store of that name. Raises UnknownStoreError."""

    @abstractmethod
    def bound(self, store: WatchedStore, params: Mapping[str, object]) -> Bound:
        """Return the bound of a reader, of which the selection counts."""

    @abstractmethod
    def events(self, name: str, asked: WatchQuestion, stream: WatchStream) -> Events:
        """Yield the events of a watch. Raises the problem of one that cannot begin at the first."""

    async def begin(self, name: str, parse: Parse, scope: Scope) -> Begun:
        """Return the stream, its events, and the first of them. Raises the problem of a watch that cannot begin."""
        return await self.counted(name, self._begun(name, parse, scope))

    async def counted(self, name: str, beginning: Awaitable[Begun]) -> Begun:
        """Return what has begun, and count it. Raises the problem of a watch that cannot begin."""
        began_s, outcome = monotonic(), "internal"
        try:
            found = await beginning
            outcome = "answered"
            return found
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except UnderstudyError as error:
            outcome = problem_of(error).outcome
            raise
        finally:
            counts = self._requests.of("watch", name if self.has_store(name) else NO_STORE)
            counts.count(outcome)
            counts.duration_ms.observe((monotonic() - began_s) * 1000)

    async def _begun(self, name: str, parse: Parse, scope: Scope) -> Begun:
        store = self.store(name)
        request = parse(store.codec)
        keys = store.keys(request.rows, authorization_of(scope))
        after = await self.position_of(request.begins)
        selection = self.bound(store, request.selection).selection
        asked = WatchQuestion(keys, after, selection, request.longs_as_text)
        if not store.codec.is_scattered:
            stream = self.streams.enter(len(keys), grants_of(scope, keys))
            return await begun(self.streams, stream, lambda: self.events(store.name, asked, stream))
        name, partitions = store.name, store.partitions
        stream = self.streams.enter(len(keys) * partitions, grants_of(scope, keys))

        def events_of(question: WatchQuestion) -> Events:
            return self.events(name, question, stream)

        return await begun(self.streams, stream, lambda: events_everywhere(name, partitions, asked, events_of))

    async def position_of(self, begins: Beginning) -> Position | None:
        """Return the position behind which a watch begins; None for one that begins with present values. Raises the
        problem of a position of another application, and of a moment whose version is purged.
        """
        if isinstance(begins, int):
            return await self._scans.position_at(begins)
        if begins is not None and begins.application_id != self.application_id:
            what = f"the position is of the application {begins.application_id!r}, this is {self.application_id!r}"
            fix = "Send the id of an event of this store, or none"
            raise ProblemError(Problem(ProblemType.LINEAGE_CHANGED, what, "last-event-id", fix))
        return begins


async def events_everywhere(
    store: str, partitions: int, asked: WatchQuestion, events_of: Callable[[WatchQuestion], Events]
) -> Events:
    """Yield the events of a watch. `events_of` yields those of keys in the partitions that they name."""
    keys = [key._replace(partition=each) for key in asked.keys for each in range(partitions)]
    asked, watch = asked._replace(keys=keys), ScatteredWatch(store, partitions)
    if asked.after is not None:  # Behind a position a partition tells only what changes: learn first what each has.
        async with aclosing(events_of(asked._replace(after=None))) as events:
            async for piece in events:
                watch.passed(piece)
                if len(watch.there) * partitions == len(keys):
                    break
        watch.forget_first()
    async with aclosing(events_of(asked)) as events:
        async for piece in events:
            passed = watch.passed(piece)
            if passed:
                yield passed


def grants_of(scope: Scope, keys: Sequence[WatchKey] = ()) -> Callable[[], EndReason | None]:
    """Return a function that says why a watch must end; None while its credential covers its keys."""
    given = authorization_of(scope)

    def check() -> EndReason | None:
        nonlocal given
        now = regranted(scope, given)
        if now is given:
            return None
        if now is None or not all(now.keys.allows(orjson.loads(key.printed)) for key in keys):
            return EndReason.FORBIDDEN
        given = now
        return None

    return check


def watch_routes(watches: Watches, watch_prefix: WatchPrefix) -> APIRouter:
    """Make the calls by which readers watch keys."""
    routes = APIRouter()

    def answered(store: str, parse: Parse) -> Response:
        return WatchResponse(watches.streams, lambda scope: watches.begin(store, parse, scope))

    def one(store: str, form: list[str], request: Request) -> Response:
        query, last_event_id = request.scope["query_string"], request.headers.get("last-event-id", "")
        return answered(store, lambda codec: parse_watch(codec, form, query, last_event_id))

    @routes.get("/v1/stores/{store}/watch", response_class=WatchResponse)
    async def by_json(store: str, request: Request) -> Response:
        """Send the value of a key, which is JSON in `?key=`, and each change of it."""
        return one(store, ["lookup"], request)

    @routes.get("/v1/stores/{store}/watch/{key:path}", response_class=WatchResponse)
    async def by_path(store: str, key: str, request: Request) -> Response:
        """Send the value of a key, of which each column is a segment of the path, and each change of it."""
        _, _, _, _, *segments = split_path(request.scope["raw_path"])
        return one(store, ["keys", *segments], request)

    @routes.post("/v1/stores/{store}/watch", response_class=WatchResponse)
    async def many(store: str, request: Request) -> Response:
        """Send the values of up to a thousand keys, or of all with a prefix, and each change of them."""
        body = await read_body(request.receive)
        query, last_event_id = request.scope["query_string"], request.headers.get("last-event-id", "")
        members = members_with_prefix(body)
        if members is not None:
            given = (members, query, last_event_id)
            return WatchResponse(
                watches.streams, lambda scope: watches.counted(store, watch_prefix(store, *given, scope))
            )
        return answered(store, lambda codec: parse_watch_body(codec, body, query, last_event_id))

    return routes
