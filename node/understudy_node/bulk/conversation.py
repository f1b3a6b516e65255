"""The words between a node and one process for bulk parts: what it has been told, and the part that it is asked for."""

from __future__ import annotations

import logging
import pickle
from asyncio.subprocess import Process
from dataclasses import fields

from understudy_node.bulk.answers import Answers, GoneError
from understudy_node.bulk.fast_part import PartCancelledError
from understudy_node.bulk.handover import Handover
from understudy_node.bulk.pipe import (
    LENGTH_BYTES,
    AskedPart,
    Declined,
    Drop,
    Dropped,
    GenerationStores,
    Made,
    ViewParts,
    encoded,
    length_of,
)
from understudy_node.generation import Generation
from understudy_node.replica.readings import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.bulk_parts import BulkQuestion, MadePart
from understudy_shared.reads.scan_page import Place, Room

log = logging.getLogger(__name__)

MAX_REASONS = 16
"""Number of reasons that are logged of one process."""

_TASK_FIELDS = tuple(each.name for each in fields(TaskView) if each.name != "stores")


class Conversation:
    """The conversation with one process. One part is asked for at a time."""

    def __init__(self, process: Process, answers: Answers) -> None:
        assert process.stdin is not None, "its pipe"
        self.process = process
        self.answers = answers
        self.has_made = False
        """Whether it has made a part."""
        self._in = process.stdin
        self._handover = Handover()
        self._generation: Generation | None = None
        self._stores = 0
        self._reasons: set[str] = set()

    async def part(  # noqa: PLR0917  # see `BulkMaker`
        self,
        generation: Generation,
        asked: BulkQuestion,
        reading: Reading,
        place: Place,
        room: Room,
        budget_s: float,
    ) -> MadePart | None:
        """Have a part made; None for one that is declined. Raises GoneError when the process ends, and
        PartCancelledError for one that was dropped.
        """
        handed = self._handover.views(reading.view.stores)
        if handed is None:
            return None
        views, layers = handed
        if generation is not self._generation:
            self._generation, self._stores = generation, self._stores + 1
            await self._send(GenerationStores(self._stores, stores_content(generation, asked)))
        for message in layers:
            await self._send(message)
        await self._send(self._asked(asked, reading, views, place, room, budget_s))
        size = length_of(b"".join(await self.answers.exactly(LENGTH_BYTES)))
        head = pickle.loads(b"".join(await self.answers.exactly(size)))  # noqa: S301
        if isinstance(head, Dropped):
            raise PartCancelledError
        if isinstance(head, Declined):
            self._note(head.reason)
            return None
        assert isinstance(head, Made), "its answers"
        pieces = await self.answers.exactly(head.size)
        self.has_made = True
        return MadePart(pieces, head.found, head.looked_at, head.after, head.is_end)

    def drop(self) -> None:
        """Have the part ended that is being made: its reader has left. It has an answer all the same."""
        if not self._in.is_closing():
            self._in.write(encoded(Drop()))

    def _note(self, reason: str) -> None:
        """Log why parts are declined, each reason once."""
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
            log.warning(
                "the process for exports cannot make a part, the node does: %s",
                reason,
                extra={"action": "bulk-declined"},
            )

    async def _send(self, message: object) -> None:
        if self._in.is_closing():
            raise GoneError("it has ended")
        self._in.write(encoded(message))
        await self._in.drain()

    def _asked(  # noqa: PLR0917  # see `BulkMaker`
        self,
        asked: BulkQuestion,
        reading: Reading,
        views: dict[str, ViewParts],
        place: Place,
        room: Room,
        budget_s: float,
    ) -> AskedPart:
        maker = asked.maker
        assert room.rows is not None, "exports say how many rows"
        return AskedPart(
            stores=self._stores,
            store=maker.reader.store.name,
            partition=place.partition,
            question=asked.question,
            selection=maker.selection,
            longs_as_text=maker.longs_as_text,
            format=asked.format,
            task={name: getattr(reading.view, name) for name in _TASK_FIELDS},
            views=views,
            after=place.after,
            rows=room.rows,
            bytes=room.bytes,
            budget_ms=budget_s * 1000,
        )


def stores_content(generation: Generation, asked: BulkQuestion) -> bytes:
    """Return what the readers of a generation are made of: the arguments of `store_readers`."""
    reader = asked.maker.reader
    return encoded(
        {
            "description": generation.description,
            "aliases": dict(generation.aliases),
            "application_id": reader.application_id,
            "row_prefix": reader.row_prefix,
            "max_key_bytes": reader.max_key_bytes,
        }
    )[LENGTH_BYTES:]
