"""Results and events of the client: plain Python values as in the API's JSON, or the models of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from understudy.client.errors import ServerProblemError, problem_error

V = TypeVar("V")

Json = Mapping[str, Any]


class Binding(Protocol):
    """The models of a store's keys and values. `understudy.typed.bind` makes it."""

    def key_columns(self, key: object) -> dict[str, Any]:
        """Return a key as JSON by column."""

    def key(self, columns: Mapping[str, Any]) -> Any:
        """Return the model of a key."""

    def value(self, columns: Mapping[str, Any]) -> Any:
        """Return the model of a value."""


class Why(StrEnum):
    """The reason why a router was asked although routing is direct."""

    NO_METADATA = "no-metadata"
    """Nothing usable is known of the store: the client has just begun, or its server is not a router."""
    BOUND = "bound"
    """A bound that routers keep: a version, a cursor, `require_active`, a long wait."""
    KEY = "key"
    """The key does not fit the store. A router says what is wrong with it."""
    SCATTERED = "scattered"
    """Any partition may have a key of the store, so that a router asks all."""
    NO_ACTIVE = "no-active"
    """The metadata names no node for the partition, or one that may not be asked."""
    PAUSED = "paused"
    """The node, or its partition, failed lately."""
    NOT_OWNER = "not-owner"
    """The node does not hold the partition."""
    FAILED = "failed"
    """The node did not answer, or could not."""
    DOUBT = "doubt"
    """The answer was not from a running replica of this history with known lag."""


class RoutingCounts(NamedTuple):
    """The keys that nodes answered directly, those that routers were asked for by the reason (`Why`), and the requests
    for metadata. Threads that share a client may lose a count.
    """

    direct: int
    routed: Mapping[str, int]
    metadata_requests: int


class Lag(NamedTuple):
    """The lag of the replica that answered. None is unknown."""

    current_offset_position: int
    end_offset_position: int | None
    offset_lag: int | None
    time_lag_ms: int | None


class ServedBy(NamedTuple):
    """The replica that answered. `node_id` is None outside of a cluster."""

    host: str
    port: int
    role: str
    state: str
    node_id: str | None


class Found(Generic[V]):
    """The members that say what was found of one key; `raw` is its JSON."""

    __slots__ = ("_binding", "_error", "raw")

    def __init__(self, raw: Json, binding: Binding | None, error: ServerProblemError | None = None) -> None:
        self.raw = raw
        self._binding, self._error = binding, error

    @property
    def error(self) -> ServerProblemError | None:
        """The reason why this key could not be read, while others of the same request were."""
        return self._error

    @property
    def key(self) -> Any:
        """The key: by column name, or as the model of the store."""
        columns = self._read()["key"]
        return columns if self._binding is None else self._binding.key(columns)

    @property
    def value(self) -> V:
        """The columns that Spark stores, by name, or as the model of the store; None for an absent key."""
        columns = self._read().get("value")
        found: Any = columns if self._binding is None or columns is None else self._binding.value(columns)
        return found  # type: ignore[no-any-return]

    @property
    def result(self) -> Json | None:
        """The columns that the query outputs, by name; None where that is not known."""
        return self._read().get("result")

    @property
    def elements(self) -> Sequence[Json]:
        """The sessions, rows, values, entries or timers of a key that has several; empty for other kinds."""
        raw = self._read()
        return next((raw[name] for name in _ELEMENTS if name in raw), ())

    @property
    def expires_at(self) -> datetime | None:
        """The time when the watermark or a TTL removes the key."""
        return moment(self._read().get("expires_at"))

    @property
    def expired(self) -> bool | None:
        """Whether that has passed; None where it is not known, or does not apply."""
        return self._read().get("expired")

    @property
    def timeout_at(self) -> datetime | None:
        """The time when the group times out, if the query uses timeouts."""
        return moment(self._read().get("timeout_at"))

    @property
    def next_cursor(self) -> str | None:
        """The `cursor` of the next page of a key with many elements; None at the end."""
        return self._read().get("next_cursor")

    def _read(self) -> Json:
        """Return the JSON. Raises the error of a key that could not be read."""
        if self._error is not None:
            raise self._error
        return self.raw


class Result(Found[V]):
    """The answer for a key. It is true where the key was found."""

    __slots__ = ("_shared",)

    def __init__(
        self, raw: Json, shared: Json, binding: Binding | None = None, error: ServerProblemError | None = None
    ) -> None:
        """Keep the JSON of a result. `shared` has the members that say how it was read, which other keys may share."""
        self.raw, self._shared = raw, shared  # without a call of the base: batches make hundreds
        self._binding, self._error = binding, error

    def __repr__(self) -> str:
        if self._error is not None:
            return f"Result(error={self._error.type!r})"
        what = "found" if self.found else "absent"
        return f"Result({what}, key={self.raw['key']!r}, value={self.raw.get('value')!r}, version={self.version})"

    def __bool__(self) -> bool:
        return self.found

    @property
    def found(self) -> bool:
        """Whether the key is there."""
        found: bool = self._read()["found"]
        return found

    @property
    def version(self) -> int:
        """The version that was read: batch N leaves version N + 1."""
        version: int = self._how("version")
        return version

    @property
    def position(self) -> str:
        """The position of this answer: with it as `min_position` no later answer is older."""
        position: str = self._how("position")
        return position

    @property
    def lag(self) -> Lag:
        """The lag of the replica that answered."""
        lag: Json = self._how("lag")
        return Lag(*(lag.get(name) for name in Lag._fields))  # type: ignore[arg-type]

    @property
    def served_by(self) -> ServedBy:
        """The replica that answered."""
        by: Json = self._how("served_by")
        return ServedBy(*(by.get(name) for name in ServedBy._fields))  # type: ignore[arg-type]

    @property
    def partition(self) -> int | None:
        """The partition of the key; None for an absent key of a scattered store, where each was asked."""
        partition: int | None = self._how("partition")
        return partition

    @property
    def committed_at(self) -> datetime | None:
        """The time at which Spark committed the version; None once it purged the commit's file."""
        return moment(self._how("committed_at"))

    @property
    def watermark(self) -> datetime | None:
        """The query's watermark in the version."""
        return moment(self._how("watermark"))

    @property
    def marks(self) -> Sequence[str]:
        """Marks of what is in doubt of the checkpoint."""
        self._read()
        marks: Sequence[str] = self._shared.get("marks", ())
        return marks

    def _how(self, name: str) -> Any:
        self._read()
        return self._shared[name]


def errors_of(results: Sequence[Result[Any]]) -> list[tuple[int, ServerProblemError]]:
    """Return the errors of the keys that could not be read, each with its place."""
    return [(at, each._error) for at, each in enumerate(results) if each._error is not None]  # noqa: SLF001  # of this module


_ELEMENTS = ("sessions", "rows", "values", "entries", "timers")


def moment(text: str | None) -> datetime | None:
    """Return a time of the API."""
    return None if text is None else datetime.fromisoformat(text)


class Column(NamedTuple):
    """A column of a store: its name, and Spark's name of its type."""

    name: str
    type: str


class StoreInfo:
    """A store that can be asked; `schema` is its entry as the server describes it."""

    __slots__ = ("schema",)

    def __init__(self, schema: Json) -> None:
        self.schema = schema

    def __repr__(self) -> str:
        return f"StoreInfo({self.name!r}, {self.kind}, key={[each.name for each in self.key]})"

    @property
    def name(self) -> str:
        name: str = self.schema["store"]
        return name

    @property
    def kind(self) -> str:
        """The kind of what it keeps of a key: `value`, `set`, `session`, `join-side`, `list`, `map` or `timers`."""
        kind: str = self.schema["kind"]
        return kind

    @property
    def key(self) -> Sequence[Column]:
        """The columns of its keys."""
        return [Column(each["name"], each["type"]) for each in self.schema["key"]]

    @property
    def value(self) -> Sequence[Column]:
        """The columns of its values, as Spark stores them."""
        return [Column(each["name"], each["type"]) for each in self.schema["value"]]

    @property
    def partitions(self) -> int:
        partitions: int = self.schema["partitions"]
        return partitions

    @property
    def lineage(self) -> str:
        """One life of the query: the id in its checkpoint."""
        lineage: str = self.schema["lineage"]
        return lineage


class Stores(list[StoreInfo]):
    """The stores that can be asked. `not_served` has the operators that are not, with the reasons."""

    def __init__(self, document: Json) -> None:
        super().__init__(StoreInfo(each) for each in document["stores"])
        self.not_served: Sequence[Json] = document.get("not_served", ())


EventKind = Literal["snapshot", "value", "deleted", "coalesced", "reset", "version"]


class WatchEvent(Found[V]):
    """An event of a watch, or a change of a store, which is true if the key is there.

    `kind` is `snapshot` (the value at the beginning), `value`, `deleted`, `coalesced` (changes that do not come one by
    one), `reset` (the query's history was created anew or rewound, so all events before mean nothing any more), or,
    where they are asked for, `version` (all changes up to it have come). `position` is after all events
    before it, and of a single key after this one, so another watch can resume there: of several keys, this event and
    some after it come again. It is `None` until the server has sent one. Changes of a store are `value`,
    `deleted` and `version`; their position is the previous version's.
    """

    __slots__ = ("kind", "position")

    def __init__(
        self,
        kind: EventKind,
        raw: Json,
        binding: Binding | None,
        position: str | None,
        error: ServerProblemError | None = None,
    ) -> None:
        super().__init__(raw, binding, error)
        self.kind: EventKind = kind
        self.position = position

    def __repr__(self) -> str:
        what = f", {self.raw.get('value')!r}" if self.found else ""
        return f"WatchEvent({self.kind}, key={self.raw.get('key')!r}, version={self.version}{what})"

    def __bool__(self) -> bool:
        return self.found

    @property
    def found(self) -> bool:
        """Whether the key is there."""
        return self.raw.get("found") is True

    @property
    def deleted(self) -> bool:
        """Whether a version removed the key."""
        return self.kind == "deleted"

    @property
    def key(self) -> Any:
        """The key: by column name, or as the model of the store; None if the event is not about a key."""
        columns = self.raw.get("key")
        return columns if columns is None or self._binding is None else self._binding.key(columns)

    @property
    def version(self) -> int | None:
        """The version that changed the key, or the last of the coalesced ones; None for a `reset`."""
        version: int | None = self.raw.get("to" if self.kind == "coalesced" else "version")
        return version

    @property
    def first_version(self) -> int | None:
        """The first of the versions that are coalesced; None of other events."""
        first: int | None = self.raw.get("from")
        return first

    @property
    def changes(self) -> int | None:
        """The number of coalesced changes, or of the changes in a version; None for other events, and where a node
        skipped versions.
        """
        changes: int | None = self.raw.get("changes")
        return changes

    @property
    def committed_at(self) -> datetime | None:
        """The time at which Spark committed the version, where that is known."""
        return moment(self.raw.get("committed_at"))


def event_error(raw: Json) -> ServerProblemError | None:
    """Return the reason why a key could not be read, if an event has one."""
    problem = raw.get("problem")
    return problem_error(problem, problem.get("status", 0)) if isinstance(problem, dict) else None
