"""The tasks that a node is to hold, and the role of each (pure).

A node without a cluster holds every task as active. In a cluster the assignment decides; an assignment for another
number of partitions does not apply to the tasks of this layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from understudy_shared.base.words import Role


@dataclass(frozen=True, slots=True)
class Duties:
    """`tasks`: role by task key, None for all tasks as active. `partitions`: the layout they apply to, None for any."""

    tasks: Mapping[str, Role] | None = None
    partitions: int | None = None

    def are_about(self, partitions: int) -> bool:
        """Whether they apply to a layout with that many partitions."""
        return self.partitions in (None, partitions)

    def role_of(self, task: str) -> Role | None:
        """Return the node's role for a task; None when it is not to hold it."""
        return Role.ACTIVE if self.tasks is None else self.tasks.get(task)


EVERYTHING = Duties()
