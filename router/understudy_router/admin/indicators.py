"""Health as an operator needs it: the fault, the readers that it hurts, the cause, and the remedy (pure).

Each indicator looks at one thing, and shows the first fault that it finds. The worst state wins; of two that are
equally bad the cause comes before its consequence. A fault that readers notice is `hurt`, one that takes away a reserve
is `attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace

from understudy_router.admin.cluster_faults import access, agreement, bus, degraded, nodes, redundancy, restores
from understudy_router.admin.reader_faults import checkpoint, freshness, query, reads
from understudy_router.admin.snapshot import Observed
from understudy_shared.http.health import HealthReport, Indicator

INDICATORS: Mapping[str, Callable[[Observed], Iterator[Indicator]]] = {
    faults.__name__: faults
    for faults in (
        reads, checkpoint, query, nodes, bus, freshness, restores, redundancy, degraded, agreement, access,
    )
}  # fmt: skip
"""All indicators by name, causes before their consequences. JSON, metrics, alerts and runbooks use these names."""


def health_of(seen: Observed, before: HealthReport | None = None) -> Generator[None, None, HealthReport]:
    """Evaluate all indicators, in slices, because the time grows with the number of nodes. `before` is the report of
    the last look.
    """
    found: list[Indicator] = []
    for name, faults in INDICATORS.items():
        found.append(replace(next(faults(seen), Indicator(name)), name=name))
        yield
    return HealthReport.after(before, found, seen.snapshot.about.now_us)
