"""The transport of large assignments: sent as changes to the previous one, and decoded in slices (pure).

An assignment of 100,000 replicas has four megabytes, and a dead node changes a few dozen of its tasks. A process that
lacks the assignment that a change is based on reads the whole one. Decoded in one piece, it would block lookups for a
few hundred milliseconds, so it is decoded and checked slice by slice. A document in another form than that of
`Assignment.encode` is decoded in one piece, with the same result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from understudy_shared.base.plausible import Order
from understudy_shared.bus.messages import (
    MAX_MESSAGE_BYTES,
    MAX_TASKS,
    AssignedTask,
    Assignment,
    BadMessageError,
    Count,
    Message,
    Name,
    NodeEndpoint,
    TaskKey,
)

MAX_SHARE = 0.5
"""The largest share of the tasks that a change may name. Above it, the whole assignment is not much longer."""


class AssignmentChange(Message):
    """The assignment of (term, epoch), by what differs from that of (base_term, base_epoch) by `base_written_by`.

    After a fail-over of Redis that lost writes, two nodes may have written the same term and epoch.
    """

    term: Count
    epoch: Count
    base_term: Count
    base_epoch: Count
    base_written_by: Name
    written_by: Name
    lineage: Name
    tasks: dict[TaskKey, AssignedTask] = Field(max_length=MAX_TASKS)
    """The tasks that are assigned otherwise."""
    members: dict[str, NodeEndpoint] = Field(default_factory=dict)
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
    """Return the change from `before` to `after`. Return None if the whole assignment must be sent: its tasks are other
    ones, or most of them are assigned otherwise.
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
        base_written_by=before.written_by,
        written_by=after.written_by,
        lineage=after.lineage,
        tasks=tasks,
        members={node_id: each for node_id, each in after.members.items() if before.members.get(node_id) != each},
        gone=sorted(before.members.keys() - after.members.keys()),
        unnamed=sorted(before.holders - after.holders),
        draining=after.draining,
    )


def apply_change(change: AssignmentChange, known: Assignment | None) -> Assignment | None:
    """Apply a change to the known assignment; return None if the change is not based on it."""
    if known is None or known.order != (change.base_term, change.base_epoch) or known.lineage != change.lineage:
        return None
    if known.written_by != change.base_written_by:
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


MIN_BYTES = 64 * 1024
"""Size from which a document is read in slices; a smaller one takes a few milliseconds in one piece."""

SLICE_BYTES = 32 * 1024
"""Size of a slice, about 450 tasks: a millisecond or two."""

M = TypeVar("M", bound=Message)

_NO_TASKS = b'"tasks":{}'
_TASKS = b',"tasks":{'
_END_OF_TASK = b']},"'
_END_OF_TASKS = b']}},"'
_SLICE = TypeAdapter(dict[TaskKey, AssignedTask])


async def decode(
    kind: type[M], document: bytes, *, application_id: str, where: str, give: Callable[[], Awaitable[None]]
) -> M:
    """Decode like `kind.decode`; a large assignment in slices: `give` lets other tasks run. Raises BadMessageError."""
    if kind is Assignment and MIN_BYTES <= len(document) <= MAX_MESSAGE_BYTES:
        slices = decode_slices(document, application_id=application_id, where=where)
        found: Assignment | None = None
        try:
            while True:
                next(slices)
                await give()
        except StopIteration as ended:
            found = ended.value
        except (ValidationError, BadMessageError):  # Decoding the whole document gives the reason.
            pass
        if isinstance(found, kind):
            return found
    return kind.decode(document, application_id=application_id, where=where)


def decode_slices(document: bytes, *, application_id: str, where: str) -> Generator[None, None, Assignment | None]:
    """Decode an assignment, with a `yield` before each slice; None when its text does not divide as expected.

    Raises ValidationError or BadMessageError when a part is malformed.

    The split is safe because three things are checked. The text before the tasks, closed with a brace, must be an
    object, so the tasks are a field of the document itself. Each slice in braces must be an object. The document
    without its tasks must be an assignment without tasks.
    """
    begin, end = document.find(_TASKS), document.find(_END_OF_TASKS)
    if not 0 < begin < end:
        return None
    Message.model_validate_json(document[:begin] + b"}")
    rest = document[:begin] + b"," + _NO_TASKS + document[end + 3 :]
    shell = Assignment.decode(rest, application_id=application_id, where=where)
    tasks: dict[str, AssignedTask] = {}
    holders: set[str] = set()
    at, last = begin + len(_TASKS), end + 2
    while at < last:
        yield
        # Cut after the task in which the slice reaches its size, so that no task is split.
        cut = document.find(_END_OF_TASK, at + SLICE_BYTES, last + 2)
        cut = last if cut < 0 else cut + 2
        few = _SLICE.validate_json(b"{" + document[at:cut] + b"}")
        tasks |= few
        holders.update(node_id for task in few.values() for node_id in task.holders)
        at = cut + 1
    if shell.tasks or len(tasks) > MAX_TASKS:
        return None
    found = shell.model_copy(update={"tasks": tasks})
    vars(found)["holders"] = frozenset(holders)  # as its cached property would
    return found
