"""What an indicator of health says, and what it is made of (data)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from understudy_router.admin.disagreement import Disagreement
from understudy_router.admin.facts import NodeView
from understudy_router.admin.reads_served import Rates
from understudy_router.admin.snapshot import Snapshot
from understudy_router.admin.trends import Trend
from understudy_shared.auth.binding import Exposure

FEW = 3
"""Most names in a sentence."""

MAX_AFFECTED = 100


class State(IntEnum):
    """A higher one wins. The numbers are values of the metric `understudy_health`."""

    OK = 0
    ATTENTION = 1
    UNKNOWN = 2
    HURT = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Indicator:
    """One thing that is looked at. The texts are empty while it is ok."""

    name: str
    state: State = State.OK
    symptom: str = ""
    impact: str = ""
    cause: str = ""
    action: str = ""
    affected: tuple[str, ...] = ()

    @property
    def runbook(self) -> str:
        """What to do, as a path in the repository; the router shows it at /admin/runbooks/{name}."""
        return f"docs/runbooks/{self.name}.md"

    def document(self, since: str | None = None) -> dict[str, object]:
        return {
            "name": self.name,
            "state": self.state.word,
            "since": since,
            "symptom": self.symptom,
            "impact": self.impact,
            "cause": self.cause,
            "action": self.action,
            "runbook": self.runbook,
            "affected": list(self.affected[:MAX_AFFECTED]),
        }

    def sentence(self) -> str:
        """What is wrong, and what to do. Impact and cause stand below it."""
        return f"{self.symptom}. Do: {self.action}"


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known besides the snapshot."""

    snapshot: Snapshot
    rates: Rates = field(default_factory=Rates)
    usual_commit_ms: float | None = None
    silent_ms: float = 0.0
    """Since the end last changed."""
    trends: Sequence[tuple[str, Trend]] = ()
    disagreements: Sequence[Disagreement] = ()
    causes: Mapping[str, str] = field(default_factory=dict)
    """The reasons why this router's process is degraded, by cause."""
    exposure: Exposure | None = None
    """What of this router is open to others than this machine."""


def store_partitions(snapshot: Snapshot, tasks: Sequence[int]) -> tuple[str, ...]:
    """The store partitions of the first tasks, as `store/partition`."""
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
    """The first names, and how many more there are."""
    known = list(dict.fromkeys(names))
    return ", ".join(known[:FEW]) + (f" and {len(known) - FEW} more" if len(known) > FEW else "")


def be(views: Sequence[object]) -> str:
    return "is" if len(views) == 1 else "are"
