"""The places in which statements run: a DuckDB and a thread for each, so that memory and work are bounded.

The parts of a statement that block run in the thread of its place. The loop may cancel it at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from understudy.sql.engine import Engine
from understudy.sql.errors import SqlError
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.supervise import shielded

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_CANCEL_AGAIN_S = 0.5
_STOPPED = "the statement was stopped"


class Found(Protocol):
    """An answer whose rows are read as they are taken."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""


Open = Callable[[Engine], AbstractContextManager[Found]]
"""A function that runs a statement by an engine; the end of its block ends the statement."""


class Places:
    """As many places as statements may run at once. The others wait, until their deadlines."""

    def __init__(self, number: int, memory_limit: str) -> None:
        """Prepare places; `memory_limit` is that of each. DuckDB is started by the first statement of a place."""
        self.number, self._memory_limit = number, memory_limit
        self._free = asyncio.Semaphore(number)
        self._threads = ThreadPoolExecutor(number, "understudy-sql")
        self._engines: list[Engine] = []
        self.running: set[Statement] = set()

    async def begin(self, open_: Open, cancel: Callable[[], None]) -> Statement:
        """Wait for a place and return a statement for it; `cancel` stops the statement when it blocks."""
        await self._free.acquire()
        statement = Statement(self, open_, cancel)
        self.running.add(statement)
        return statement

    async def call(self, act: Callable[[], T]) -> T:
        """Do something that blocks, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    def engine(self) -> Engine:
        """Return an engine that no statement uses."""
        return self._engines.pop() if self._engines else Engine(self._memory_limit)

    def leave(self, statement: Statement, engine: Engine | None) -> None:
        """Take back the place of a statement that has ended."""
        if engine is not None:
            self._engines.append(engine)
        self.running.discard(statement)
        self._free.release()

    async def close(self) -> None:
        """Wait for the statements to end, and stop the engines."""
        for each in list(self.running):
            await each.close()
        await asyncio.to_thread(self._threads.shutdown)
        for engine in self._engines:
            engine.close()


class Statement:
    """A statement on its way. After `close` its place is free, as soon as what blocks has ended."""

    def __init__(self, places: Places, open_: Open, cancel: Callable[[], None]) -> None:
        self._places, self._open, self._cancel = places, open_, cancel
        self._stack = ExitStack()
        self._engine: Engine | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._part: asyncio.Future[Any] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._is_cancelled = False
        self.version: int | None = None
        """The version of the stores that it reads, when it has started."""

    async def start(self) -> pa.Schema:
        """Start it, and return the columns of its rows."""
        return await self._call(lambda: self._stoppable(self._started))

    async def next(self) -> pa.RecordBatch | None:
        """Return the next rows; None at the end."""
        return await self._call(lambda: self._stoppable(lambda: next(self._batches, None)))

    def cancel(self) -> None:
        """Stop it: what blocks raises an error."""
        self._is_cancelled = True
        self._cancel()

    def close(self) -> asyncio.Future[None]:
        """End it, and give its place back. Returns what is done when that has happened."""
        if self._closing is None:
            self.cancel()
            self._closing = asyncio.ensure_future(self._closed())
        return self._closing

    async def _call(self, act: Callable[[], T]) -> T:
        """Do a part of the statement in its thread. A part that is no longer waited for ends all the same."""
        part = self._part = asyncio.ensure_future(self._places.call(act))
        return await shielded(part)

    async def _closed(self) -> None:
        try:
            while self._part is not None and not (await asyncio.wait({self._part}, timeout=_CANCEL_AGAIN_S))[0]:
                self._cancel()  # it had not begun to work when it was stopped
            if self._part is not None:
                self._part.exception()  # it was raised to who waited, or is of no use any more
            await self._places.call(self._stack.close)
        except Exception:  # noqa: S110
            pass  # the errors of a statement were raised before
        finally:
            self._places.leave(self, self._engine)

    def _started(self) -> pa.Schema:
        self._engine = self._places.engine()
        answer = self._stack.enter_context(self._open(self._engine))
        self._batches = answer.batches()
        self.version = getattr(answer, "version", None)
        return answer.schema

    def _stoppable(self, act: Callable[[], T]) -> T:
        """Do a part of the statement. One that was stopped raises SqlError."""
        if self._is_cancelled:
            raise SqlError(_STOPPED, where="SQL", fix="Run it again")
        try:
            return act()
        except KeyboardInterrupt:
            raise SqlError(_STOPPED, where="SQL", fix="Run it again") from None
        except UnderstudyError:
            if self._is_cancelled:
                raise SqlError(_STOPPED, where="SQL", fix="Run it again") from None
            raise
