"""The progress and the rates of the present restores (pure, in slices; time is passed in)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from understudy_router.admin.facts import Facts
from understudy_router.admin.observed import Document
from understudy_router.admin.snapshot import Snapshot

MAX_SHOWN = 200
MIN_MS = 900
"""Shortest time, in ms, over which a rate is computed."""


class _Seen(NamedTuple):
    """The bytes that were done at a moment, and the rate then."""

    at_ms: float
    done_bytes: int
    bytes_per_s: float | None


class Restoring:
    """The memory of the progress of each restore."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Seen] = {}

    def see(self, snapshot: Snapshot) -> Generator[None, None, list[Document]]:
        """Return the first MAX_SHOWN restores."""
        before, seen_now = self._seen, dict[tuple[str, str], _Seen]()
        found: list[Document] = []
        now_ms, stores_of = snapshot.about.now_ms, snapshot.layout.stores_of
        for each in _restoring(snapshot):
            if each is None:
                yield
                continue
            if len(found) >= MAX_SHOWN:
                break
            node_id, task, operator_id, facts = each
            restore, rate = facts.restore, None
            if restore is not None:
                seen = _seen(before.get((node_id, task)), now_ms, restore.done_bytes)
                seen_now[node_id, task] = seen
                rate = seen.bytes_per_s
            found.append(
                {
                    "node_id": node_id,
                    "task": task,
                    "stores": list(stores_of[operator_id]),
                    "stage": "unknown" if restore is None else restore.stage,
                    "done_bytes": None if restore is None else restore.done_bytes,
                    "total_bytes": None if restore is None else restore.total_bytes,
                    "bytes_per_s": rate,
                }
            )
        self._seen = seen_now
        return found


def percent_of(facts: Facts) -> float | None:
    """Return the progress of a restore in percent; `None` while it is unknown."""
    restore = facts.restore
    if restore is None or not restore.total_bytes:
        return None
    return round(min(100.0, 100 * restore.done_bytes / restore.total_bytes), 1)


def is_restoring(facts: Facts) -> bool:
    return facts.state in {"RESTORING", "CREATED"} or facts.restore is not None


def _restoring(snapshot: Snapshot) -> Iterator[tuple[str, str, int, Facts] | None]:
    """Yield the replicas that restore, by node; yield `None` wherever other tasks may run."""
    layout = snapshot.layout
    for number, view in enumerate(snapshot.holders):
        yield None
        if not view.is_live or not (is_restoring(view.facts) or any(map(is_restoring, view.own.values()))):
            continue
        for replica in layout.of_node[number]:
            yield None
            facts = snapshot.facts(replica)
            if is_restoring(facts):
                task = layout.task[replica]
                yield view.node_id, layout.key(task), layout.operator_of(task).operator_id, facts


def _seen(before: _Seen | None, now_ms: float, done_bytes: int) -> _Seen:
    if before is None or done_bytes < before.done_bytes:
        return _Seen(now_ms, done_bytes, None)
    took_ms = now_ms - before.at_ms
    if took_ms < MIN_MS:
        return before
    return _Seen(now_ms, done_bytes, round((done_bytes - before.done_bytes) * 1000 / took_ms, 1))
