"""The one connection on which a bus listens, whatever the number of its channels and listeners.

Each listener has an inbox of its own, so a slow listener loses only its own messages. If Redis refuses a channel to
this user, the subscription to it is retried with growing pauses, while the other channels are heard.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from understudy_shared.base.background import Supervisor
from understudy_shared.bus.base import Back, BusError, Inbox, Lost
from understudy_shared.bus.redis_connection import FAILURES, closed_transport_as_os_error
from understudy_shared.bus.redis_pools import PRIMARY_CHECK_MS, TaskPool, is_primary

log = logging.getLogger(__name__)

MIN_PAUSE_MS, MAX_PAUSE_MS = 50, 2000
"""Shortest and longest pause between attempts to subscribe."""

_PONGS = (b"PONG", [b"pong", b""])
"""The answers to PING of a connection without a subscription, and with one."""


MESSAGES_AT_ONCE = 64
"""Number of messages after which other tasks get a turn, however many have arrived."""

MANY_A_SECOND = 200
PAUSE_S = 0.01
"""The pause between reads when many messages arrive, as in a large cluster. They are then read together, because waking
up for a message costs more than reading it.
"""


class ReadingTurns:
    """The pauses of one connection between reads."""

    def __init__(self, now_s: float) -> None:
        self._replies = 0
        self._began_s, self._counted = now_s, 0
        self._are_many = False
        """Whether many messages arrived in the last second or longer."""

    def took(self, now_s: float) -> None:
        """Count a message."""
        self._counted += 1
        if (lasted_s := now_s - self._began_s) >= 1:
            self._are_many = self._counted >= MANY_A_SECOND * lasted_s
            self._began_s, self._counted = now_s, 0

    def pause_s(self, *, has_more: bool) -> float | None:
        """Return the pause before the next read, `None` for no pause. `has_more`: a reply may have arrived already."""
        self._replies += 1
        if self._are_many and not has_more:
            return PAUSE_S
        return 0.0 if self._replies % MESSAGES_AT_ONCE == 0 else None


class _SentCommand(NamedTuple):
    """A command without its answer yet. Answers come in the order of the commands."""

    command: str
    channel: str
    at_s: float


class Subscription:
    """The subscription to all channels that have an inbox. `failed` makes the BusError of an error."""

    def __init__(
        self,
        pool: TaskPool,
        failed: Callable[[BaseException, str], BusError],
        *,
        timeout_ms: int,
    ) -> None:
        self._pool = pool
        self._failed = failed
        self._timeout_s = timeout_ms / 1000
        self._inboxes: dict[bytes, list[Inbox]] = {}
        self._stands: dict[bytes, list[Inbox]] = {}
        """The same inboxes, only for channels whose subscription Redis has confirmed."""
        self._channels: dict[Inbox, tuple[bytes, ...]] = {}
        """The channels of each listener."""
        self._asked: deque[_SentCommand] = deque()
        self._refusals: dict[str, int] = {}
        """The number of refusals in a row, by channel."""
        self._unsent: deque[_SentCommand] = deque()
        self._sendable = asyncio.Event()
        self._again: str | None = None
        """The reason to close the connection and open another."""
        self._connection: AbstractConnection | None = None
        self._tasks = Supervisor()
        self._random = random.SystemRandom()

    def __len__(self) -> int:
        return len(self._channels)

    def start(self) -> None:
        """Begin to listen, on the running event loop."""
        self._tasks.start("sends to the bus", self._send())
        self._tasks.start("listens to the bus", self._run())

    def add(self, inbox: Inbox, *channels: str) -> None:
        """Put the messages of channels into an inbox from now on. It gets `Back` once all of them are subscribed."""
        self._channels[inbox] = tuple([each.encode() for each in channels])
        for each in channels:
            inboxes = self._inboxes.setdefault(each.encode(), [])
            inboxes.append(inbox)
            if len(inboxes) == 1:
                self._ask("SUBSCRIBE", each)
        self._tell_back([inbox])

    def remove(self, inbox: Inbox) -> None:
        """Put no more messages into an inbox."""
        for name in self._channels.pop(inbox):
            inboxes = self._inboxes[name]
            inboxes.remove(inbox)
            if not inboxes:
                del self._inboxes[name]
                self._stands.pop(name, None)
                self._ask("UNSUBSCRIBE", name.decode())

    def connect_again(self, why: str) -> None:
        """Close the connection, if there is one, and open another."""
        self._again = why
        self._sendable.set()

    async def stop(self) -> None:
        """End all inboxes and close the connection. Wait until it is closed: the loop may end then."""
        self._end()
        if self._connection is not None:
            with suppress(RedisError, OSError):
                await self._connection.disconnect()
        await self._tasks.stop()

    def _end(self, error: BaseException | None = None) -> None:
        for inbox in self._channels:
            inbox.end(error)

    async def _run(self) -> None:
        """Keep a connection open, and put `Lost` for each loss. Unexpected errors go to the listeners, which would hang
        otherwise.
        """
        try:
            clock = asyncio.get_running_loop().time
            attempt = 0
            while True:
                began_s = clock()
                stood, why = await self._hold()
                # If connections keep breaking at once, the pauses before the next one grow.
                attempt = 0 if stood and clock() >= began_s + MAX_PAUSE_MS / 1000 else attempt + 1
                log.debug("the subscription broke: %s", why, extra={"action": "bus-lost"})
                await asyncio.sleep(pause_ms(attempt, self._random.random()) / 1000)
        except Exception as error:
            self._end(error)
            raise

    async def _hold(self) -> tuple[bool, BusError]:
        """Use one connection until it breaks. Return whether any channel was ever subscribed, and why it broke."""
        connection: AbstractConnection | None = None
        self._again = None
        stood = False
        try:
            with closed_transport_as_os_error():
                async with asyncio.timeout(self._timeout_s):
                    connection = await self._pool.connect()
                    was_primary = await is_primary(connection)
                self._connection = connection
                for name in self._inboxes:
                    self._ask("SUBSCRIBE", name.decode())
                await self._hear(connection, was_primary=was_primary)
        except FAILURES as error:
            why = self._failed(error, f"listening to {self._named()}")
            if self._again is not None:
                why = BusError(f"the subscription connects again: {self._again}")
            stood = bool(self._stands)
            self._lose(str(why))
            return stood, why
        finally:
            self._connection = None
            self._asked.clear()
            self._unsent.clear()
            if connection is not None:
                await connection.disconnect(nowait=True)
        raise AssertionError("a subscription ends only by an error")

    def _lose(self, why: str) -> None:
        for inbox in dict.fromkeys(inbox for inboxes in self._stands.values() for inbox in inboxes):
            inbox.put(Lost(why))
        self._stands.clear()

    async def _hear(self, connection: AbstractConnection, *, was_primary: bool) -> None:
        """Read until the connection breaks. A silent connection gets a PING, which it must answer within a deadline."""
        clock = asyncio.get_running_loop().time
        checked_s = clock()
        turns = ReadingTurns(checked_s)
        while True:
            if (pause_s := turns.pause_s(has_more=await connection.can_read())) is not None:
                await asyncio.sleep(pause_s)
            if clock() >= checked_s + PRIMARY_CHECK_MS / 1000:
                await self._pool.check(connection, was_primary=was_primary)
                checked_s = clock()
            try:
                reply = await connection.read_response(timeout=self._timeout_s)
            except ResponseError as error:
                self._refused(error)
                continue
            match reply:
                case [b"message", bytes() as name, bytes() as payload]:
                    turns.took(clock())
                    for inbox in self._stands.get(name, ()):
                        inbox.put(payload)
                case None if not self._asked:
                    self._ask("PING")
                case None if clock() >= self._asked[0].at_s + self._timeout_s:
                    raise TimeoutError
                case None:
                    pass
                case _:
                    self._answered(reply)

    def _answered(self, reply: object) -> None:
        """Handle the answer to the oldest command. Raises InvalidResponse for anything else."""
        asked = self._asked.popleft() if self._asked else None
        match reply:
            case [b"subscribe", bytes() as name, int()] if _is(asked, "SUBSCRIBE", name):
                if not any(_is(later, "SUBSCRIBE", name) for later in self._asked):
                    self._subscribed(name)
            case [b"unsubscribe", bytes() as name, int()] if _is(asked, "UNSUBSCRIBE", name):
                pass
            case _ if reply in _PONGS and asked is not None and asked.command == "PING":
                pass
            case _:
                raise InvalidResponse(f"it sent {reply!r:.40} to a subscriber")

    def _subscribed(self, name: bytes) -> None:
        self._refusals.pop(name.decode(), None)
        if name in self._inboxes:  # its listener may have gone since
            self._stands[name] = self._inboxes[name]
            self._tell_back(self._inboxes[name])

    def _tell_back(self, inboxes: Iterable[Inbox]) -> None:
        """Put `Back` into the inboxes whose channels are all subscribed to."""
        for inbox in inboxes:
            if all(each in self._stands for each in self._channels[inbox]):
                inbox.put(Back())

    def _refused(self, error: ResponseError) -> None:
        """Retry a refused channel after a while. Raises the error if another command was refused."""
        asked = self._asked.popleft() if self._asked else None
        if asked is None or asked.command == "PING":
            raise error
        if asked.command == "UNSUBSCRIBE":  # its messages are dropped as they come
            return
        refusals = self._refusals[asked.channel] = self._refusals.get(asked.channel, 0) + 1
        if refusals & (refusals - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
            why = self._failed(error, f"listening to {asked.channel}")
            log.warning("%s", why, extra={"action": "bus-refused", "count": refusals})
        pause_s = pause_ms(refusals, self._random.random()) / 1000
        asyncio.get_running_loop().call_later(pause_s, self._ask_again, asked.channel)

    def _ask_again(self, channel: str) -> None:
        name = channel.encode()
        is_asked = name in self._stands or any(_is(each, "SUBSCRIBE", name) for each in self._asked)
        if name in self._inboxes and not is_asked:
            self._ask("SUBSCRIBE", channel)

    def _ask(self, command: str, channel: str = "") -> None:
        """Send a command if there is a connection. Does not wait: commands are short, and the reader notices a loss."""
        if self._connection is None:
            return
        asked = _SentCommand(command, channel, asyncio.get_running_loop().time())
        self._asked.append(asked)
        self._unsent.append(asked)
        self._sendable.set()

    async def _send(self) -> None:
        """Send commands in order; close the connection if another one must be opened."""
        while True:
            await self._sendable.wait()
            self._sendable.clear()
            while (connection := self._connection) is not None and (self._unsent or self._again is not None):
                if self._again is not None or not connection.is_connected:  # sending would connect again
                    await connection.disconnect(nowait=True)
                    break
                asked = self._unsent.popleft()
                # The reader may close the connection meanwhile, and redis-py then fails because its writer is gone.
                with suppress(*FAILURES), closed_transport_as_os_error():
                    await connection.send_command(asked.command, *([asked.channel] if asked.channel else []))

    def _named(self) -> str:
        first = next(iter(self._inboxes), b"").decode()
        return first if len(self._inboxes) <= 1 else f"{first} and {len(self._inboxes) - 1} more channels"


def _is(asked: _SentCommand | None, command: str, name: bytes) -> bool:
    return asked is not None and asked.command == command and asked.channel.encode() == name


def pause_ms(attempt: int, chance: float) -> float:
    """Return the pause in ms before subscribing again after `attempt` failures in a row: doubled each time, up to a
    limit.

    `chance` in [0, 1) scales it to between one half and all of it, so that processes do not reconnect together.
    """
    return float(min(MAX_PAUSE_MS, MIN_PAUSE_MS * 2 ** min(attempt, 10)) * (0.5 + chance / 2))
