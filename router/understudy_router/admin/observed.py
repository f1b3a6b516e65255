"""All that a router knows at one moment, and what it saw until then: the value of which every report is made (data)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from understudy_router.admin.reads_served import Rates, StoreServed
from understudy_router.admin.snapshot import Snapshot
from understudy_router.admin.trends import Trend
from understudy_shared.http.health import HealthReport

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Observed:
    """A snapshot, and what was seen over time until then."""

    snapshot: Snapshot
    rates: Rates = field(default_factory=Rates)
    staleness: Document = field(default_factory=dict)
    """The ages of the answers since the router started, as a histogram."""
    served: Mapping[str, StoreServed] = field(default_factory=dict)
    """The reads of the readers, by store."""
    trends: Mapping[str, Trend] = field(default_factory=dict)
    usual_commit_ms: float | None = None
    silent_ms: float = 0.0
    """Milliseconds since the end last changed."""
    restores: Sequence[Document] = ()
    disagreements: Sequence[Document] = ()
    health: HealthReport = field(default_factory=lambda: HealthReport(()))
    """The judgement of the indicators of all of this."""
    events: Sequence[Document] = ()
    snapshots: Sequence[Document] = ()
    """The snapshot leases that nodes hold, as of a moment ago."""
