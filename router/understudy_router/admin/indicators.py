"""Health as an operator needs it: the fault, the readers that it hurts, the cause, and the remedy (pure).

Each indicator looks at one thing. The worst state wins; of two that are equally bad the cause comes before its
consequence. A fault that readers notice is `hurt`, one that takes away a reserve is `attention`.
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
"""All indicators by name, causes before their consequences. JSON, metrics, alerts and runbooks use these names."""


def health_of(situation: Situation, before: HealthReport | None = None) -> Generator[None, None, HealthReport]:
    """Evaluate all indicators, in slices, because the time grows with the number of nodes. `before` is the report of
    the last look.
    """
    found: list[Indicator] = []
    for look in INDICATORS.values():
        found.append(look(situation))
        yield
    return HealthReport.after(before, found, situation.snapshot.about.now_us)
