"""Results that come in pages: rows of a scan, windows and versions of a key; and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from understudy.client.results import Found, Json, Result, V, moment

T = TypeVar("T")


class Row(Found[V]):
    """A key of a scan, with what was found of it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Row(key={self.raw['key']!r}, value={self.raw.get('value')!r})"


class Window(Found[V]):
    """A window of a key, with its value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Window({self.raw['start']}, {self.raw['end']}, value={self.raw.get('value')!r})"

    @property
    def start(self) -> datetime:
        """The start, which belongs to the window."""
        return datetime.fromisoformat(self.raw["start"])

    @property
    def end(self) -> datetime:
        """The end, which does not."""
        return datetime.fromisoformat(self.raw["end"])

    @property
    def state(self) -> str | None:
        """`open`; `closed` when Spark removes it in its next batch; None where that is not known."""
        state: str | None = self.raw["state"]
        return state


class KeyVersion(Found[V]):
    """A version that changed a key, or the first of a range. It is true where the key was there."""

    __slots__ = ()

    def __repr__(self) -> str:
        what = repr(self.raw.get("value")) if self.found else "absent"
        return f"KeyVersion({self.version}, {what})"

    def __bool__(self) -> bool:
        return self.found

    @property
    def found(self) -> bool:
        """Whether the key was there."""
        found: bool = self.raw["found"]
        return found

    @property
    def version(self) -> int:
        version: int = self.raw["version"]
        return version

    @property
    def committed_at(self) -> datetime | None:
        """The time at which Spark committed the version; None once it purged the commit's file."""
        return moment(self.raw["committed_at"])


class Page(Generic[T]):
    """A page of a list. All pages of a list are of one version."""

    __slots__ = ("items", "raw")

    def __init__(self, raw: Json, items: Sequence[T]) -> None:
        self.raw, self.items = raw, items

    def __repr__(self) -> str:
        return f"Page({len(self.items)} items, version={self.version})"

    @property
    def version(self) -> int:
        """The version of all pages."""
        version: int = self.raw["version"]
        return version

    @property
    def position(self) -> str:
        """The position of that version."""
        position: str = self.raw["position"]
        return position

    @property
    def next_cursor(self) -> str | None:
        """The place where the next page begins; None at the end."""
        cursor: str | None = self.raw["next_cursor"]
        return cursor

    @property
    def explain(self) -> Json | None:
        """The way the page was read, if that was asked for."""
        return self.raw.get("explain")


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows. An estimate has no version."""

    count: int
    version: int | None
    position: str | None
    is_estimate: bool


class Reads:
    """The results of keys of several stores, all of one version."""

    __slots__ = ("raw", "stores")

    def __init__(self, raw: Json, stores: dict[str, list[Result[Any]]]) -> None:
        self.raw, self.stores = raw, stores

    def __repr__(self) -> str:
        return f"Reads({list(self.stores)}, version={self.version})"

    def __getitem__(self, store: str) -> list[Result[Any]]:
        return self.stores[store]

    @property
    def version(self) -> int:
        """The version of all results."""
        version: int = self.raw["version"]
        return version

    @property
    def snapshot(self) -> str:
        """The token to read more of the same version."""
        snapshot: str = self.raw["snapshot"]
        return snapshot

    @property
    def committed_at(self) -> datetime | None:
        """The time at which Spark committed the version; None once it purged the commit's file."""
        return moment(self.raw["committed_at"])
