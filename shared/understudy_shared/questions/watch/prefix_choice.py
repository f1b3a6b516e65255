"""The events of a watch of all keys with a prefix (pure): each change of a version, or only the last of several.

A watcher that keeps up gets each version. For one that is far behind, the changes of a key are counted, and only the
last one is sent. Of each key that is there a digest is remembered, so that a value written again makes no event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.questions.watch.events import KeyEvent, coalesced_event, key_event

MAX_REMEMBERED: Final = 10_000
"""Number of keys whose values are remembered. Beyond it equal values are sent again."""

_NOT_SAID: Final = ("version", "partition")
"""Members of a change that are not about its value."""


class _Pending(NamedTuple):
    """The changes of a key that were not told: the first version, their number, and the last one."""

    first: int
    changes: int
    kind: KeyEvent
    data: dict[str, Any]


class PrefixWatch:
    """The keys and changes that one watcher was sent. `store` is the store's name; `knows_all`: it was sent every key
    that is there.
    """

    def __init__(self, store: str, *, knows_all: bool) -> None:
        self.told: Counter[KeyEvent] = Counter()
        """Number of events by kind."""
        self.coalesced = 0
        """Number of changes that were left out."""
        self._store = store
        self._json_name = orjson.dumps(store)
        self._knows_all = knows_all
        self._digests: dict[bytes, bytes] = {}
        self._pending: dict[bytes, _Pending] = {}

    def present(self, row: Mapping[str, Any], partition: int, stamp: Mapping[str, object]) -> bytes:
        """Return the event that tells a key that is there at the beginning, without its last line."""
        found = {} if "problem" in row else {"found": True}
        self._remember(orjson.dumps(row["key"]), {**found, **row})
        self.told[KeyEvent.SNAPSHOT] += 1
        data = {"store": self._store, **found, **row, "partition": partition, **stamp}
        return key_event(KeyEvent.SNAPSHOT, orjson.dumps(data))

    def changed(self, change: dict[str, Any], committed_at: str | None, position: str) -> None:
        """Take in a change of a version, as the changes of a store have it."""
        key = orjson.dumps(change["key"])
        is_found = change.get("found") is not False
        if is_found:
            if not self._remember(key, change):
                return
        elif self._digests.pop(key, None) is None and self._knows_all:
            return  # Spark removes keys, too, that are not there
        kind = KeyEvent.VALUE if is_found else KeyEvent.DELETED
        data = {"store": self._store, **change, "committed_at": committed_at, "position": position}
        before = self._pending.get(key)
        first, count = (change["version"], 1) if before is None else (before.first, before.changes + 1)
        self._pending[key] = _Pending(first, count, kind, data)

    @property
    def pending(self) -> int:
        """The number of keys whose changes were not told."""
        return len(self._pending)

    def tell(self) -> Iterator[bytes]:
        """Yield the events of what was taken in, without their last lines."""
        pending, self._pending = self._pending, {}
        for key, (first, count, kind, data) in pending.items():
            if count > 1:
                self.told[KeyEvent.COALESCED] += 1
                self.coalesced += count - 1
                yield coalesced_event(self._json_name, key, first, data["version"], count - 1)
            self.told[kind] += 1
            yield key_event(kind, orjson.dumps(data))

    def _remember(self, key: bytes, change: Mapping[str, Any]) -> bool:
        """Remember what a key holds. Return whether it is another value than before."""
        said = orjson.dumps({name: each for name, each in change.items() if name not in _NOT_SAID})
        digest = blake2b(said, digest_size=12).digest()
        if self._digests.get(key) == digest:
            return False
        if len(self._digests) >= MAX_REMEMBERED and key not in self._digests:
            self._digests.clear()
            self._knows_all = False
        self._digests[key] = digest
        return True
