"""The process of a node that makes bulk parts, from the node's side: the first part starts it, and it ends when idle.

It makes one part at a time, and its answer is read to the end. A part whose reader leaves is ended, so that it holds
up no other for long. Whatever goes wrong, the part is declined, and the node makes it row by row.

The answer comes through a pipe, and its pieces are passed on as they are: to join or copy a part of 4 MB takes
milliseconds in which no lookup is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import marshal
import os
import pickle
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import count, islice
from time import monotonic
from typing import Final, cast

from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.base import Base, EmptyBase, innermost
from understudy_node.engine.rocksdb_base import RocksBase
from understudy_node.engine.view import Spill, StateView, Tier
from understudy_node.generations import Generation
from understudy_node.questions.export.bulk.pipe import (
    LENGTH_BYTES,
    AskedPart,
    Declined,
    Drop,
    Dropped,
    Forget,
    GenerationStores,
    Made,
    OpenBase,
    OpenSpill,
    PartCancelledError,
    TierChanges,
    ViewParts,
    encoded,
    length_of,
)
from understudy_node.questions.export.parts import BulkQuestion, MadePart
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.background import shielded
from understudy_shared.base.processes import module_command
from understudy_shared.questions.scan.long_reads import turn_of_part
from understudy_shared.questions.scan.page import Place, Room

log = logging.getLogger(__name__)

MAX_REASONS = 16
"""Number of reasons that are logged of one process."""

_TASK_FIELDS = tuple(each.name for each in fields(TaskView) if each.name != "stores")


MAX_LAYERS: Final = 64
MAX_TIERS_BYTES: Final = 256 * 1024 * 1024
"""Memory of the tiers that the process keeps, besides those of the views that it reads."""

CHANGES_AT_ONCE: Final = 4_096
"""Number of changes in one message: making it takes below a millisecond of the node's loop."""

Layer = Base | Spill | Tier
Message = OpenBase | OpenSpill | TierChanges | Forget


PIPE_BYTES: Final = 128 * 1024
"""Size of the pipe, and so of a piece: a loop passes one on in a tenth of a millisecond."""


class GoneError(Exception):
    """The process has ended in the middle of an answer."""


class AnswerReader(asyncio.Protocol):
    """The reading end of the pipe. Only one answer is awaited at a time, and the process sends no other."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size_bytes = 0
        self._wanted_bytes = 0
        self._has_ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size_bytes += len(data)
        if self._size_bytes >= self._wanted_bytes:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        self._wake()

    def close(self) -> None:
        """Close the pipe."""
        if self._transport is not None:
            self._transport.close()

    async def exactly(self, size: int) -> tuple[bytes, ...]:
        """Return the next `size` bytes, in pieces. Raises GoneError when the pipe ends before them."""
        while self._size_bytes < size:
            if self._has_ended:
                raise GoneError("it ended in the middle of an answer")
            self._wanted_bytes, self._waiter = size, asyncio.get_running_loop().create_future()
            await self._waiter
        self._size_bytes -= size
        taken: list[bytes] = []
        while size:
            piece = self._pieces.popleft()
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
                piece = piece[:size]
            taken.append(piece)
            size -= len(piece)
        return tuple(taken)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(slots=True)
class _KnownLayer:
    layer: Layer
    number: int
    bytes: int


class Handover:
    """The layers that a process has, and the messages that give it those of a view.

    A view is made of layers that never change: a base or a spill, which the process opens itself, or a tier, whose
    changes are sent to it. Each layer is handed over once, and the last used ones stay, so those of the next version
    are mostly there. The node keeps a layer for as long as the process has it: its files stay, and no other object gets
    its identity.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[int, _KnownLayer] = OrderedDict()
        self._numbers = count(1)

    def views(self, views: Mapping[str, StateView]) -> tuple[dict[str, ViewParts], Iterator[Message]] | None:
        """Return the views as the process knows them, and the messages that have to come first, to be sent whole; None
        for a base of which it cannot have the files.
        """
        messages: list[Iterator[Message]] = []
        found: dict[str, ViewParts] = {}
        used: set[int] = set()
        for name, view in views.items():
            if not isinstance(innermost(view.base), RocksBase | ArenaBase | EmptyBase):
                return None
            layers: list[Layer] = [view.base, *view.tiers, *([] if view.spill is None else [view.spill])]
            numbers = [self._number(layer, messages) for layer in layers]
            used.update(numbers)
            tiers = tuple(numbers[1 : 1 + len(view.tiers)])
            spill = None if view.spill is None else numbers[-1]
            found[name] = ViewParts(view.version, view.base_version, numbers[0], tiers, spill)
        forgotten = self._forget(used)
        if forgotten:
            messages.append(iter([Forget(forgotten)]))
        return found, (message for each in messages for message in each)

    def _number(self, layer: Layer, messages: list[Iterator[Message]]) -> int:
        known = self._known.get(id(layer))
        if known is not None:
            self._known.move_to_end(id(layer))
            return known.number
        number = next(self._numbers)
        self._known[id(layer)] = _KnownLayer(layer, number, layer.resident_bytes if isinstance(layer, Tier) else 0)
        messages.append(_messages(layer, number))
        return number

    def _forget(self, used: set[int]) -> tuple[int, ...]:
        """Forget the layers that were not used for longest, as far as there are too many."""
        forgotten = []
        tiers_bytes = sum(known.bytes for known in self._known.values())
        for key, known in list(self._known.items()):
            if len(self._known) <= MAX_LAYERS and tiers_bytes <= MAX_TIERS_BYTES:
                break
            if known.number not in used:
                del self._known[key]
                tiers_bytes -= known.bytes
                forgotten.append(known.number)
        return tuple(forgotten)


def _messages(layer: Layer, number: int) -> Iterator[Message]:
    match layer:
        case Tier():
            return _changes(layer, number)
        case Spill():
            return iter([OpenSpill(number, str(layer.directory))])
        case _:
            base = innermost(layer)
            return iter([OpenBase(number, str(base.directory) if isinstance(base, RocksBase | ArenaBase) else "")])


def _changes(tier: Tier, number: int) -> Iterator[TierChanges]:
    pairs = iter(tier.changes.items())
    left = len(tier.changes)
    while True:
        some = list(islice(pairs, CHANGES_AT_ONCE))
        left -= len(some)
        yield TierChanges(number, tier.first_version, tier.last_version, marshal.dumps(some), is_last=left <= 0)
        if left <= 0:
            return


class Conversation:
    """The conversation with one process. One part is asked for at a time."""

    def __init__(self, process: Process, answers: AnswerReader) -> None:
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

    async def part(
        self, generation: Generation, reader: StoreReader, wanted: AskedPart, view: TaskView
    ) -> MadePart | None:
        """Have a part made; None for one that is declined. Raises GoneError when the process ends, and
        PartCancelledError for one that was dropped.
        """
        handed = self._handover.views(view.stores)
        if handed is None:
            return None
        views, layers = handed
        if generation is not self._generation:
            self._generation, self._stores = generation, self._stores + 1
            made_of = {
                "description": generation.description,
                "aliases": dict(generation.aliases),
                "application_id": reader.application_id,
                "row_prefix": reader.row_prefix,
                "max_key_bytes": reader.max_key_bytes,
            }
            await self._send(GenerationStores(self._stores, made_of))
        for message in layers:
            await self._send(message)
        await self._send(wanted._replace(stores=self._stores, views=views))
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


WORKER: Final = "understudy_node.questions.export.bulk.worker"

IDLE_S = 60.0
"""Time without parts after which the process ends: it takes half a second and 60 MB to have one."""

MAX_WAITING = 16
"""Number of parts that wait for the one that is made; more are declined."""

LIMIT_S = 60.0
"""Time beyond a part's own until the process is killed: on a busy machine it may have to start, to open a base of many
files, and to sort the keys of ten millions.
"""

START_AGAIN_S: Final = 5.0
"""Time until a new process is started after one that failed with its first part: the next may fail so, too."""


class BulkProcess:
    """The maker of bulk parts. `generation` returns the one that the node serves, None before there is one.

    Used on the serving loop. `started`, `made`, `declined` and `dropped` are counts, for metrics and tests.
    """

    def __init__(self, generation: Callable[[], Generation | None]) -> None:
        self.started = self.made = self.declined = self.dropped = 0
        self._generation = generation
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._conversation: Conversation | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._start_again_s = 0.0
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The id of the process, while there is one."""
        return None if self._conversation is None else self._conversation.process.pid

    async def part(self, asked: BulkQuestion, reading: Reading, place: Place, room: Room) -> MadePart | None:
        """Return a part; None for one that is declined, which the node makes row by row. It ends at `room.bytes` or
        `room.rows`, or at `room.until_s`, and looks at one key at least. `room.is_confined` is never set. Cancel it
        when the reader has left.
        """
        generation, reader = self._generation(), asked.maker.reader
        is_served = generation is not None and generation.readers.get(reader.store.name) is reader
        if generation is None or not is_served or self._is_closed or self._waiting >= MAX_WAITING:
            return None
        wanted = _asked(asked, reading, place, room)
        self._waiting += 1
        try:
            await turn_of_part(self._turn)
        finally:
            self._waiting -= 1
        # A reader who leaves must not cut the answer off, as the next would get the rest: the process ends it.
        making = asyncio.get_running_loop().create_task(self._made(generation, reader, wanted, reading.view))
        self._tasks.add(making)
        making.add_done_callback(self._done)
        try:
            found = await shielded(making)
        except asyncio.CancelledError:
            if self._conversation is not None and not making.done():
                self._conversation.drop()
            raise
        self.made += found is not None
        self.declined += found is None
        return found

    async def close(self) -> None:
        """End the process; further parts are declined."""
        self._is_closed = True
        self._end("the node ends")
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _done(self, task: asyncio.Task[MadePart | None]) -> None:
        self._tasks.discard(task)
        self._turn.release()

    async def _made(
        self, generation: Generation, reader: StoreReader, wanted: AskedPart, view: TaskView
    ) -> MadePart | None:
        if self._idle is not None:
            self._idle.cancel()
        try:
            async with asyncio.timeout(wanted.budget_ms / 1000 + LIMIT_S):
                if self._conversation is None and not await self._start():
                    return None
                assert self._conversation is not None, "it has started"
                return await self._conversation.part(generation, reader, wanted, view)
        except PartCancelledError:
            self.dropped += 1
            return None
        except Exception as error:  # An export is never worse off than without this process.
            if self._conversation is None or not self._conversation.has_made:
                self._start_again_s = monotonic() + START_AGAIN_S
            if not self._is_closed:
                why = "it does not answer in time" if isinstance(error, TimeoutError) else repr(error)
                log.warning("the process for exports failed: %s", why, extra={"action": "bulk-process-failed"})
            self._end("it failed")
            return None
        finally:
            if not self._is_closed:
                self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end, "no export needs it")

    async def _start(self) -> bool:
        """Start the process, unless one failed a moment ago."""
        if self._is_closed or monotonic() < self._start_again_s:
            return False
        answers, theirs = await _answers_pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *module_command(WORKER, str(os.getpid())),
                stdin=PIPE,
                stdout=theirs,
                start_new_session=True,  # Ctrl-C on the terminal is for the node, which ends it
            )
        except BaseException:
            answers.close()
            raise
        finally:
            os.close(theirs)
        self.started += 1
        self._conversation = Conversation(process, answers)
        log.info("a process for exports starts", extra={"action": "bulk-process-started"})
        if self._is_closed:
            self._end("the node ends")
        return not self._is_closed

    def _end(self, why: str) -> None:
        """Kill the process: it has nothing to lose. What it had open is closed with it."""
        conversation, self._conversation = self._conversation, None
        if self._idle is not None:
            self._idle.cancel()
        if conversation is None:
            return
        log.info("the process for exports ends: %s", why, extra={"action": "bulk-process-ended"})
        with contextlib.suppress(ProcessLookupError):  # it has ended
            conversation.process.kill()
        conversation.answers.close()
        waiting = asyncio.get_running_loop().create_task(_reaped(conversation.process))
        self._tasks.add(waiting)
        waiting.add_done_callback(self._tasks.discard)


def _asked(asked: BulkQuestion, reading: Reading, place: Place, room: Room) -> AskedPart:
    """Return the part that is asked for, without its stores and views, of which a conversation knows the numbers."""
    maker = asked.maker
    assert room.rows is not None, "exports say how many rows"
    return AskedPart(
        stores=0,
        store=maker.reader.store.name,
        partition=place.partition,
        question=asked.question,
        selection=maker.selection,
        longs_as_text=maker.longs_as_text,
        format=asked.format,
        task={name: getattr(reading.view, name) for name in _TASK_FIELDS},
        views={},
        after=place.after,
        rows=room.rows,
        bytes=room.bytes,
        budget_ms=(room.until_s - monotonic()) * 1000,
    )


async def _answers_pipe() -> tuple[AnswerReader, int]:
    """Make the pipe for answers; return what reads it, and the descriptor of the other end."""
    ours, theirs = os.pipe()
    with contextlib.suppress(OSError):  # the user has too many large pipes: this one keeps the usual size
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    _, answers = await asyncio.get_running_loop().connect_read_pipe(AnswerReader, os.fdopen(ours, "rb", buffering=0))
    return answers, theirs


async def _reaped(process: Process) -> None:
    """Wait for the end of a process, and of the pipe to it: with unread bytes, the pipe would outlive the process."""
    stdin = process.stdin
    if stdin is not None:
        stdin.transport.abort()
    await process.wait()
    if stdin is not None:
        with contextlib.suppress(OSError):  # what broke the pipe
            await stdin.wait_closed()
