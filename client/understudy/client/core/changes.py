"""The changes of a store (pure): what each version of a range put or deleted, as lines of JSON, until their end.

Rule. A program gets each change once, in the order of versions, however many streams that takes. Servers send a
version's changes in a fixed order, so the client counts those of a version that was cut, and skips them the next time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from understudy.client.core.exchange import Request, Steps, Tell
from understudy.client.core.reader import BoundStore
from understudy.client.core.state import Duration, seconds
from understudy.client.core.streaming import MAY_PASS, PATIENCE_S, BadStreamError, Streaming, object_of
from understudy.client.core.values import Since, SinceTime, json_value, query_of
from understudy.client.errors import LineageChangedError, UsageError, problem_error
from understudy.client.results import Binding, EventKind, WatchEvent, event_error

MEDIA_TYPE: Final = "application/x-ndjson"
SILENCE_S: Final = 60.0
"""Time without a line after which a stream counts as cut: its server looks for another replica for 20 s."""

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""Largest line in bytes: twice the largest answer of a node."""


class ChangesOptions(TypedDict, total=False):
    """The changes that are wanted. `prefix` has values of the first key columns; `fields` are the value and result
    columns to show; `versions` tells, too, when all changes of a version have come; `patience` is as of a watch.
    """

    prefix: Sequence[Any]
    partition: int
    fields: Sequence[str]
    versions: bool
    patience: Duration


class ChangesQuestion:
    """The versions that are asked for, both inclusive; without `last` to the newest. `members` are the other members of
    the request.
    """

    def __init__(
        self, first: int | None, last: int | None, options: Mapping[str, Any], since: Since | None = None
    ) -> None:
        """Check what is asked. Raises UsageError."""
        if (first is None) == (since is None):
            fix = 'Give a version, as first=419, or a time, as since="1m"'
            raise UsageError("changes are asked for from a version on, or since a time", where="first", fix=fix)
        unknown = options.keys() - ChangesOptions.__annotations__.keys()
        if unknown:
            known = ", ".join(ChangesOptions.__annotations__)
            raise UsageError(
                f"a reading of changes takes no {min(unknown)}", where=min(unknown), fix=f"Known are {known}"
            )
        for name, version in (("first", first), ("last", last)):
            if version is None:
                continue
            if type(version) is not int or version < 1:
                fix = f"Give a version: {name}=419"
                raise UsageError(f"{name}={version!r} is not a version", where=name, fix=fix)
        self.first, self.last = first, last
        self.since = None if since is None else SinceTime(since)
        self.patience_s = seconds(options.get("patience", PATIENCE_S), "patience")
        self.tells_versions: bool = options.get("versions", False)
        self.members = {
            name: ",".join(given) if name == "fields" else json_value(given)
            for name, given in options.items()
            if name in ("prefix", "partition", "fields") and given is not None
        }


class ReadingChanges(Streaming):
    """Changes on their way."""

    noun = "the reading of changes"
    silence_s = SILENCE_S

    def __init__(self, store: BoundStore, asked: ChangesQuestion, timeout_s: float) -> None:
        """Prepare it for a store. Raises UsageError."""
        if store.reader.named:
            what = "changes are of many versions, and these reads are of one"
            raise UsageError(what, where="changes", fix="Ask the client's own store for them")
        super().__init__(store, position=None, patience_s=asked.patience_s, timeout_s=timeout_s)
        self._asked = asked
        self._lineage: str | None = None
        self._began_s = self._state.now_s()
        self._next, self._last = asked.first or 0, asked.last
        """The version that comes next, or is on its way (0 until a server says which is the first since a time), and
        the last one, which the first server states.
        """
        self._told = 0
        """The number of its changes that the program has."""
        self._came = self._count = 0
        """The number of changes of that version, and of all, in this stream."""
        self._line = bytearray()
        self._has_head = False

    def __repr__(self) -> str:
        return f"ReadingChanges({self._store.name!r}, version {self._next} of {self._asked.first} to {self._last})"

    @property
    def next_version(self) -> int:
        """The version after the last complete one."""
        return self._next

    def _request(self) -> Request:
        until = {} if self._last is None else {"to": self._last}
        since = self._asked.since
        first = self._next or (since and since.as_of(self._state.now_s() - self._began_s))
        query = query_of({"from": first, **until, **self._asked.members})
        return Request("GET", f"{self._store.path}/changes{query}", None, 0.0, (MEDIA_TYPE,))

    def _begin(self) -> None:
        self._came = self._count = 0
        self._line.clear()
        self._has_head = False

    def _take(self, piece: bytes, binding: Binding | None) -> Steps[str | None]:
        *lines, rest = piece.split(b"\n")
        if len(self._line) + len(lines[0] if lines else rest) > MAX_LINE_BYTES:
            raise BadStreamError(f"a line is above {MAX_LINE_BYTES} bytes")
        for line in lines:
            whole = bytes(self._line) + line
            self._line.clear()
            why = yield from self._take_line(whole, binding)
            if why is not None:
                return why
        self._line += rest
        return None

    def _take_line(self, line: bytes, binding: Binding | None) -> Steps[str | None]:
        members = object_of(line, "a line")
        said = members.get(kind := next(iter(members), ""))
        if not isinstance(said, dict) or self._has_head == (kind == "changes"):
            raise BadStreamError("a line is not of changes")
        match kind:
            case "changes":
                self._take_head(said)
            case "change":
                yield from self._take_change(said, binding)
            case "version":
                yield from self._take_version(said, binding)
            case "end":
                return self._ends(said)
            case "error":
                return _why_it_broke(said)
        return None  # lines that this release does not know are left out

    def _take_head(self, said: Mapping[str, Any]) -> None:
        lineage: Any = said.get("lineage")
        first: Any = said.get("from")
        last: Any = said.get("to")
        is_asked = said.get("store") == self._store.name and first == (self._next or first)
        are_versions = type(first) is int and type(last) is int and self._last in (None, last)
        if not is_asked or not are_versions or type(lineage) is not str:
            raise BadStreamError("the changes are others than those that were asked for")
        if lineage != (self._lineage or lineage):
            raise LineageChangedError(
                {
                    "type": "lineage-changed",
                    "status": 409,
                    "detail": "the query's history was created anew, or rewound, while its changes were read",
                    "fix": "Drop what was read of the old history, and begin anew, with an export for example",
                }
            )
        self._has_head = True
        if self._lineage is None:  # later it is known: a stream may break at each place
            self._has_news()
        self._lineage, self._last, self._next = lineage, last, first
        self._is_over = first > last

    def _take_change(self, said: Mapping[str, Any], binding: Binding | None) -> Steps[None]:
        found = said.get("found")
        is_change = isinstance(said.get("key"), dict) and (type(found) is bool or "problem" in said)
        if said.get("version") != self._next or not is_change:
            raise BadStreamError(f"a change is not one of version {self._next}")
        self._came += 1
        self._count += 1
        self._quiet_until_s = self._state.now_s() + self.silence_s
        if self._came > self._told:
            self._has_news()
            self._told = self._came
            kind: EventKind = "deleted" if found is False else "value"
            yield Tell(WatchEvent(kind, said, binding, self.position, event_error(said)))

    def _take_version(self, said: Mapping[str, Any], binding: Binding | None) -> Steps[None]:
        position = said.get("position")
        if (said.get("version"), said.get("changes"), type(position)) != (self._next, self._came, str):
            raise BadStreamError(f"the changes of version {self._next} do not end with it")
        if self._came < self._told:
            raise BadStreamError(f"version {self._next} has {self._came} changes, and {self._told} came before")
        self._has_news()
        self._state.position.observe(position)
        self.position = position
        self._next, self._told, self._came = self._next + 1, 0, 0
        self._is_over = self._last is not None and self._next > self._last
        if self._asked.tells_versions:
            yield Tell(WatchEvent("version", said, binding, self.position))

    def _ends(self, said: Mapping[str, Any]) -> str:
        if said.get("changes") != self._count or not self._is_over:
            raise BadStreamError("the stream ends before the last version")
        return "all have come"


def _why_it_broke(said: Mapping[str, Any]) -> str:
    """Return why a server broke off. Raises the problem where no server can resume."""
    error = problem_error(said, said.get("status", 0))
    if isinstance(error, MAY_PASS):
        return f"{error.type}: {error.detail}"
    raise error
