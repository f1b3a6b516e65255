"""How many bases a node had replaced when it answered (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from tests.system.proof.history import Bases

MANY_BASES = 24
"""So many have to be replaced in one life of a node before the answers of its later bases count."""


class BaseCounts:
    """What the nodes said, by node and time."""

    def __init__(self, bases: Iterable[Bases]) -> None:
        self._said: dict[str, list[Bases]] = {}
        for each in bases:
            self._said.setdefault(each.service, []).append(each)

    def replaced(self, node: str, at_ms: float) -> int:
        """How many it had surely replaced by then; 0 where it may have been started since it said so."""
        said = self._said.get(node, [])
        after = bisect_right(said, at_ms, key=lambda each: each.at_ms)
        if not 0 < after < len(said) or said[after - 1].pid != said[after].pid:
            return 0
        return said[after - 1].replaced
