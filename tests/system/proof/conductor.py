"""Runs a schedule against the world: waits for each step's time, injects, heals, waits until all is well, records."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.system.proof import faults
from tests.system.proof.history import FaultEvent, FaultPhase
from tests.system.proof.schedule import MIN_GAP_S, Schedule, Step
from tests.system.proof.world import World

READY_LIMIT_S = 30.0


class Conductor:
    """One run of a schedule. `tick` is called often while it waits."""

    def __init__(self, world: World, record: Callable[[FaultEvent], None], tick: Callable[[], None]) -> None:
        self._world = world
        self._record = record
        self._tick = tick
        self._open: list[tuple[float, Step, faults.Fault]] = []
        """What is injected now, with when it is to be healed; companions lie within what they accompany."""
        self._free_s = 0.0

    def run(self, schedule: Schedule) -> None:
        """Run the schedule from now to its end."""
        began_s = time.monotonic()
        for step in schedule.steps:
            while self._open and not self._accompanies(step, began_s):
                self._heal_innermost()
            self._wait_until(max(began_s + step.at_s, self._free_s))
            self._inject(step)
        while self._open:
            self._heal_innermost()
        self._wait_until(began_s + schedule.ends_s)

    def end(self) -> None:
        """Heal what is injected, even after an error."""
        while self._open:
            self._heal_innermost()

    def _accompanies(self, step: Step, began_s: float) -> bool:
        """Whether it begins within the innermost one, as planned: what took its time shifts all that follows."""
        _, outer, _ = self._open[-1]
        return step.at_s < outer.until_s and began_s + step.at_s < self._open[-1][0]

    def _inject(self, step: Step) -> None:
        try:
            fault = faults.make(self._world, step.fault, step.target)
        except faults.SkippedFault as reason:
            self._note(step.fault, step.target, "skipped", str(reason))
            return
        self._note(step.fault, fault.target, "injected")
        self._open.append((time.monotonic() + step.duration_s, step, fault))
        fault.inject()

    def _heal_innermost(self) -> None:
        due_s, step, fault = self._open[-1]
        self._wait_until(due_s)
        self._open.pop()
        fault.heal()
        why = self._wait_for_target(fault.target) if self._open else self._world.settle()
        self._note(step.fault, fault.target, "healed", f"but {why}" if why else "")
        self._free_s = time.monotonic() + MIN_GAP_S

    def _wait_for_target(self, target: str) -> str:
        """While something else is still broken only the target itself can get well."""
        service = self._world.nodes.get(target) or self._world.routers.get(target)
        until_s = time.monotonic() + READY_LIMIT_S
        while service is not None and not service.is_ready and time.monotonic() < until_s:
            time.sleep(0.1)
        return "" if service is None or service.is_ready else f"{target} is not ready"

    def _wait_until(self, at_s: float) -> None:
        while (left_s := at_s - time.monotonic()) > 0:
            self._tick()
            time.sleep(min(0.1, left_s))

    def _note(self, fault: str, target: str, phase: FaultPhase, detail: str = "") -> None:
        self._record(FaultEvent(time.monotonic() * 1000, fault, target, phase, detail))
