"""Reads a large assignment in slices, so that a loop can do other work in between (pure).

An assignment of 100,000 replicas has four megabytes, and takes a few hundred milliseconds to read and check: in one
piece, no lookup would be answered meanwhile. Each slice is read and checked as the whole would be. A document that is
not written as `Assignment.encode` writes it is read in one piece, with the same result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from understudy_shared.bus.messages import (
    MAX_MESSAGE_BYTES,
    MAX_TASKS,
    AssignedTask,
    Assignment,
    BadMessageError,
    Message,
    TaskKey,
)

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
    """Decode as `kind.decode`, a large assignment in slices: `give` lets other tasks run. Raises BadMessageError."""
    if kind is Assignment and MIN_BYTES <= len(document) <= MAX_MESSAGE_BYTES:
        slices = decode_slices(document, application_id=application_id, where=where)
        found: Assignment | None = None
        try:
            while True:
                next(slices)
                await give()
        except StopIteration as ended:
            found = ended.value
        except (ValidationError, BadMessageError):  # Decoding the whole document says what is wrong with it.
            pass
        if isinstance(found, kind):
            return found
    return kind.decode(document, application_id=application_id, where=where)


def decode_slices(document: bytes, *, application_id: str, where: str) -> Generator[None, None, Assignment | None]:
    """Decode an assignment, with a `yield` before each slice; None when its text does not divide as expected.

    Raises ValidationError or BadMessageError when a part is malformed.

    The split is proved correct: the text before the tasks must be an object when it is closed there, so that the tasks
    are a field of the document itself; each slice must be an object when it is put into braces; and the document
    without them must be an assignment without tasks.
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
        # Behind the task in which the slice reaches its size: it is cut between two tasks only.
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
