"""Principals and their grants (pure). An action without a grant is denied.

A principal has grants: actions on stores, some of them only for keys that begin with certain values, or only in certain
applications. Most methods of a principal count only grants that hold in every application. `within` returns the
principal with all grants for one application.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import orjson

EVERY = "*"


def matches(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern. It takes time in proportion to their lengths, whatever the pattern."""
    first, *others = pattern.split(EVERY)
    if not others:
        return name == pattern
    *middle, last = others
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


class Action(StrEnum):
    """An action that a grant allows: reading keys, ranges, all rows as a stream, or changes of a store; looking at the
    service; changing it.
    """

    POINT = "point"
    SCAN = "scan"
    EXPORT = "export"
    WATCH = "watch"
    MONITOR = "monitor"
    ADMIN = "admin"


OF_STORES = frozenset({Action.POINT, Action.SCAN, Action.EXPORT, Action.WATCH})
OF_KEYS = frozenset({Action.POINT, Action.SCAN, Action.EXPORT, Action.WATCH})
"""Actions that a grant can limit to some keys."""

OF_THE_SERVICE = frozenset({Action.MONITOR, Action.ADMIN})
"""Actions that show or change every store, so no grant limits them to some stores."""

EVERY_STORE = "*"

MAX_REMEMBERED = 1024
"""Number of stores, and of applications, for which a principal caches its decision."""


@dataclass(frozen=True, slots=True)
class KeyScope:
    """The allowed keys of a store: every key, or those whose first columns have the values of one of `prefixes`."""

    prefixes: tuple[tuple[bytes, ...], ...] | None = None
    """Each value as the JSON that answers print: 1, true and "1" are three different values."""

    def allows(self, key: Mapping[str, object]) -> bool:
        """Whether the scope covers a key, given as answers print it: its columns in schema order."""
        if self.prefixes is None:
            return True
        values = tuple([orjson.dumps(value) for value in key.values()])
        return any(values[: len(prefix)] == prefix for prefix in self.prefixes)


class NotingScope(KeyScope):
    """A scope that counts the keys it has refused."""

    __slots__ = ("refused",)

    def __init__(self, prefixes: tuple[tuple[bytes, ...], ...] | None) -> None:
        super().__init__(prefixes)
        object.__setattr__(self, "refused", 0)

    refused: int

    def allows(self, key: Mapping[str, object]) -> bool:
        is_allowed = super().allows(key)
        object.__setattr__(self, "refused", self.refused + (not is_allowed))
        return is_allowed


EVERY_KEY = KeyScope()


@dataclass(frozen=True, slots=True)
class Grant:
    """Actions on stores. `key_prefix`: only for keys that begin with these values, each as JSON.
    `applications`: only in applications whose id matches one of these patterns; if empty, in every application.
    """

    actions: frozenset[Action]
    stores: frozenset[str]
    key_prefix: tuple[bytes, ...] = ()
    applications: frozenset[str] = frozenset()

    def names(self, store: str) -> bool:
        return store in self.stores or EVERY_STORE in self.stores

    def holds_in(self, application: str) -> bool:
        return not self.applications or any(matches(pattern, application) for pattern in self.applications)


class Principal:
    """A client with a name and grants, or another service of the same application (`is_peer`)."""

    __slots__ = (
        "_actions",
        "_everywhere",
        "_points",
        "_within",
        "grants",
        "is_limited",
        "is_peer",
        "name",
        "sees_every_store",
    )

    def __init__(self, name: str, grants: Iterable[Grant], *, is_peer: bool = False) -> None:
        self.name = name
        self.grants = tuple(grants)
        self.is_peer = is_peer
        self._everywhere = tuple([grant for grant in self.grants if not grant.applications])
        self.is_limited = len(self._everywhere) < len(self.grants)
        """Whether it has grants that hold in some applications only."""
        self._actions = frozenset(action for grant in self._everywhere for action in grant.actions)
        self.sees_every_store = self.may(Action.MONITOR) or any(EVERY_STORE in each.stores for each in self._everywhere)
        self._points: dict[bytes, Authorization | None] = {}
        self._within: dict[str, Principal] = {}

    def __repr__(self) -> str:
        return f"Principal({self.name!r})"

    def within(self, application: str) -> Principal:
        """Return the principal with the grants that hold in an application, and no others. It is cached."""
        if not self.is_limited:
            return self
        found = self._within.get(application)
        if found is None:
            grants = [replace(grant, applications=frozenset()) for grant in self.grants if grant.holds_in(application)]
            if len(self._within) >= MAX_REMEMBERED:
                self._within.clear()
            found = self._within[application] = Principal(self.name, grants, is_peer=self.is_peer)
        return found

    def sees_application(self, application: str) -> bool:
        """Whether this application exists for the principal: some grant holds there."""
        return self.is_peer or bool(self.within(application).grants)

    def monitors(self, application: str) -> bool:
        return self.within(application).may(Action.MONITOR)

    def may(self, action: Action) -> bool:
        """Whether an action of the whole service is allowed. The right to change includes the right to look."""
        return action in self._actions or (action is Action.MONITOR and Action.ADMIN in self._actions)

    def may_somewhere(self, action: Action) -> bool:
        """Whether an action of the whole service is allowed, or that of some application."""
        actions = {each for grant in self.grants for each in grant.actions}
        return action in actions or (action is Action.MONITOR and Action.ADMIN in actions)

    def sees(self, store: str) -> bool:
        return self.sees_every_store or any(grant.names(store) for grant in self._everywhere)

    def keys_of(self, store: str, action: Action) -> KeyScope | None:
        """Return the keys of a store on which an action is allowed; None: it is not."""
        grants = [grant for grant in self._everywhere if action in grant.actions and grant.names(store)]
        if not grants:
            return None
        if any(not grant.key_prefix for grant in grants):
            return EVERY_KEY
        return KeyScope(tuple(dict.fromkeys(grant.key_prefix for grant in grants)))

    def stores_of(self, action: Action) -> frozenset[str]:
        """Return the names of the stores on which an action is allowed, for all or some keys. May have EVERY_STORE."""
        return frozenset(name for grant in self._everywhere if action in grant.actions for name in grant.stores)

    def points(self, segment: bytes) -> Authorization | None:
        """Return the grant of single lookups in the store that a path segment names. The decision is cached.

        Return None without a grant, or if the caller must decode the name first.
        """
        try:
            return self._points[segment]
        except KeyError:
            is_plain = segment.isascii() and b"%" not in segment and b"?" not in segment
            keys = self.keys_of(segment.decode(), Action.POINT) if is_plain else None
            if len(self._points) >= MAX_REMEMBERED:
                self._points.clear()
            found = self._points[segment] = None if keys is None else Authorization(self, keys)
            return found


class Authorization(NamedTuple):
    """The grant of one request, passed along with it. `keys` are the keys that it may ask for."""

    principal: Principal
    keys: KeyScope = EVERY_KEY


ANONYMOUS = Principal("", ())
"""The principal of a request without a credential."""

PEER = Principal("peer", (), is_peer=True)
"""A node or router of the same application."""

ANYBODY = Principal("anybody", [Grant(frozenset(Action), frozenset({EVERY_STORE}))], is_peer=True)
"""The principal of every request to a service without authentication."""

UNGUARDED = Authorization(ANYBODY)
