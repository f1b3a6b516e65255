"""Health as an operator needs it: what is wrong, who is hurt, why, and what to do (pure).

Each indicator looks at one thing. The worst state wins; of two that are equally bad the cause comes before what follows
from it. What a reader notices is `hurt`, what takes away a reserve is `attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

from understudy_router.admin.cluster_looks import access, agreement, bus, degraded, nodes, redundancy, restores
from understudy_router.admin.indicator import Situation
from understudy_router.admin.reader_looks import checkpoint, freshness, query, reads
from understudy_shared.http.health import HealthReport, Indicator

INDICATORS: Mapping[str, Callable[[Situation], Indicator]] = {
    look.__name__: look
    for look in (
        reads, checkpoint, query, nodes, bus, freshness, restores, redundancy, degraded, agreement, access,
    )
}  # fmt: skip
"""All of them by name, causes before what follows from them. JSON, metrics, alerts and runbooks go by these names."""


def health_of(situation: Situation, before: HealthReport | None = None) -> Generator[None, None, HealthReport]:
    """All indicators, in slices: a look costs by nodes. `before` is the report of the last look."""
    found: list[Indicator] = []
    for look in INDICATORS.values():
        found.append(look(situation))
        yield
    return HealthReport.after(before, found, situation.snapshot.about.now_us)
