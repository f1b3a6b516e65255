"""Watches of keys, or of all keys with a prefix: first the present values, then each version that changes one (pure).

Rule: a program gets each version of a key once, and in order, however often the stream breaks and another server
resumes it.

Events are server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), parsed from bytes as
they arrive. The parser is stricter than a browser's: invalid UTF-8 is an error, not a replacement character, and the
size of an event is limited.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypedDict

import orjson

from understudy.client.core.exchange import Request, Steps, Tell
from understudy.client.core.lookups import MAX_BATCH_KEYS
from understudy.client.core.reader import BoundStore
from understudy.client.core.state import Duration, seconds
from understudy.client.core.streaming import (
    MAX_RETRY_S,
    MIN_RETRY_S,
    PATIENCE_S,
    BadStreamError,
    Streaming,
    object_of,
)
from understudy.client.core.values import (
    MAX_TARGET_CHARS,
    Since,
    SinceTime,
    json_of,
    json_value,
    key_form,
    key_json,
    parts_of,
    query_of,
)
from understudy.client.errors import UsageError, WrongKeyError
from understudy.client.results import Binding, EventKind, WatchEvent, event_error
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.reads.tokens import decode_position

SILENCE_S: Final = 45.0
"""Time without an event or a comment after which a stream counts as cut: servers send one each 15 s."""

POSITION_WAIT_S: Final = 3.0
"""Time limit for a server's wait for a replica to reach the position."""

MAX_BEGINNING: Final = 10_000
"""Limit on events held until all snapshots of a prefix have come: ten times as many as servers send."""

MEDIA_TYPE: Final = "text/event-stream"
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
"""Largest event in bytes: twice the largest answer of a node."""

_END_OF_LINE: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"
_MAX_RETRY_DIGITS: Final = 9


class ServerEvent(NamedTuple):
    """An event, or a part of the stream without one: a comment, or only a `retry`. Then `data` is None.

    `id` and `retry_ms` are None where the event does not have them.
    """

    kind: str
    data: str | None
    id: str | None
    retry_ms: int | None


@dataclass(slots=True)
class _Fields:
    """The fields of an event so far."""

    kind: str = ""
    data: list[str] = field(default_factory=list)
    id: str | None = None
    retry_ms: int | None = None


class EventParser:
    """A parser of one stream. However the bytes are cut, the events are the same."""

    def __init__(self) -> None:
        self._left = bytearray()
        """The beginning of a line that has not ended."""
        self._held = 0
        """Size of the event that has not ended, so far."""
        self._fields = _Fields()
        self._is_first_line = True
        self._ended_by_cr = False

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Return what ended in these bytes, in order. Raises BadStreamError."""
        if not data:
            return []
        if self._ended_by_cr:
            data = data.removeprefix(b"\n")  # the rest of the end of a line
            self._ended_by_cr = False
        *lines, rest = _END_OF_LINE.split(data)
        self._ended_by_cr = data.endswith(b"\r")
        found: list[ServerEvent] = []
        for line in lines:
            self._grow(len(line))
            whole = bytes(self._left) + line if self._left else line
            self._left.clear()
            event = self._line(whole)
            if event is not None:
                found.append(event)
        self._grow(len(rest))
        self._left += rest
        return found

    def _grow(self, size: int) -> None:
        self._held += size
        if self._held > MAX_EVENT_BYTES:
            raise BadStreamError(f"an event is above {MAX_EVENT_BYTES} bytes")

    def _line(self, line: bytes) -> ServerEvent | None:
        """Take a whole line; return the event that it ends."""
        if self._is_first_line:
            line, self._is_first_line = line.removeprefix(_BOM), False
        if not line:
            return self._end()
        try:
            name, _, value = line.decode().partition(":")
        except UnicodeDecodeError as error:
            raise BadStreamError(f"a line is not UTF-8: {error.reason}") from None
        self._field(name, value.removeprefix(" "))
        return None

    def _end(self) -> ServerEvent:
        fields, self._fields, self._held = self._fields, _Fields(), 0
        data = "\n".join(fields.data) if fields.data else None
        return ServerEvent(fields.kind or "message", data, fields.id, fields.retry_ms)

    def _field(self, name: str, value: str) -> None:
        fields = self._fields
        if name == "event":
            fields.kind = value
        elif name == "data":
            fields.data.append(value)
        elif name == "id" and "\0" not in value:
            fields.id = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            fields.retry_ms = int(value)


class WatchOptions(TypedDict, total=False):
    """The ways to watch. `position`: resume after it. `since`: a time, as for `changes`; all versions since then come
    first, without a snapshot. `patience`: how long a watch may be without a stream before it is an error; `versions`:
    also say up to which version nothing changed. `limit` and `include_expired` are as in a lookup. `prefix` has values
    of the first key columns, in place of a key: all keys with it are watched.
    """

    position: str | None
    since: Since | None
    patience: Duration
    versions: bool
    limit: int
    include_expired: bool
    prefix: Sequence[Any]


class WatchQuestion:
    """The keys that are watched, each by its parts, or their prefix, and how. `selection` are members of the
    request.
    """

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
        self.prefix = _prefix(options.get("prefix"), has_keys=is_many or any(map(len, self.keys)))
        self.position: str | None = options.get("position")
        since = options.get("since")
        if since is not None and self.position is not None:
            raise UsageError("a watch has one beginning", where="since", fix="Give position or since")
        self.since = None if since is None else SinceTime(since)
        self.patience_s = seconds(options.get("patience", PATIENCE_S), "patience")
        self.tells_versions: bool = options.get("versions", False)
        self.selection = {name: options[name] for name in ("limit", "include_expired") if options.get(name) is not None}


class Watching(Streaming):
    """A watch on its way."""

    noun = "the watch"
    silence_s = SILENCE_S

    def __init__(self, store: BoundStore, asked: WatchQuestion, timeout_s: float) -> None:
        """Prepare a watch of a store. Raises UsageError."""
        if store.reader.named:
            what = "a watch begins at the newest version, and these reads are of one"
            raise UsageError(what, where="watch", fix="Ask the client's own store for it")
        super().__init__(store, position=asked.position, patience_s=asked.patience_s, timeout_s=timeout_s)
        self._asked = asked
        self._began_s = self._state.now_s()
        self._parts: Sequence[Sequence[Any]] = ()
        self._asked_keys: set[bytes] = set()
        """Keys of answers that are known to be those that were asked for."""
        self._printed: set[bytes] = set()
        self._is_parsed = False
        """The values of the keys that were asked for; and whether they are also there as servers print them."""
        self._parser = EventParser()
        self._told: dict[bytes, tuple[str, int]] = {}
        """The lineage, and the last version of each key that the program has; of a prefix only versions after the
        position.
        """
        self._beginning: list[WatchEvent[Any]] = []
        """The snapshots of a prefix until the last one comes. The program gets them all at once: those of another
        stream may lack a key.
        """

    def __repr__(self) -> str:
        asked = self._asked
        what = f"{len(asked.keys)} keys" if asked.prefix is None else f"prefix={asked.prefix}"
        return f"Watching({self._store.name!r}, {what}, position={self.position!r})"

    def _asked_for(self, binding: Binding | None, until_s: float) -> Steps[None]:
        if self._asked.prefix is not None:
            return
        self._parts = [self._store.key(binding, each) for each in self._asked.keys]
        if not self._asked.is_many:
            self._parts = [(yield from self._store.exact(self._parts[0], until_s))]

    def _request(self) -> Request:
        where, asked, selection = f"{self._store.path}/watch", self._asked, self._asked.selection
        position = self.position or ""
        rest = (POSITION_WAIT_S if position else 0.0, (MEDIA_TYPE,), position)
        if asked.since is not None and not position:
            selection = {**selection, "from": asked.since.as_of(self._state.now_s() - self._began_s)}
        bounds = {"bounds": selection} if selection else {}
        if asked.prefix is not None:
            return Request("POST", where, orjson.dumps({"prefix": asked.prefix, **bounds}), *rest)
        if not asked.is_many:
            form, has_query = key_form("watch", self._parts[0])
            if len(form) <= MAX_TARGET_CHARS:
                target = f"{self._store.path}/{form}{query_of(selection, begun=has_query)}"
                return Request("GET", target, None, *rest)
        return Request("POST", where, orjson.dumps({"keys": self._keys(), **bounds}), *rest)

    def _keys(self) -> list[Any]:
        """Return the keys as a body has them."""
        return [key_json(each[0]) if self._asked.is_many else json_of(each) for each in self._parts]

    def _begin(self) -> None:
        self._parser = EventParser()
        self._beginning = []

    def _take(self, piece: bytes, binding: Binding | None) -> Steps[str | None]:
        for event in self._parser.feed(piece):
            self._has_news()
            if event.retry_ms is not None:
                self._retry_s = min(max(event.retry_ms / 1000, MIN_RETRY_S), MAX_RETRY_S)
            if event.data is not None:
                raw = object_of(event.data, "the data of an event")
                if event.kind == "end":
                    return f"the server ended the watch: {raw.get('reason')}"
                if self._asked.prefix is None and "key" in raw:
                    yield from self._check_key(raw)
                yield from self._told_of(event, raw, binding)
        return None

    def _told_of(self, event: ServerEvent, raw: Mapping[str, Any], binding: Binding | None) -> Steps[None]:
        """Yield an event if it is new. Skip kinds that this release does not know."""
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
        has_begun = self.position is not None or self._asked.since is not None or event.id is not None
        if event.id is not None:
            self.position = event.id
        if self._asked.prefix is not None and kind != "reset":
            if not has_begun:
                self._hold(WatchEvent(kind, raw, binding, None, event_error(raw)))
                return
            if event.id is not None:
                yield from self._begun()
        if is_new:
            yield Tell(WatchEvent(kind, raw, binding, self.position, event_error(raw)))

    def _check_key(self, raw: Mapping[str, Any]) -> Steps[None]:
        """Raise WrongKeyError for an event of a key that was not asked for."""
        key = _key(raw)
        if key in self._asked_keys:
            return
        until_s = self._state.now_s() + self._timeout_s
        if self._asked.is_many:
            yield from self._check_one_of(raw["key"], until_s)
        else:
            yield from self._store.check_key(self._parts[0], raw["key"], until_s)
        self._asked_keys.add(key)

    def _check_one_of(self, answered: Mapping[str, Any], until_s: float) -> Steps[None]:
        """Raise WrongKeyError unless a key is one of many."""
        values = orjson.dumps([*answered.values()])
        if not self._printed:
            self._printed = set(map(_values, self._keys()))
        if values not in self._printed and not self._is_parsed:
            self._is_parsed = True
            many = yield from self._store.printed([*map(parts_of, self._keys())], until_s)
            self._printed |= set(map(_values, many))
        if values not in self._printed:
            raise WrongKeyError(self._store.name, f"one of {len(self._parts)} keys", answered)

    def _hold(self, event: WatchEvent[Any]) -> None:
        if len(self._beginning) >= MAX_BEGINNING:
            raise BadStreamError(f"the stream has above {MAX_BEGINNING} events before its first position")
        self._beginning.append(event)
        self._told.clear()

    def _begun(self) -> Steps[None]:
        """Yield the snapshots, which are complete now. Everything after this position is newer."""
        self._told.clear()
        held, self._beginning = self._beginning, []
        for event in held:
            yield Tell(event)

    def _is_new(self, raw: Mapping[str, Any]) -> bool:
        """Whether an answer is newer than the last one of its key. If it is, keep its version as the last."""
        key, version, found = _key(raw), raw.get("version"), raw.get("found")
        if (
            type(version) is not int
            or (type(found) is not bool and "problem" not in raw)
            or raw.get("store", self._store.name) != self._store.name
        ):
            raise BadStreamError("an event is not an answer for a key")
        lineage = _lineage(raw.get("position"))
        known = self._told.get(key)
        if known is not None and known[0] == lineage and version <= known[1]:
            return False
        self._told[key] = lineage, version
        self._state.position.observe(raw.get("position"))
        return True

    def _is_after(self, raw: Mapping[str, Any]) -> bool:
        """Whether there are versions after the last one that was yielded."""
        known, last = self._told.get(_key(raw)), raw.get("to")
        if type(last) is not int:
            raise BadStreamError("an event does not say which versions are coalesced")
        return known is None or last > known[1]


def _prefix(given: Any, *, has_keys: bool) -> list[Any] | None:
    """Return a prefix as JSON. Raises UsageError."""
    if given is None:
        return None
    if has_keys:
        raise UsageError("a key and a prefix are both to be watched", where="prefix", fix="Give one of the two")
    prefix = json_value(given)
    if not isinstance(prefix, list):
        raise UsageError(f"prefix={given!r} is not a list", where="prefix", fix='Give the first columns: prefix=["a"]')
    return prefix


def _values(key: Any) -> bytes:
    return orjson.dumps([*key.values()] if isinstance(key, dict) else key)


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
