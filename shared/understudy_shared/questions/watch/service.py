"""Watches of keys, the same at nodes and routers: parsed, granted, limited, and sent as server-sent events.

In a scattered store a key is watched in all partitions, and the events of a partition report only its own value. The
watcher gets a first value once all partitions have reported, and a problem as soon as two of them have the key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response

from understudy_shared.auth.access import authorization_of, regranted
from understudy_shared.auth.permissions import require_key
from understudy_shared.auth.principals import Authorization
from understudy_shared.base.errors import BadKeyError, UnderstudyError
from understudy_shared.base.texts import clipped
from understudy_shared.http.edge import Scope, read_body
from understudy_shared.http.lookup_requests import encoded_key, key_and_params, longs_as_text, pop_longs
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import parse_query, split_path
from understudy_shared.questions.lookup.batches import ambiguous_key, parse_batch
from understudy_shared.questions.scan.requests import ScannedStore
from understudy_shared.questions.scan.service import Scans
from understudy_shared.questions.service_reads import counted_of_store
from understudy_shared.questions.watch.choice import CaughtUp, EventBatch, KeyWatcher, SharedKey, SharedPart, Telling
from understudy_shared.questions.watch.events import (
    KEEP_ALIVE,
    EndReason,
    HopEvent,
    KeyEvent,
    coalesced_event,
    key_event,
    read_event,
    reset_event,
    version_event,
    version_text,
    with_id,
)
from understudy_shared.questions.watch.hop import WatchKey
from understudy_shared.questions.watch.streams import (
    PIECE_BYTES,
    Begun,
    Events,
    WatchResponse,
    WatchStream,
    WatchStreams,
    begun,
)
from understudy_shared.reads.bound_parsing import parse_moment
from understudy_shared.reads.bounds import BadBoundError, Refusal, Selection
from understudy_shared.reads.tokens import POSITION_PREFIX, BadPositionError, Position, decode_position
from understudy_shared.server.app import KEY_PATH
from understudy_shared.spark.key_codec import KeyCodec, Row

SELECTION_PARAMETERS = ("limit", "include_expired")
_KNOWN = "from, include_expired, limit and longs"
_FIX = "Send the `position` of an answer, the id of an event, a time ago (1m), or nothing"

Beginning = Position | int | None
"""The beginning of a watch: a position; a moment in microseconds (negative: relative to now); None: current values."""

WatchRequest = tuple[Sequence[Row], Beginning, Mapping[str, object], bool]
"""A parsed request: its keys, its beginning, the parameters of the selection, and whether long numbers are sent as
text.
"""


def parse_watch(codec: KeyCodec, form: list[str], query: bytes, last_event_id: str) -> WatchRequest:
    """Parse a request for one key, which is given as in a lookup. Raises its problem."""
    row, params = key_and_params(codec, form, query)
    longs = pop_longs(params)
    return _request([row], params, last_event_id, longs_as_text=longs)


def parse_watch_body(codec: KeyCodec, body: bytes, query: bytes, last_event_id: str) -> WatchRequest:
    """Parse a request for many keys, which are given as in a batch. Raises its problem."""
    params = parse_query(query)
    longs = pop_longs(params)
    if params:
        what = f"a watch of many keys has no query parameter {clipped(min(params))}"
        raise ProblemError(Problem(ProblemType.BAD_REQUEST, what, "query", "Send it among the bounds, in the body"))
    keys, bounds = parse_batch(body)
    if not keys:
        raise BadKeyError("there is no key to watch", where="keys", fix='Send {"keys": [["a"], ["b"]]}')
    rows = [_parsed(codec, index, key) for index, key in enumerate(keys)]
    return _request(rows, bounds, last_event_id, longs_as_text=longs)


def members_with_prefix(body: bytes) -> Mapping[str, Any] | None:
    """Return the members of a body that names a prefix in place of keys; None for any other."""
    if b'"prefix"' not in body:
        return None
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return members if isinstance(members, dict) and "prefix" in members else None


def _parsed(codec: KeyCodec, index: int, key: object) -> Row:
    try:
        return codec.parse_json(key)
    except UnderstudyError as error:
        problem = problem_of(error)
        raise ProblemError(Problem(problem.type, problem.detail, f"keys[{index}]", problem.fix)) from None


def _request(
    rows: Sequence[Row], params: Mapping[str, object], last_event_id: str, *, longs_as_text: bool
) -> WatchRequest:
    unknown = sorted(params.keys() - {"from", *SELECTION_PARAMETERS})
    if unknown:
        fix = f"Known are {_KNOWN}: a watch tells the newest version, and then what comes"
        raise BadBoundError(f"a watch has no bound {clipped(unknown[0])}", where="bounds", fix=fix)
    selection = {name: params[name] for name in SELECTION_PARAMETERS if name in params}
    return rows, beginning_of(params, last_event_id), selection, longs_as_text


def beginning_of(params: Mapping[str, object], last_event_id: str) -> Beginning:
    """Return where a watch begins. Raises a problem if that does not parse."""
    # The header wins: a browser that reconnects sends it to the original URL.
    where, given = ("last-event-id", last_event_id) if last_event_id else ("from", params.get("from"))
    if given is None:
        return None
    if not isinstance(given, str):
        raise BadBoundError(f"{where} must be a text", where=where, fix=_FIX)
    if where == "from" and not given.startswith(POSITION_PREFIX):
        return parse_moment(where, given)
    try:
        return decode_position(given)
    except BadPositionError as error:
        raise BadPositionError(error.what, where=where, fix=_FIX) from None


Parse = Callable[[KeyCodec], WatchRequest]
WatchPrefix = Callable[[str, Mapping[str, Any], bytes, str, Scope], Awaitable[Begun]]
"""A function that begins a watch of a prefix. It takes the store, the members of the body, the query, the last event id
and the scope.
"""


Data = dict[str, Any]


class ScatteredWatch:
    """The merge of one watcher's events over all partitions of a scattered store."""

    def __init__(self, store: str, partitions: int) -> None:
        self._store, self._partitions = store, partitions
        self._told: dict[bytes, dict[int, tuple[Data, bytes]]] = {}
        """The newest report of each partition about a key, until all partitions have reported the key."""
        self.there: dict[bytes, set[int]] = {}
        """The partitions that hold each key, for keys that all partitions have reported."""
        self._unsettled: dict[bytes, Data] = {}
        """The newest report of each key that no partition holds, while the reports are of different versions."""

    def passed(self, piece: bytes) -> bytes:
        """Return the bytes to send to the watcher for some events. Raises a problem if two partitions have a key."""
        sent: list[bytes] = []
        for block in piece.split(b"\n\n"):
            event = read_event(block) if block else None
            if event is None:
                sent.append(block + b"\n\n" if block else b"")
                continue
            text, texts, position = self._text(event), list[bytes](), event.position
            if position is not None:
                version = decode_position(position).version
                texts = self._settled(version)
                if self._unsettled:  # a client that resumes after a position gets no first value
                    position, text = None, b"" if event.kind == "version" else text
                else:
                    text = text or version_text(version, position)
            texts += [text] if text else []
            sent += [with_id(text, None) for text in texts[:-1]]
            sent += [with_id(text, position) for text in texts[-1:]]
        return b"".join(sent) or (KEEP_ALIVE if self._unsettled else b"")

    def forget_first(self) -> None:
        """Send no more first values: the watcher has them from its earlier connection."""
        self._told.clear()
        self._unsettled.clear()

    def _settled(self, version: int) -> list[bytes]:
        """Return the first events of unsettled keys that are now known to be absent at a version."""
        settled = [key for key, data in self._unsettled.items() if data["version"] <= version]
        return [_nowhere(self._unsettled.pop(key)) for key in settled]

    def _text(self, event: HopEvent) -> bytes:
        """Return an event as the watcher gets it, without its last line; empty if it is not sent."""
        if event.kind == "reset":
            self.forget_first()
            self.there.clear()
        if event.kind not in {KeyEvent.SNAPSHOT, KeyEvent.VALUE, KeyEvent.DELETED}:
            return event.text
        printed = event.text.partition(b"data: ")[2].rstrip(b"\n")
        data = orjson.loads(printed)
        key, partition = orjson.dumps(data["key"]), data["partition"]
        if event.kind == KeyEvent.SNAPSHOT:
            return self._first(key, data, event.text)
        if partition in self._told.get(key, ()):  # no first value was sent yet: it will have this change
            self._told[key][partition] = data, key_event(KeyEvent.SNAPSHOT, printed)
            return b""
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
        told = self._told.setdefault(key, {})
        told[data["partition"]] = data, text
        if len(told) < self._partitions:
            return b""
        del self._told[key]
        # A key that is there and cannot be read has a problem in place of "found".
        having = {at: text for at, (data, text) in told.items() if data.get("found", True) or "expired" in data}
        self.there[key] = set(having)
        self._require_one(self.there[key])
        if having:
            return having.popitem()[1]
        versions = {data["version"]: data for data, _ in told.values()}
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


class ParsedWatch(NamedTuple):
    """The keys to watch, and the position that their watcher resumes after; None for a new one."""

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
    """Answers to requests for watches. `streams` limits them, `scans` knows stores and versions."""

    def __init__(self, streams: WatchStreams, scans: Scans) -> None:
        self.streams = streams
        self.scans = scans

    @abstractmethod
    def events(self, name: str, asked: ParsedWatch, stream: WatchStream) -> Events:
        """Yield the events of a watch. If it cannot begin, the first step raises a problem."""

    async def begin(self, name: str, parse: Parse, scope: Scope) -> Begun:
        """Return the stream, its events, and the first of them. Raises a problem if the watch cannot begin."""
        with counted_of_store(self.scans.service, "watch", name):
            store = self.scans.store(name)
            rows, begins, params, longs = parse(store.codec)
            keys = self._keys(store, rows, authorization_of(scope))
            after = await self.position_of(store, begins)
            selection = self.scans.service.bound_of(store.name, params).selection
            asked = ParsedWatch(keys, after, selection, longs)
            parts = store.partitions if store.codec.is_scattered else 1
            stream = self.streams.enter(len(keys) * parts, grants_of(scope, keys))
            return await begun(self.streams, stream, lambda: self._events(store, asked, stream))

    def _events(self, store: ScannedStore, asked: ParsedWatch, stream: WatchStream) -> Events:
        if store.codec.is_scattered:
            return self._everywhere(store, asked, stream)
        return self.events(store.name, asked, stream)

    def _keys(self, store: ScannedStore, rows: Sequence[Row], authorization: Authorization) -> list[WatchKey]:
        """Return the keys of a request without repetitions. Raises a problem if one is too long or not granted."""
        found: dict[bytes, WatchKey] = {}
        for row in rows:
            encoded = encoded_key(store.codec, row, self.scans.service.max_key_bytes)
            key = store.codec.to_json(encoded)
            if authorization.keys.prefixes is not None:
                require_key(authorization, key)
            found[encoded] = WatchKey(store.codec.partition(row, store.partitions), encoded, orjson.dumps(key))
        return list(found.values())

    async def position_of(self, store: ScannedStore, begins: Beginning) -> Position | None:
        """Return the position after which a watch begins; None if it begins with current values. Raises a problem for a
        position of another application, and for a moment whose version was purged.
        """
        if isinstance(begins, int):
            return await self.scans.position_at(begins)
        if begins is not None and begins.application_id != store.application_id:
            what = f"the position is of the application {begins.application_id!r}, this is {store.application_id!r}"
            fix = "Send the id of an event of this store, or none"
            raise ProblemError(Problem(ProblemType.LINEAGE_CHANGED, what, "last-event-id", fix))
        return begins

    async def _everywhere(self, store: ScannedStore, asked: ParsedWatch, stream: WatchStream) -> Events:
        """Yield the events of keys that may be in any partition."""
        keys = [key._replace(partition=each) for key in asked.keys for each in range(store.partitions)]
        asked, watch = asked._replace(keys=keys), ScatteredWatch(store.name, store.partitions)
        if asked.after is not None:  # After a position a partition sends only changes: learn first which keys it has.
            async with aclosing(self.events(store.name, asked._replace(after=None), stream)) as events:
                async for piece in events:
                    watch.passed(piece)
                    if len(watch.there) * store.partitions == len(keys):
                        break
            watch.forget_first()
        async with aclosing(self.events(store.name, asked, stream)) as events:
            async for piece in events:
                passed = watch.passed(piece)
                if passed:
                    yield passed


def grants_of(scope: Scope, keys: Sequence[WatchKey] = ()) -> Callable[[], EndReason | None]:
    """Return a function that returns why a watch must end, or None while its credential covers its keys."""
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
    """Make the calls by which clients watch keys."""
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

    @routes.get("/v1/stores/{store}/watch/" + KEY_PATH, response_class=WatchResponse)
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
            return WatchResponse(
                watches.streams, lambda scope: watch_prefix(store, members, query, last_event_id, scope)
            )
        return answered(store, lambda codec: parse_watch_body(codec, body, query, last_event_id))

    return routes


class Joined(NamedTuple):
    """Watched keys of a partition, in the order of the question, with their indexes in it."""

    part: SharedPart
    keys: Sequence[SharedKey]
    indexes: Sequence[int]


class WatchSource(ABC):
    """The source of the keys of one watcher."""

    @property
    @abstractmethod
    def lineage(self) -> str:
        """The history of the checkpoint that is watched."""

    @property
    @abstractmethod
    def json_name(self) -> bytes:
        """The JSON of the store's name."""

    @abstractmethod
    async def join(self, asked: ParsedWatch, stream: WatchStream, joined: list[Joined]) -> bool:
        """Join the keys of a question, and append them to `joined`, partition after partition. Return whether its
        position belongs to another history. Raises a problem if the keys cannot be watched from that position.
        """

    @abstractmethod
    async def since(self, joined: Joined, after: Position) -> CaughtUp:
        """Return the changes of some keys after a position. Raises a problem if that position is gone."""

    @abstractmethod
    def leave(self, joined: Joined, stream: WatchStream) -> None:
        """Leave keys of a partition."""


class Watcher:
    """One watcher: its keys, each with its partition, and its events."""

    __slots__ = ("_asked", "_joined", "_keys", "_source", "_stream", "_streams")

    def __init__(
        self,
        source: WatchSource,
        streams: WatchStreams,
        asked: ParsedWatch,
        stream: WatchStream,
    ) -> None:
        self._source, self._streams, self._asked, self._stream = source, streams, asked, stream
        self._keys: list[tuple[SharedKey, SharedPart]] = []
        self._joined: list[Joined] = []

    async def events(self) -> Events:
        """Yield the events; the first one without waiting for a change."""
        try:
            is_reset = await self._source.join(self._asked, self._stream, self._joined)
            at = {
                index: (key, each.part)
                for each in self._joined
                for key, index in zip(each.keys, each.indexes, strict=True)
            }
            self._keys = [at[index] for index in range(len(at))]
            after = None if is_reset else self._asked.after
            watch = KeyWatcher(self._keys, None if after is None else after.version)
            if after is not None:
                try:
                    async with aclosing(self._missed(watch, after)) as missed:
                        async for piece in missed:
                            yield piece
                except ProblemError as error:
                    if error.problem.refusal is not Refusal.LINEAGE_CHANGED:
                        raise
                    is_reset, watch = True, KeyWatcher(self._keys)
            if is_reset:
                yield reset_event(self._source.lineage)
            is_due = True
            while True:
                self._stream.require_open()
                batch = watch.take(PIECE_BYTES, wants_position=is_due)
                if batch.tellings or is_due:
                    yield self._encoded(batch)
                else:
                    await self._stream.wait()
                is_due = self._stream.is_quiet
        finally:
            for joined in self._joined:
                self._source.leave(joined, self._stream)

    async def _missed(self, watch: KeyWatcher, after: Position) -> Events:
        """Yield the changes after a position, up to the version that each partition shows."""
        for joined in self._joined:
            behind, last = after, joined.part.version
            while behind.version < last:
                found = await self._source.since(joined, behind)
                last = found.last
                yield self._encoded_changes(found)
                for index, count in zip(joined.indexes, found.counts, strict=True):
                    watch.was_sent(index, found.reached, count)
                behind = Position(after.application_id, after.lineage, found.reached, None)

    def _encoded_changes(self, found: CaughtUp) -> bytes:
        texts: list[bytes] = []
        for entry in found.entries:
            self._streams.events[entry.kind] += 1
            position = entry.position if len(self._keys) == 1 else None
            texts.append(with_id(self._shown(entry.event), position))
        return b"".join(texts) or KEEP_ALIVE

    def _encoded(self, batch: EventBatch) -> bytes:
        if not batch.tellings:
            return KEEP_ALIVE if batch.position is None else self._version(batch.position)
        texts = [self._encoded_telling(each) for each in batch.tellings]
        return b"".join([*(with_id(text, None) for text in texts[:-1]), with_id(texts[-1], batch.position)])

    def _encoded_telling(self, telling: Telling) -> bytes:
        """Return the events of a key, the last one without its end."""
        key, part = self._keys[telling.at]
        events, missed = self._streams.events, telling.missed
        coalesced = b""
        if missed is not None:
            self._streams.coalesced += missed.changes or 0
            events[KeyEvent.COALESCED] += 1
            name = self._source.json_name
            coalesced = coalesced_event(name, key.printed, *missed)
            if not telling.tells_value:
                return coalesced
            coalesced = with_id(coalesced, None)
        if telling.is_first:
            events[KeyEvent.SNAPSHOT] += 1
            return self._shown(part.first_event(key))
        events[key.kind] += 1
        return coalesced + self._shown(key.event)

    def _version(self, position: str) -> bytes:
        return version_event(min(each.part.version for each in self._joined), position)

    def _shown(self, event: bytes) -> bytes:
        """Return an event with its long numbers in the form that the client asked for."""
        if not self._asked.longs_as_text:
            return event
        head, _, data = event.partition(b"data: ")
        return b"%bdata: %b" % (head, longs_as_text(data))
