"""Watches (pure): one stream of events after another, each behind the position of the one before.

Rules. A program gets each version of a key once, and in order. A stream that ends is gone on with at any server, for no
longer than the watch's patience; a refusal of a server ends the watch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

import orjson

from understudy.client.core.call import OTHER_URL, Call
from understudy.client.core.endpoints import Endpoint
from understudy.client.core.event_stream import MEDIA_TYPE, BadStreamError, EventParser, ServerEvent
from understudy.client.core.exchange import Close, Failure, Opened, Receive, Request, Steps, Tell, Wait
from understudy.client.core.lookups import MAX_BATCH_KEYS
from understudy.client.core.reader import StoreReader
from understudy.client.core.state import Duration, seconds
from understudy.client.core.values import MAX_TARGET_CHARS, key_form, key_json, query_of
from understudy.client.errors import (
    Attempt,
    BadReplyError,
    DeadlineError,
    OverloadedError,
    UnavailableError,
    UnreachableError,
    UsageError,
)
from understudy.client.events import EventKind, WatchEvent
from understudy.client.results import Binding
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.reads.position import decode_position

PATIENCE_S: Final = 60.0
SILENCE_S: Final = 45.0
"""Time without an event or a comment after which a stream counts as cut: servers send one each 15 s."""

RETRY_S: Final = 1.0
MIN_RETRY_S, MAX_RETRY_S = 0.1, 60.0
"""The pause before a watch goes on, until a server says another one; and between what that is kept to."""

LONGEST_PAUSE_S: Final = 15.0
"""The longest pause that a watch comes to by itself."""

POSITION_WAIT_S: Final = 3.0
"""Time for which a server waits for a replica that is behind the position."""

_MAY_PASS: Final = (UnreachableError, UnavailableError, OverloadedError)
"""Errors after which a watch that has begun tries again."""


class WatchOptions(TypedDict, total=False):
    """The ways to watch. `position` is one to go on behind; `patience` is for how long a watch may be without a stream
    before it is an error; `versions` tells, too, up to which version nothing changed. `limit` and `include_expired` are
    as in a lookup.
    """

    position: str | None
    patience: Duration
    versions: bool
    limit: int
    include_expired: bool


class WatchQuestion:
    """The keys that are watched, each by its parts, and how. `selection` are members of the request."""

    def __init__(self, keys: Sequence[Any], options: Mapping[str, Any], *, is_many: bool = False) -> None:
        """Check what is asked. Raises UsageError."""
        if is_many and not 0 < len(keys) <= MAX_BATCH_KEYS:
            what = f"{len(keys)} keys are to be watched"
            raise UsageError(what, where="keys", fix=f"Give 1 to {MAX_BATCH_KEYS}; watch more by several watches")
        unknown = options.keys() - WatchOptions.__annotations__.keys()
        if unknown:
            known = ", ".join(WatchOptions.__annotations__)
            raise UsageError(f"a watch takes no {min(unknown)}", where=min(unknown), fix=f"Known are {known}")
        self.keys: Sequence[Sequence[Any]] = [[key] for key in keys] if is_many else keys
        self.is_many = is_many
        self.position: str | None = options.get("position")
        self.patience_s = seconds(options.get("patience", PATIENCE_S), "patience")
        self.tells_versions: bool = options.get("versions", False)
        self.selection = {name: options[name] for name in ("limit", "include_expired") if options.get(name) is not None}


class Watching:
    """A watch on its way. `steps` tells its events; `position` is behind all of them."""

    def __init__(self, store: StoreReader, asked: WatchQuestion, timeout_s: float) -> None:
        """Prepare a watch of a store; `timeout_s` is for its beginning. Raises UsageError."""
        if store.reader.named:
            what = "a watch begins at the newest version, and these reads are of one"
            raise UsageError(what, where="watch", fix="Ask the client's own store for it")
        self.position = asked.position
        self._store, self._asked, self._state = store, asked, store.reader.state
        self._timeout_s = timeout_s
        self._told: dict[bytes, tuple[str, int]] = {}
        """The lineage and the last version of each key that the program has."""
        self._retry_s = RETRY_S * (0.5 + self._state.rng.random() / 2)
        self._until_s: float | None = 0.0
        """The time at which the watch is given up unless something comes; None while its stream lives."""
        self._endpoint: Endpoint | None = None

    def __repr__(self) -> str:
        return f"Watching({self._store.name!r}, {len(self._asked.keys)} keys, position={self.position!r})"

    def steps(self) -> Steps[None]:
        """Tell events, without an end. Raises the error of a watch that cannot begin, or cannot go on."""
        state, asked = self._state, self._asked
        until_s = self._until_s = state.now_s() + self._timeout_s
        binding = yield from self._store.binding(until_s)
        parts = [self._store.key(binding, each) for each in asked.keys]
        opened = yield from self._opened(parts, until_s)
        while True:
            why = yield from self._events(opened, binding)
            yield Close(opened.stream)
            self._blame()
            if self._until_s is None:
                self._until_s = state.now_s() + asked.patience_s
            opened = yield from self._opened_again(parts, self._until_s, why)

    def _opened(self, parts: Sequence[Sequence[Any]], deadline_s: float) -> Steps[Opened]:
        call = Call(self._state, self._request(parts), deadline_s)
        opened: Opened = yield from call.steps()
        self._endpoint = call.endpoint
        return opened

    def _opened_again(self, parts: Sequence[Sequence[Any]], until_s: float, why: str) -> Steps[Opened]:
        """Open the next stream by then. `why` says how the last one ended."""
        state, pause_s = self._state, self._retry_s
        error: UnderstudyError = self._ended(why)
        while True:
            left_s = until_s - state.now_s()
            if left_s <= 0:
                raise error
            yield Wait(min(pause_s, left_s))
            now_s = state.now_s()
            try:
                return (yield from self._opened(parts, now_s + min(self._timeout_s, max(until_s - now_s, 1.0))))
            except _MAY_PASS as failed:
                error = failed
            pause_s = min(pause_s * 2, max(self._retry_s, LONGEST_PAUSE_S)) * (0.75 + state.rng.random() / 4)

    def _request(self, parts: Sequence[Sequence[Any]]) -> Request:
        where, selection = f"{self._store.path}/watch", self._asked.selection
        position = self.position or ""
        rest = (POSITION_WAIT_S if position else 0.0, (MEDIA_TYPE,), position)
        if not self._asked.is_many:
            form, has_query = key_form("watch", parts[0])
            if len(form) <= MAX_TARGET_CHARS:
                target = f"{self._store.path}/{form}{query_of(selection, begun=has_query)}"
                return Request("GET", target, None, *rest)
        keys = [key_json(each[0] if len(each) == 1 else each) for each in parts]
        body = orjson.dumps({"keys": keys, **({"bounds": selection} if selection else {})})
        return Request("POST", where, body, *rest)

    def _events(self, opened: Opened, binding: Binding | None) -> Steps[str]:
        """Tell what comes until the stream ends, and return why it did."""
        parser, now_s = EventParser(), self._state.now_s
        quiet_until_s = now_s() + self._timeout_s
        while True:
            until_s = quiet_until_s if self._until_s is None else min(quiet_until_s, self._until_s)
            piece = yield Receive(opened.stream, until_s)
            if isinstance(piece, Failure):
                return piece.why
            if not piece:
                return "the stream ended"
            assert isinstance(piece, bytes)
            try:
                for event in parser.feed(piece):
                    self._until_s, quiet_until_s = None, now_s() + SILENCE_S
                    if event.retry_ms is not None:
                        self._retry_s = min(max(event.retry_ms / 1000, MIN_RETRY_S), MAX_RETRY_S)
                    if event.data is not None:
                        raw = _json(event.data)
                        if event.kind == "end":
                            return f"the server ended the watch: {raw.get('reason')}"
                        yield from self._told_of(event, raw, binding)
            except BadStreamError as error:
                raise self._bad(str(error)) from None

    def _told_of(self, event: ServerEvent, raw: Mapping[str, Any], binding: Binding | None) -> Steps[None]:
        """Tell an event that is new. Leave out those that this release does not know."""
        kind: EventKind
        match event.kind:
            case "snapshot" | "value" | "deleted" as kind:
                is_new = self._is_new(raw)
            case "coalesced" as kind:
                is_new = self._is_after(raw)
            case "version" as kind:
                is_new = self._asked.tells_versions
            case "reset" as kind:
                self._told.clear()
                self.position, is_new = None, True
            case _:
                return
        if event.id is not None:
            self.position = event.id
        if is_new:
            yield Tell(WatchEvent(kind, raw, binding, self.position))

    def _is_new(self, raw: Mapping[str, Any]) -> bool:
        """Whether an answer is newer than the last one of its key. If it is, keep its version as the last."""
        key, version, found = _key(raw), raw.get("version"), raw.get("found")
        if (
            type(version) is not int
            or type(found) is not bool
            or raw.get("store", self._store.name) != self._store.name
        ):
            raise BadStreamError("an event is no answer for a key")
        lineage = _lineage(raw.get("position"))
        known = self._told.get(key)
        if known is not None and known[0] == lineage and version <= known[1]:
            return False
        self._told[key] = lineage, version
        self._state.position.observe(raw["position"])
        return True

    def _is_after(self, raw: Mapping[str, Any]) -> bool:
        """Whether versions that are not told are behind the last one that was."""
        known, last = self._told.get(_key(raw)), raw.get("to")
        if type(last) is not int:
            raise BadStreamError("an event does not say which versions are coalesced")
        return known is None or last > known[1]

    def _blame(self) -> None:
        """Ask another server first when the watch goes on: this one ended the stream."""
        if self._endpoint is not None:
            self._state.servers.failed(self._endpoint, self._state.now_s(), at_least_s=2 * self._retry_s)

    def _ended(self, why: str) -> DeadlineError:
        fix = "Begin the watch again behind its position; or give it more patience"
        return DeadlineError("the watch could not go on in time", [self._attempt(why)], fix=fix)

    def _bad(self, why: str) -> BadReplyError:
        return BadReplyError("the stream is not one of an Understudy server", [self._attempt(why)], fix=OTHER_URL)

    def _attempt(self, why: str) -> Attempt:
        return Attempt("" if self._endpoint is None else self._endpoint.url, why)


def _json(data: str) -> Mapping[str, Any]:
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError:
        raw = None
    if not isinstance(raw, dict):
        raise BadStreamError("the data of an event is no JSON object")
    return raw


def _key(raw: Mapping[str, Any]) -> bytes:
    key = raw.get("key")
    if not isinstance(key, dict):
        raise BadStreamError("an event has no key")
    return orjson.dumps(key)


def _lineage(token: object) -> str:
    try:
        return str(decode_position(token).lineage) if isinstance(token, str) else ""
    except UnderstudyError:
        raise BadStreamError("an event has a position that does not decode") from None
