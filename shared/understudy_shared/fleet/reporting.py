"""The report of a fleet on its applications: the state of each, whether the process is ready, its metrics (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from understudy_shared.base.texts import clipped
from understudy_shared.fleet.dispatching import Served
from understudy_shared.http.status import Status
from understudy_shared.spark.times import utc_text

MAX_NAMED = 10
"""Applications that a sentence about the whole names."""

LABEL = "application"


class State(StrEnum):
    """The state of an application in a fleet."""

    OPENING = "opening"

    WAITING = "waiting"
    """The application waits for its checkpoint, its first commit, or an answer of its storage."""
    RESTORING = "restoring"
    SERVING = "serving"
    IDLE = "idle"
    """The application has had no nodes for a while; at a node, no commits and no announcements for long."""
    FAILED = "failed"
    """The application cannot be opened as it is; that is tried again."""


@dataclass(frozen=True, slots=True)
class ApplicationReport:
    """One application, as the list of a fleet shows it."""

    application_id: str
    checkpoint: str
    """Its location, without secrets; empty where it is not known, as at routers."""
    state: State
    since_us: int
    """The wall time at which it came into this state."""
    reason: str | None = None
    """The reason why it is not served, or only in part; None: it is."""
    source: str = "file"
    """The place that names it: `command`, `file`, `announced`, or `heard` for one whose nodes were heard."""
    stores: tuple[str, ...] = ()
    end_offset_position: int | None = None
    max_offset_lag: int | None = None
    max_time_lag_ms: int | None = None

    def document(self) -> dict[str, object]:
        return {
            "application": self.application_id,
            "checkpoint": self.checkpoint or None,
            "state": self.state,
            "since": utc_text(self.since_us),
            "reason": self.reason,
            "source": self.source,
            "stores": list(self.stores),
            "end_offset_position": self.end_offset_position,
            "max_offset_lag": self.max_offset_lag,
            "max_time_lag_ms": self.max_time_lag_ms,
        }


class Reported(Served, Protocol):
    """An application of a fleet that reports on itself."""

    @property
    def was_ready(self) -> bool:
        """Whether it was ready once since the process started."""

    @property
    def dead(self) -> str | None:
        """The bug that ended it; None while it lives."""

    def report(self) -> ApplicationReport: ...

    async def leave(self) -> None:
        """Announce that it ends; it still answers."""

    def status(self) -> Status:
        """Return its readiness, and its causes of being degraded."""

    def metrics(self) -> Iterable[Metric]:
        """Return its own families, without those of the process."""


def readiness(applications: Mapping[str, Reported]) -> Status:
    """Judge the process: not ready until each application that can be opened was ready once or has failed; later, once
    there is no ready one.

    One broken checkpoint must not stop a rolling restart, and a restart must not be quicker than its restores.
    """
    statuses = {each: application.status() for each, application in applications.items()}
    waiting, ready = [], 0
    for application_id, application in applications.items():
        if statuses[application_id].http_status == 200:
            ready += 1
        elif not application.was_ready and application.report().state in {State.OPENING, State.RESTORING}:
            waiting.append(application_id)
    reasons = [f"{clipped(each)}: {'; '.join(statuses[each].reasons)}" for each in waiting[:MAX_NAMED]]
    if len(waiting) > MAX_NAMED:
        reasons.append(f"{len(waiting) - MAX_NAMED} more applications are not ready")
    if not waiting and applications and not ready:
        reasons = [f"none of {len(applications)} applications is ready"]
    causes: dict[str, str] = {}
    for application_id, status in statuses.items():
        for cause, why in status.causes.items():
            causes.setdefault(cause, f"{clipped(application_id)}: {why}")
    return Status(tuple(reasons), causes)


def state_metrics(applications: Mapping[str, Reported]) -> Iterable[Metric]:
    """Yield the state of each application: one that was never opened has no other series."""
    family = GaugeMetricFamily(
        "understudy_application_state", "1; the state of an application of a fleet", labels=(LABEL, "state")
    )
    for application_id, application in applications.items():
        family.add_metric((application_id, application.report().state), 1)
    yield family


def labelled(families: Mapping[str, Iterable[Metric]], of_process: Iterable[Metric] = ()) -> Iterator[Metric]:
    """Yield the families of the process, whose samples have no such label, and those of all applications, by their ids:
    one of each name, with all samples.
    """
    found = {family.name: family for family in of_process}
    for application_id, own in families.items():
        for family in own:
            whole = found.get(family.name)
            if whole is None:
                whole = found[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
            whole.samples += [_labelled(sample, application_id) for sample in family.samples]
    yield from found.values()


def _labelled(sample: Sample, application_id: str) -> Sample:
    return sample._replace(labels={LABEL: application_id, **sample.labels})
