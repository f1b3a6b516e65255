"""The progress and the rates of the present restores (pure, in slices; time is passed in)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

from understudy_router.admin.facts import Facts
from understudy_router.admin.observed import Document
from understudy_router.admin.snapshot import Snapshot

MAX_SHOWN = 200
MIN_MS = 900
"""Shortest time, in ms, over which a rate is computed."""

Key = tuple[str, str]
"""A node and its task."""


class _Seen(NamedTuple):
    """The bytes that were done at a moment, and the rate then."""

    at_ms: float
    done_bytes: int
    bytes_per_s: float | None


class RestoreTracker:
    """The memory of the progress of each restore."""

    def __init__(self) -> None:
        self._seen: dict[Key, _Seen] = {}

    def see(self, snapshot: Snapshot) -> Generator[None, None, list[Document]]:
        """Return the first MAX_SHOWN restores."""
        before, self._seen = self._seen, {}
        index, found = snapshot.index, list[Document]()
        for number, view in enumerate(snapshot.holders):
            yield
            if not view.is_live or not (is_restoring(view.facts) or any(map(is_restoring, view.own.values()))):
                continue
            for replica in index.of_node[number]:
                yield
                if is_restoring(snapshot.facts(replica)):
                    found.append(self._shown(snapshot, view.node_id, replica, before))
                if len(found) == MAX_SHOWN:
                    return found
        return found

    def _shown(self, snapshot: Snapshot, node_id: str, replica: int, before: Mapping[Key, _Seen]) -> Document:
        index, restore, rate = snapshot.index, snapshot.facts(replica).restore, None
        task = index.task[replica]
        key = (node_id, index.key(task))
        if restore is not None:
            seen = self._seen[key] = _seen(before.get(key), snapshot.about.now_ms, restore.done_bytes)
            rate = seen.bytes_per_s
        return {
            "node_id": node_id,
            "task": key[1],
            "stores": list(index.stores_of[index.operator_id[task]]),
            "stage": "unknown" if restore is None else restore.stage,
            "done_bytes": None if restore is None else restore.done_bytes,
            "total_bytes": None if restore is None else restore.total_bytes,
            "bytes_per_s": rate,
        }


def percent_of(facts: Facts) -> float | None:
    """Return the progress of a restore in percent; `None` while it is unknown."""
    restore = facts.restore
    if restore is None or not restore.total_bytes:
        return None
    return round(min(100.0, 100 * restore.done_bytes / restore.total_bytes), 1)


def is_restoring(facts: Facts) -> bool:
    return facts.state in {"RESTORING", "CREATED"} or facts.restore is not None


def _seen(before: _Seen | None, now_ms: float, done_bytes: int) -> _Seen:
    if before is None or done_bytes < before.done_bytes:
        return _Seen(now_ms, done_bytes, None)
    took_ms = now_ms - before.at_ms
    if took_ms < MIN_MS:
        return before
    return _Seen(now_ms, done_bytes, round((done_bytes - before.done_bytes) * 1000 / took_ms, 1))
