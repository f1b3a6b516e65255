"""Health as an operator needs it: what is wrong, who is hurt, why, and what to do (pure).

Each indicator looks at one thing. The worst state wins; of two that are equally bad the cause comes before what follows
from it. What a reader notices is `hurt`, what takes away a reserve is `attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

from understudy_router.admin.cluster_looks import access, agreement, bus, degraded, nodes, redundancy, restores
from understudy_router.admin.indicator import Indicator, Situation, State
from understudy_router.admin.reader_looks import checkpoint, freshness, query, reads
from understudy_shared.times import utc_text

INDICATORS: Mapping[str, Callable[[Situation], Indicator]] = {
    look.__name__: look
    for look in (
        reads, checkpoint, query, nodes, bus, freshness, restores, redundancy, degraded, agreement, access,
    )
}  # fmt: skip
"""All of them by name, causes before what follows from them. JSON, metrics, alerts and runbooks go by these names."""


@dataclass(frozen=True, slots=True)
class Report:
    """All indicators, in the order of INDICATORS, and since when each is in its state."""

    indicators: tuple[Indicator, ...]
    since_us: Mapping[str, int] = field(default_factory=dict)

    @property
    def worst(self) -> Indicator:
        """The first of the worst."""
        return max(self.indicators, key=lambda each: each.state)

    def document(self) -> dict[str, object]:
        worst = self.worst
        return {
            "state": worst.state.word,
            "since": self._since(worst),
            "headline": "all well" if worst.state is State.OK else worst.sentence(),
            "runbook": None if worst.state is State.OK else worst.runbook,
            "indicators": [each.document(self._since(each)) for each in self.indicators],
        }

    def _since(self, indicator: Indicator) -> str | None:
        return utc_text(self.since_us.get(indicator.name))


def health_of(situation: Situation, before: Report | None = None) -> Generator[None, None, Report]:
    """All indicators, in slices: a look costs by nodes. `before` is the report of the last look."""
    found: list[Indicator] = []
    for look in INDICATORS.values():
        found.append(look(situation))
        yield
    now_us = situation.snapshot.about.now_us
    known = {} if before is None else {each.name: each.state for each in before.indicators}
    return Report(
        tuple(found),
        {
            each.name: before.since_us[each.name] if before and known[each.name] is each.state else now_us
            for each in found
        },
    )
