"""Readiness for machines, and health for an operator: the fault, its impact, its cause, and what to do (data).

Each indicator checks one thing; the worst state wins. A fault that clients notice is `hurt`; one that only removes a
reserve is `attention`. Nodes and routers report in the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Self

from understudy_shared.spark.temporal import utc_text


class Status(NamedTuple):
    """The reasons why a service is not ready, empty if it is ready; and the causes of its degradation."""

    reasons: tuple[str, ...] = ()
    causes: Mapping[str, str] = {}

    @property
    def http_status(self) -> int:
        return 503 if self.reasons else 200

    def document(self) -> dict[str, object]:
        degraded = "; ".join(self.causes.values()) or None
        return {"ready": not self.reasons, "reasons": list(self.reasons), "degraded": degraded}


MAX_AFFECTED = 100


class HealthState(IntEnum):
    """The state of an indicator; the higher one wins. The numbers are values of the metric `understudy_health`."""

    OK = 0
    ATTENTION = 1
    UNKNOWN = 2
    HURT = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Indicator:
    """One checked aspect of health. The texts are empty while it is ok."""

    name: str
    state: HealthState = HealthState.OK
    symptom: str = ""
    impact: str = ""
    cause: str = ""
    action: str = ""
    affected: tuple[str, ...] = ()

    @property
    def runbook(self) -> str:
        """Give the path of the runbook in the repository. A router shows it at /admin/runbooks/{name}."""
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
        """Say what is wrong and what to do. Impact and cause are fields of their own."""
        return f"{self.symptom}. Do: {self.action}"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """All indicators, causes before their consequences, and since when each is in its state."""

    indicators: tuple[Indicator, ...]
    since_us: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def after(cls, before: HealthReport | None, found: Sequence[Indicator], now_us: int) -> Self:
        """Make the current report. An indicator whose state has not changed keeps its time."""
        known = {} if before is None else {each.name: each.state for each in before.indicators}
        since_us = {
            each.name: before.since_us[each.name] if before and known.get(each.name) is each.state else now_us
            for each in found
        }
        return cls(tuple(found), since_us)

    @property
    def worst(self) -> Indicator:
        return max(self.indicators, key=lambda each: each.state)

    @property
    def headline(self) -> str:
        worst = self.worst
        return "all well" if worst.state is HealthState.OK else worst.sentence()

    def document(self) -> dict[str, object]:
        worst = self.worst
        return {
            "state": worst.state.word,
            "since": self._since(worst),
            "headline": self.headline,
            "runbook": None if worst.state is HealthState.OK else worst.runbook,
            "indicators": [each.document(self._since(each)) for each in self.indicators],
        }

    def _since(self, indicator: Indicator) -> str | None:
        return utc_text(self.since_us.get(indicator.name))
