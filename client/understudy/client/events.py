"""Events of a watch, and of the changes of a store, as a program gets them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from understudy.client.errors import ServerProblemError, problem_error
from understudy.client.results import Binding, Found, Json, V, moment

EventKind = Literal["snapshot", "value", "deleted", "coalesced", "reset", "version"]


class WatchEvent(Found[V]):
    """An event of a watch, or a change of a store, which is true if the key is there.

    `kind` is `snapshot` (the value at the beginning), `value`, `deleted`, `coalesced` (changes that do not come one by
    one), `reset` (the query's history was created anew or rewound, so all events before mean nothing any more), or,
    where they are asked for, `version` (all changes up to it have come). `position` is behind this event and all before
    it, so that another watch can go on there; it is `None` while the server has sent no position. Changes of a store
    are `value`, `deleted` and `version`, and their position is that of the last version before.
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
        """The key: by column name, or as the model of the store; None of an event about no key."""
        columns = self.raw.get("key")
        return columns if columns is None or self._binding is None else self._binding.key(columns)

    @property
    def version(self) -> int | None:
        """The version that changed the key, or the last one of those that are coalesced; None of a `reset`."""
        version: int | None = self.raw.get("to" if self.kind == "coalesced" else "version")
        return version

    @property
    def first_version(self) -> int | None:
        """The first of the versions that are coalesced; None of other events."""
        first: int | None = self.raw.get("from")
        return first

    @property
    def changes(self) -> int | None:
        """The number of changes that are coalesced, or of a version of a store; None of other events, and where a node
        passed over versions.
        """
        changes: int | None = self.raw.get("changes")
        return changes

    @property
    def committed_at(self) -> datetime | None:
        """The time at which Spark committed the version, where that is known."""
        return moment(self.raw.get("committed_at"))


def event_error(raw: Json) -> ServerProblemError | None:
    """Return the reason for which a key could not be read, if an event has one."""
    problem = raw.get("problem")
    return problem_error(problem, problem.get("status", 0)) if isinstance(problem, dict) else None
