"""Health as an operator needs it: what is wrong, who is hurt, why, and what to do (pure).

Each indicator looks at one thing. The worst state wins; of two that are equally bad the cause comes before what follows
from it. What a reader notices is `hurt`, what takes away a reserve is `attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from understudy_router.admin.cluster_looks import access, agreement, bus, nodes, redundancy, restores
from understudy_router.admin.indicator import Indicator, Situation, State
from understudy_router.admin.reader_looks import checkpoint, freshness, reads

_LOOKS: tuple[Callable[[Situation], Indicator], ...] = (
    reads, checkpoint, freshness, nodes, redundancy, bus, restores, agreement, access,
)  # fmt: skip

NAMES = tuple(look.__name__ for look in _LOOKS)

_CAUSES_FIRST = ("reads", "checkpoint", "nodes", "bus", "freshness", "restores", "redundancy", "agreement", "access")


@dataclass(frozen=True, slots=True)
class Report:
    """All indicators, in the order of their names' list."""

    indicators: tuple[Indicator, ...]

    @property
    def worst(self) -> Indicator:
        by_name = {each.name: each for each in self.indicators}
        return max((by_name[name] for name in _CAUSES_FIRST), key=lambda each: each.state)

    def document(self) -> dict[str, object]:
        worst = self.worst
        return {
            "state": worst.state.word,
            "headline": "all well" if worst.state is State.OK else worst.sentence(),
            "runbook": None if worst.state is State.OK else worst.runbook,
            "indicators": [each.document() for each in self.indicators],
        }


def health_of(situation: Situation) -> Generator[None, None, Report]:
    """All indicators, in slices: a look costs by nodes."""
    found: list[Indicator] = []
    for look in _LOOKS:
        found.append(look(situation))
        yield
    return Report(tuple(found))
