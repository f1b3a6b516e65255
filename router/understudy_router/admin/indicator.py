"""Names of the health indicators, and words for them (data)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from understudy_router.admin.disagreement import Disagreement
from understudy_router.admin.facts import NodeView
from understudy_router.admin.reads_served import Rates
from understudy_router.admin.snapshot import Snapshot
from understudy_router.admin.trends import Trend
from understudy_shared.auth.binding import Exposure
from understudy_shared.http.health import MAX_AFFECTED

FEW = 3
"""Most names in a sentence."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts from which the indicators judge."""

    snapshot: Snapshot
    rates: Rates = field(default_factory=Rates)
    usual_commit_ms: float | None = None
    silent_ms: float = 0.0
    """Milliseconds since the end last changed."""
    trends: Sequence[tuple[str, Trend]] = ()
    disagreements: Sequence[Disagreement] = ()
    causes: Mapping[str, str] = field(default_factory=dict)
    """The reasons why this router's process is degraded, by cause."""
    exposure: Exposure | None = None
    """The part of this router that other machines can reach."""


def store_partitions(snapshot: Snapshot, tasks: Sequence[int]) -> tuple[str, ...]:
    """Return the store partitions of the first tasks, as `store/partition`."""
    layout = snapshot.layout
    found: list[str] = []
    for task in tasks[:MAX_AFFECTED]:
        operator = layout.operator_of(task)
        found += [f"{store}/{task - operator.first}" for store in layout.stores_of[operator.operator_id]]
    return tuple(found)


def store_partitions_in_all(snapshot: Snapshot) -> int:
    return sum(route.partitions for route in snapshot.layout.routes)


def ids(views: Iterable[NodeView]) -> tuple[str, ...]:
    return tuple(view.node_id for view in views)


def named(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    known = list(dict.fromkeys(names))
    return ", ".join(known[:FEW]) + (f" and {len(known) - FEW} more" if len(known) > FEW else "")


def be(views: Sequence[object]) -> str:
    return "is" if len(views) == 1 else "are"
