"""The one connection on which a bus listens, whatever the number of its channels and listeners.

Each listener has an inbox of its own, so one that reads slowly loses its own messages alone. A channel that Redis
refuses to this user is asked for again with growing pauses; the others are heard meanwhile. A further channel of a
listener is not asked for again: the listener goes on without it.
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
from redis.exceptions import ResponseError

from understudy_shared.base.supervise import Supervisor
from understudy_shared.bus.base import Back, BusError, Lost
from understudy_shared.bus.inbox import Inbox
from understudy_shared.bus.reading_turns import ReadingTurns
from understudy_shared.bus.redis_connection import FAILURES, closed_transport_as_os_error
from understudy_shared.bus.redis_replies import BadRedisReplyError, BoundedParser
from understudy_shared.bus.redis_sentinel import PRIMARY_CHECK_MS, SentinelPool

log = logging.getLogger(__name__)

MIN_PAUSE_MS, MAX_PAUSE_MS = 50, 2000
"""Least and longest pause between attempts to subscribe."""

_PONGS = (b"PONG", [b"pong", b""])
"""The answers to PING of a connection without a subscription, and with one."""


class _Asked(NamedTuple):
    """A command without its answer yet. Answers come in the order of the commands."""

    command: str
    channel: str
    at_s: float


class Subscription:
    """The subscription to all channels that have an inbox. `failed` makes the BusError of an error while doing
    something.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractConnection],
        failed: Callable[[BaseException, str], BusError],
        *,
        timeout_ms: int,
        sentinels: SentinelPool | None,
    ) -> None:
        self._connect = connect
        self._failed = failed
        self._timeout_s = timeout_ms / 1000
        self._sentinels = sentinels
        self._inboxes: dict[bytes, list[Inbox]] = {}
        self._stands: dict[bytes, list[Inbox]] = {}
        """The same inboxes, of channels that are subscribed to."""
        self._channels: dict[Inbox, tuple[bytes, ...]] = {}
        """The channels of each listener: the one that it needs, and further ones."""
        self._given_up: set[bytes] = set()
        """The further channels that Redis refused on this connection."""
        self._is_limited = False
        self._asked: deque[_Asked] = deque()
        self._refusals: dict[str, int] = {}
        """The number of refusals in a row, by channel."""
        self._connection: AbstractConnection | None = None
        self._tasks = Supervisor()
        self._random = random.SystemRandom()

    def __len__(self) -> int:
        return len(self._channels)

    def start(self) -> None:
        """Begin to listen, on the loop that runs now."""
        self._tasks.start("listens to the bus", self._run())

    def add(self, inbox: Inbox, channel: str, *further: str) -> None:
        """Fill an inbox with the messages of channels from now on. It gets `Back` when Redis has answered for all."""
        self._channels[inbox] = tuple([each.encode() for each in (channel, *further)])
        for each in (channel, *further):
            inboxes = self._inboxes.setdefault(each.encode(), [])
            inboxes.append(inbox)
            if len(inboxes) == 1:
                self._ask("SUBSCRIBE", each)
        self._tell_back([inbox])

    def remove(self, inbox: Inbox) -> None:
        """Fill an inbox no longer."""
        for name in self._channels.pop(inbox):
            inboxes = self._inboxes[name]
            inboxes.remove(inbox)
            if not inboxes:
                del self._inboxes[name]
                self._stands.pop(name, None)
                self._ask("UNSUBSCRIBE", name.decode())

    async def stop(self) -> None:
        """End all inboxes and close the connection."""
        self._end()
        await self._tasks.stop()

    def _end(self, error: BaseException | None = None) -> None:
        for inbox in self._channels:
            inbox.end(error)

    async def _run(self) -> None:
        """Hold a connection, and put `Lost` for each loss. Readers get unexpected errors, else they would hang."""
        try:
            clock = asyncio.get_running_loop().time
            attempt = 0
            while True:
                began_s = clock()
                stood, why = await self._hold()
                # A connection that breaks at once every time is made again after growing pauses.
                attempt = 0 if stood and clock() >= began_s + MAX_PAUSE_MS / 1000 else attempt + 1
                log.debug("the subscription broke: %s", why, extra={"action": "bus-lost"})
                await asyncio.sleep(pause_ms(attempt, self._random.random()) / 1000)
        except Exception as error:
            self._end(error)
            raise

    async def _hold(self) -> tuple[bool, BusError]:
        """Hold one connection until it breaks. Return whether any channel was ever heard, and why it broke."""
        connection = self._connect()
        stood = False
        try:
            with closed_transport_as_os_error():
                async with asyncio.timeout(self._timeout_s):
                    await connection.connect()  # type: ignore[no-untyped-call]
                self._connection = connection
                for name in self._inboxes:
                    self._ask("SUBSCRIBE", name.decode())
                await self._hear(connection)
        except FAILURES as error:
            why = self._failed(error, f"listening to {self._named()}")
            stood = bool(self._stands)
            self._lose(str(why))
            return stood, why
        finally:
            self._connection = None
            self._asked.clear()
            await connection.disconnect(nowait=True)
        raise AssertionError("a subscription ends only by an error")

    def _lose(self, why: str) -> None:
        for inbox in dict.fromkeys(inbox for inboxes in self._stands.values() for inbox in inboxes):
            inbox.put(Lost(why))
        self._stands.clear()
        self._given_up.clear()

    async def _hear(self, connection: AbstractConnection) -> None:
        """Read until the connection breaks. A silent connection gets a PING, which it must answer within a deadline."""
        clock = asyncio.get_running_loop().time
        checked_s = clock()
        turns = ReadingTurns(checked_s)
        while True:
            if (pause_s := turns.pause_s(has_more=_has_more(connection))) is not None:
                await asyncio.sleep(pause_s)
            if self._sentinels is not None and clock() >= checked_s + PRIMARY_CHECK_MS / 1000:
                await self._sentinels.check(connection)
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
        """Take the answer to the oldest command. Raises BadRedisReplyError for anything else."""
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
                raise BadRedisReplyError(f"it sent {reply!r:.40} to a subscriber")

    def _subscribed(self, name: bytes) -> None:
        self._refusals.pop(name.decode(), None)
        if name in self._inboxes:  # its listener may have gone since
            self._stands[name] = self._inboxes[name]
            self._tell_back(self._inboxes[name])

    def _tell_back(self, inboxes: Iterable[Inbox]) -> None:
        """Put `Back` into the inboxes whose channels are all subscribed to, or given up."""
        for inbox in inboxes:
            needed, *further = self._channels[inbox]
            if needed in self._stands and all(each in self._stands or each in self._given_up for each in further):
                inbox.put(Back())

    def _refused(self, error: ResponseError) -> None:
        """Ask for a refused channel again after a while. Raises the error for anything else that was refused."""
        asked = self._asked.popleft() if self._asked else None
        if asked is None or asked.command == "PING":
            raise error
        if asked.command == "UNSUBSCRIBE":  # its messages are dropped as they come
            return
        name = asked.channel.encode()
        if all(self._channels[inbox][0] != name for inbox in self._inboxes.get(name, ())):
            self._give_up(name)
            return
        refusals = self._refusals[asked.channel] = self._refusals.get(asked.channel, 0) + 1
        if refusals & (refusals - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
            why = self._failed(error, f"listening to {asked.channel}")
            log.warning("%s", why, extra={"action": "bus-refused", "count": refusals})
        pause_s = pause_ms(refusals, self._random.random()) / 1000
        asyncio.get_running_loop().call_later(pause_s, self._ask_again, asked.channel)

    def _give_up(self, name: bytes) -> None:
        """Go on without a further channel: its messages come on the first one, with others that are not needed."""
        if not self._is_limited:
            self._is_limited = True
            rule = f"&{name.decode()}"
            log.warning("hears more than it needs: give this user %s", rule, extra={"action": "channels-refused"})
        self._given_up.add(name)
        self._tell_back(self._inboxes.get(name, ()))

    def _ask_again(self, channel: str) -> None:
        name = channel.encode()
        is_asked = name in self._stands or any(_is(each, "SUBSCRIBE", name) for each in self._asked)
        if name in self._inboxes and not is_asked:
            self._ask("SUBSCRIBE", channel)

    def _ask(self, command: str, channel: str = "") -> None:
        """Send a command if there is a connection. It is not waited for: they are short, and the reader sees a loss."""
        connection = self._connection
        writer = None if connection is None else connection._writer  # noqa: SLF001  # sending would connect again
        if connection is None or writer is None:
            return
        self._asked.append(_Asked(command, channel, asyncio.get_running_loop().time()))
        with suppress(OSError, RuntimeError):  # RuntimeError: uvloop's, of a connection that was just reset
            writer.writelines(connection.pack_command(command, *([channel] if channel else [])))

    def _named(self) -> str:
        first = next(iter(self._inboxes), b"").decode()
        return first if len(self._inboxes) <= 1 else f"{first} and {len(self._inboxes) - 1} more channels"


def _has_more(connection: AbstractConnection) -> bool:
    """Whether more has arrived than what was read."""
    parser = connection._parser  # noqa: SLF001  # it has no other name
    return isinstance(parser, BoundedParser) and parser.has_more


def _is(asked: _Asked | None, command: str, name: bytes) -> bool:
    return asked is not None and asked.command == command and asked.channel.encode() == name


def pause_ms(attempt: int, chance: float) -> float:
    """Return the pause in ms before subscribing again after `attempt` failures in a row: doubled each time, up to a
    limit.

    `chance` in [0, 1) scales it to between one half and all of it, so that processes do not reconnect together.
    """
    return float(min(MAX_PAUSE_MS, MIN_PAUSE_MS * 2 ** min(attempt, 10)) * (0.5 + chance / 2))
