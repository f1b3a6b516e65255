"""The highest of one number per node, without a search among all nodes at each change (pure).

A thousand nodes send a heartbeat a second, and each may move the highest number. Only when the node that had it goes
back, or goes away, the others are searched: once, and not before the number is read.
"""

from __future__ import annotations

from collections.abc import Mapping


class Highest:
    """The numbers by node id. `value` is the highest of them, `None` without any."""

    def __init__(self) -> None:
        self._numbers: dict[str, float] = {}
        self._value: float | None = None
        self._is_found = True

    @property
    def value(self) -> float | None:
        if not self._is_found:
            self._value = max(self._numbers.values(), default=None)
            self._is_found = True
        return self._value

    def fill(self, numbers: Mapping[str, float]) -> None:
        """Start again from these numbers."""
        self._numbers = dict(numbers)
        self._is_found = False

    def put(self, node_id: str, number: float | None) -> None:
        """Set the node's number; `None` removes it."""
        before = self._numbers.pop(node_id, None)
        if number is not None:
            self._numbers[node_id] = number
        if not self._is_found:
            return
        if number is not None and (self._value is None or number >= self._value):
            self._value = number
        elif before is not None and before == self._value:
            self._is_found = False
