"""Changes of assignments: the messages for processes that follow the assignment before (pure).

An assignment of 100,000 replicas has four megabytes, and a death changes a few dozen tasks of it. A process that does
not have the assignment that a change is based on reads the whole one.
"""

from __future__ import annotations

from pydantic import Field

from understudy_shared.base.plausible import Order
from understudy_shared.bus.messages import (
    MAX_TASKS,
    AssignedTask,
    Assignment,
    Count,
    Endpoint,
    Message,
    Name,
    TaskKey,
)

MAX_SHARE = 0.5
"""The largest share of the tasks that a change names: with more the whole assignment is not much longer."""


class AssignmentChange(Message):
    """The assignment of (term, epoch), by what differs from that of (base_term, base_epoch)."""

    term: Count
    epoch: Count
    base_term: Count
    base_epoch: Count
    written_by: Name
    lineage: Name
    tasks: dict[TaskKey, AssignedTask] = Field(max_length=MAX_TASKS)
    """The tasks that are assigned otherwise."""
    members: dict[str, Endpoint] = Field(default_factory=dict)
    """The members that are new or have another address."""
    gone: list[str] = Field(default_factory=list)
    """The nodes that are members no more."""
    unnamed: list[str] = Field(default_factory=list)
    """The nodes that lost their last task."""
    draining: list[str] = Field(default_factory=list)
    """All draining nodes."""

    @property
    def order(self) -> Order:
        return (self.term, self.epoch)


def change_between(before: Assignment, after: Assignment) -> AssignmentChange | None:
    """Return the change that makes `after` of `before`; None if the whole assignment is to be sent: it is of other
    tasks, or most of them are assigned otherwise.
    """
    if (before.lineage, before.partitions) != (after.lineage, after.partitions):
        return None
    if before.tasks.keys() != after.tasks.keys():
        return None
    tasks = {
        task: assigned
        for task, assigned in after.tasks.items()
        if (known := before.tasks[task]) is not assigned and known != assigned
    }
    if len(tasks) > MAX_SHARE * len(after.tasks):
        return None
    return AssignmentChange(
        application_id=after.application_id,
        term=after.term,
        epoch=after.epoch,
        base_term=before.term,
        base_epoch=before.epoch,
        written_by=after.written_by,
        lineage=after.lineage,
        tasks=tasks,
        members={node_id: each for node_id, each in after.members.items() if before.members.get(node_id) != each},
        gone=sorted(before.members.keys() - after.members.keys()),
        unnamed=sorted(before.holders - after.holders),
        draining=after.draining,
    )


def apply_change(change: AssignmentChange, known: Assignment | None) -> Assignment | None:
    """Return the assignment that a change makes of the known one; None if it is not based on that."""
    if known is None or known.order != (change.base_term, change.base_epoch) or known.lineage != change.lineage:
        return None
    if not change.tasks.keys() <= known.tasks.keys():
        return None
    gone = set(change.gone)
    found = known.model_copy(
        update={
            "term": change.term,
            "epoch": change.epoch,
            "written_by": change.written_by,
            "tasks": known.tasks | change.tasks,
            "members": {each: known.members[each] for each in known.members if each not in gone} | change.members,
            "draining": change.draining,
        }
    )
    named = {node_id for task in change.tasks.values() for node_id in task.holders}
    vars(found)["holders"] = (known.holders - set(change.unnamed)) | named  # as its cached property would
    return found
