"""The changes from one overview to the next, and from each of the last ones to now (pure).

Applying a delta to the overview that it begins at gives exactly the overview that it ends at, the order of grid rows
aside; two deltas in a row merge into one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import orjson

from understudy_router.admin.grid import RowKey
from understudy_router.admin.overview import Overview
from understudy_router.admin.settling import Kept

MAX_KEPT = 60
"""Most deltas that are kept for viewers that come back or are slow."""

MAX_KEPT_BYTES = 8 * 1024 * 1024
"""Most bytes of all kept deltas together: in a large cluster in trouble every row changes all the time."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes from the overview of tick `since` to that of tick `tick`."""

    since: int
    tick: int
    generated_at: str | None
    sections: Mapping[str, bytes]
    rows: Mapping[RowKey, bytes]
    gone: frozenset[RowKey]
    """The rows that no longer exist. Merged deltas also name rows that came and went in between."""
    grid: Mapping[str, bytes]
    """The changed members of the grid except its rows: columns, total, order."""

    @property
    def is_empty(self) -> bool:
        return not (self.sections or self.rows or self.gone or self.grid)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.sections.values())) + sum(map(len, self.rows.values())) + 100 * len(self.rows)

    def text(self) -> bytes:
        """Return the delta in the form that a viewer gets."""
        sections = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in self.sections.items())
        head = orjson.dumps({"tick": self.tick, "generated_at": self.generated_at})[:-1]
        gone = orjson.dumps(sorted(self.gone))
        members = b"".join(b',"grid_%b":%b' % (name.encode(), value) for name, value in self.grid.items())
        rows = b",".join(self.rows.values())
        return b'%b,"sections":{%b},"grid_rows":[%b],"grid_gone":%b%b}' % (head, sections, rows, gone, members)


def delta_of(before: Overview, now: Overview) -> Delta:
    """Return the changes between two overviews."""
    old, new = before.grid, now.grid
    is_same = new.rows is old.rows
    members = {
        name: orjson.dumps(getattr(new, name))
        for name in ("columns", "total", "order")
        if getattr(old, name) != getattr(new, name)
    }
    return Delta(
        since=before.tick,
        tick=now.tick,
        generated_at=now.generated_at,
        sections={
            name: kept.text
            for name, kept in now.sections.items()
            if (known := before.sections.get(name)) is None or known.text != kept.text
        },
        rows={} if is_same else _changed(old.rows, new.rows),
        gone=frozenset(() if is_same else old.rows.keys() - new.rows.keys()),
        grid=members,
    )


def _changed(old: Mapping[RowKey, Kept], new: Mapping[RowKey, Kept]) -> dict[RowKey, bytes]:
    return {
        key: row.text
        for key, row in new.items()
        if (known := old.get(key)) is None or (known is not row and known.text != row.text)
    }


def merged(deltas: Iterable[Delta]) -> Delta:
    """Merge deltas in a row into one; there must be at least one."""
    first, *others = deltas
    sections, rows, grid = dict(first.sections), dict(first.rows), dict(first.grid)
    gone, last = set(first.gone), first
    for each in others:
        assert each.since == last.tick, "one begins where the other ends"
        sections |= each.sections
        grid |= each.grid
        for key in each.gone:
            rows.pop(key, None)
        gone = (gone | each.gone) - each.rows.keys()
        rows |= each.rows
        last = each
    return Delta(first.since, last.tick, last.generated_at, sections, rows, frozenset(gone), grid)


class RecentDeltas:
    """The last deltas, and the merged delta from each of their beginnings to now, computed once for all viewers."""

    def __init__(self, *, max_kept: int = MAX_KEPT, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_kept, self._max_bytes = max_kept, max_bytes
        self._deltas: deque[Delta] = deque()
        self._size_bytes = 0
        self._texts: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._deltas)

    def add(self, delta: Delta) -> None:
        """Keep the delta that begins where the last one ended."""
        assert not self._deltas or self._deltas[-1].tick == delta.since
        self._deltas.append(delta)
        self._size_bytes += delta.size_bytes
        self._texts.clear()
        while len(self._deltas) > self._max_kept or (self._size_bytes > self._max_bytes and self._deltas):
            self._size_bytes -= self._deltas.popleft().size_bytes

    def since(self, tick: int) -> bytes | None:
        """Return the changes since the overview of a tick, in the form that a viewer gets; `None` when that overview is
        no longer known.
        """
        text = self._texts.get(tick)
        if text is None:
            chosen = [delta for delta in self._deltas if delta.since >= tick]
            if not chosen or chosen[0].since != tick:
                return None
            text = self._texts[tick] = merged(chosen).text()
        return text
