"""Actives that moved from one node to another between two assignments (pure).

A node that dies may have thousands of actives. The report has one line for each pair of nodes: a line for each task
would push out of the report the event that made them move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from understudy_shared.bus.messages import Assignment

FEW = 3
"""Most tasks that a line names."""

MAX_LINES = 64


def promotions(before: Assignment, after: Assignment, place: Callable[[str], str] = str) -> Iterator[str]:
    """Yield a line for each pair of nodes of which one took tasks over from the other, those with most tasks first.
    `place` names a task for people.
    """
    moved: dict[tuple[str | None, str | None], list[str]] = {}
    for task, duty in after.tasks.items():
        known = before.tasks.get(task, duty)
        if known is not duty and known.active != duty.active:
            moved.setdefault((duty.active, known.active), []).append(task)
    by_number = sorted(moved.items(), key=lambda each: -len(each[1]))
    for (active, old), tasks in islice(by_number, MAX_LINES):
        more = f" and {len(tasks) - FEW} more" if len(tasks) > FEW else ""
        yield f"{active or 'nobody'} is active for {', '.join(map(place, tasks[:FEW]))}{more}, after {old or 'nobody'}"
