"""What a node is to hold: tasks and the role of each (pure).

Alone it holds every task as active. In a cluster its assignment says; one that was made for another number of
partitions says nothing of the tasks of this layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from understudy_shared.words import Role


@dataclass(frozen=True, slots=True)
class Duties:
    """`tasks` by task key, None for all of them as active. `partitions` of the layout it is about, None for any."""

    tasks: Mapping[str, Role] | None = None
    partitions: int | None = None

    def are_about(self, partitions: int) -> bool:
        """Whether they say anything of a layout with that many partitions."""
        return self.partitions in (None, partitions)

    def role_of(self, task: str) -> Role | None:
        """What the node is to be for a task; None when it is not to hold it."""
        return Role.ACTIVE if self.tasks is None else self.tasks.get(task)


EVERYTHING = Duties()
