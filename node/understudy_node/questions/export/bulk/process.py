"""The process of a node that makes bulk parts, from the node's side: the first part starts it, and it ends when idle.

It makes one part at a time, and its answer is read to the end. A part whose reader leaves is ended, so that it holds
up no other for long. Whatever goes wrong, the part is declined, and the node makes it row by row.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from time import monotonic
from typing import Final

from understudy_node.generations import Generation
from understudy_node.questions.export.bulk.conversation import PIPE_BYTES, Answers, Conversation
from understudy_node.questions.export.bulk.fast_part import PartCancelledError
from understudy_node.questions.export.bulk_parts import BulkQuestion, MadePart
from understudy_node.replica.read_views import Reading
from understudy_shared.base.background import shielded
from understudy_shared.base.processes import module_command
from understudy_shared.questions.scan.long_reads import turn_of_part
from understudy_shared.questions.scan.page import Place, Room

log = logging.getLogger(__name__)

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
        """See `BulkMaker`."""
        generation, reader = self._generation(), asked.maker.reader
        is_served = generation is not None and generation.readers.get(reader.store.name) is reader
        if generation is None or not is_served or self._is_closed or self._waiting >= MAX_WAITING:
            return None
        budget_s = room.until_s - monotonic()
        self._waiting += 1
        try:
            await turn_of_part(self._turn)
        finally:
            self._waiting -= 1
        # A reader who leaves must not cut the answer off, as the next would get the rest: the process ends it.
        making = asyncio.get_running_loop().create_task(self._made(generation, asked, reading, place, room, budget_s))
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

    async def _made(  # noqa: PLR0917  # see `BulkMaker`
        self,
        generation: Generation,
        asked: BulkQuestion,
        reading: Reading,
        place: Place,
        room: Room,
        budget_s: float,
    ) -> MadePart | None:
        if self._idle is not None:
            self._idle.cancel()
        try:
            async with asyncio.timeout(budget_s + LIMIT_S):
                if self._conversation is None and not await self._start():
                    return None
                assert self._conversation is not None, "it has started"
                return await self._conversation.part(generation, asked, reading, place, room, budget_s)
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


async def _answers_pipe() -> tuple[Answers, int]:
    """Make the pipe for answers; return what reads it, and the descriptor of the other end."""
    ours, theirs = os.pipe()
    with contextlib.suppress(OSError):  # the user has many large pipes: this one is as large as others
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    _, answers = await asyncio.get_running_loop().connect_read_pipe(Answers, os.fdopen(ours, "rb", buffering=0))
    return answers, theirs


async def _reaped(process: Process) -> None:
    """Wait for the end of a process, and of the pipe to it, which would outlive it with what is not read yet."""
    stdin = process.stdin
    if stdin is not None:
        stdin.transport.abort()
    await process.wait()
    if stdin is not None:
        with contextlib.suppress(OSError):  # what broke the pipe
            await stdin.wait_closed()
