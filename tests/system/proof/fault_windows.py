"""Which faults were active when (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tests.system.proof.history import FaultEvent


@dataclass(frozen=True, slots=True)
class Window:
    """`fault` was in `target` from `from_ms` until it was healed; for ever when it never was."""

    fault: str
    target: str
    from_ms: float
    until_ms: float

    def __str__(self) -> str:
        return f"{self.fault} {self.target}"


class FaultWindows:
    """Each fault from its injection until `settle_ms` after it was healed."""

    def __init__(self, events: Sequence[FaultEvent], *, settle_ms: float) -> None:
        self.windows = tuple(_windows(events))
        self._edges_ms = sorted(
            {edge for each in self.windows for edge in (each.from_ms, each.until_ms + settle_ms)} - {inf}
        )
        # What is active from an edge to the next one; nothing before the first.
        self._between = [
            (),
            *(
                tuple(each for each in self.windows if each.from_ms <= edge < each.until_ms + settle_ms)
                for edge in self._edges_ms
            ),
        ]

    def during(self, from_ms: float, until_ms: float) -> tuple[Window, ...]:
        """Every fault that was active at some time between the two."""
        first, last = bisect_right(self._edges_ms, from_ms), bisect_right(self._edges_ms, until_ms)
        if first == last:  # nearly every read
            return self._between[first]
        found = [each for between in self._between[first : last + 1] for each in between]
        return tuple(dict.fromkeys(found))


def _windows(events: Sequence[FaultEvent]) -> list[Window]:
    """Injections with their healings; a healing closes the oldest open injection of the same fault and target."""
    found: list[Window] = []
    for event in sorted(events, key=lambda event: event.at_ms):
        if event.phase == "injected":
            found.append(Window(event.fault, event.target, event.at_ms, inf))
        elif event.phase == "healed":
            for index, window in enumerate(found):
                if (window.fault, window.target, window.until_ms) == (event.fault, event.target, inf):
                    found[index] = Window(window.fault, window.target, window.from_ms, event.at_ms)
                    break
    return found
