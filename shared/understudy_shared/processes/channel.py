"""The channel between the supervisor and a worker process, over a socket pair: JSON in frames with a length.

Both sides may ask, and notify without an answer. Either side notices the end of the other by the end of the channel. An
ask has a deadline, a frame a size limit, and each side answers MAX_ASKS asks at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Limit on a frame: above the metrics of a node with 100,000 tasks."""

MAX_ASKS = 16
"""Number of asks of one side that are answered at a time; each side asks for two things, once at a time."""

_LENGTH_BYTES = 4


class ChannelError(Exception):
    """The other side did not answer: it ended, is too slow, or failed."""


class Channel:
    """One side. `answer` gives the answer to an ask, `on_notification` takes notifications."""

    def __init__(
        self,
        control: socket.socket,
        answer: Callable[[str], Awaitable[object]],
        on_notification: Callable[[str, Any], None],
    ) -> None:
        self._control = control
        self._answer = answer
        self._on_notification = on_notification
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the channel: asks and notifications can be sent from here on."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._control)

    async def run(self) -> None:
        """Handle frames until the other side ends."""
        reader = self._reader
        assert reader is not None, "the channel is open"
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
                if size > MAX_FRAME_BYTES:
                    raise ValueError(f"a frame has {size} bytes")
                self._take(orjson.loads(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, OSError):
            return
        except Exception:
            log.exception("the channel to a process of this service failed", extra={"action": "channel-failed"})
        finally:
            self.close()

    async def ask(self, what: str, *, timeout_s: float) -> Any:
        """Ask the other side, and return its answer. Raises ChannelError."""
        number = next(self._numbers)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(["ask", number, what])
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise ChannelError(f"there was no answer within {timeout_s:g} s") from None
        finally:
            del self._open[number]

    def notify(self, what: str, document: object) -> None:
        """Send a notification, which needs no answer. Raises ChannelError."""
        self.send(["notify", what, document])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        for task in self._answering:
            task.cancel()
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(ChannelError("it ended"))

    def send(self, document: object) -> None:
        """Send a frame of any kind. Raises ChannelError."""
        writer = self._writer
        if writer is None or writer.is_closing():
            raise ChannelError("it is not there")
        if writer.transport.get_write_buffer_size() > MAX_FRAME_BYTES:
            raise ChannelError("it does not read")
        writer.write(frame(document))

    def _take(self, message: list[Any]) -> None:
        match message:
            case ["ask", number, what]:
                self._begin(number, what)
            case ["notify", what, document]:
                self._on_notification(what, document)
            case ["answer", number, document]:
                self._settle(number, lambda answer: answer.set_result(document))
            case ["failed", number, why]:
                self._settle(number, lambda answer: answer.set_exception(ChannelError(why)))
            case _:
                raise ValueError(f"it is not a message: {message!r:.100}")

    def _settle(self, number: int, settle: Callable[[asyncio.Future[Any]], None]) -> None:
        answer = self._open.get(number)  # None: it came after the deadline
        if answer is not None and not answer.done():
            settle(answer)

    def _begin(self, number: int, what: str) -> None:
        if len(self._answering) >= MAX_ASKS:
            self.send(["failed", number, "too many questions at once"])
            return
        task = asyncio.get_running_loop().create_task(self._reply(number, what), name=f"answer {what}")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _reply(self, number: int, what: str) -> None:
        try:
            self.send(["answer", number, await self._answer(what)])
        except ChannelError:
            return  # the other side does not wait for it any more
        except Exception as error:
            log.exception("a question of a process of this service failed", extra={"action": "ask-failed"})
            with contextlib.suppress(ChannelError):
                self.send(["failed", number, repr(error)])


def frame(document: object) -> bytes:
    """Encode a document as a frame."""
    body = orjson.dumps(document)
    return len(body).to_bytes(_LENGTH_BYTES) + body


def read_frame(control: socket.socket) -> Any:
    """Wait for one document, without a loop. Raises ChannelError when the other side ended."""
    return orjson.loads(_read(control, int.from_bytes(_read(control, _LENGTH_BYTES))))


def _read(control: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = control.recv(size - len(parts))
        if not part:
            raise ChannelError("it ended")
        parts += part
    return bytes(parts)
