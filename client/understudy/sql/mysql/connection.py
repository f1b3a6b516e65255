"""One connection of MySQL's protocol: its packets bounded, each wait with a deadline, its end noticed while a statement
runs. mysql-mimic reads and answers the commands.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Final

from mysql_mimic import packets
from mysql_mimic.connection import Connection
from mysql_mimic.errors import MysqlError
from mysql_mimic.stream import ConnectionClosed
from mysql_mimic.utils import aiterate

from understudy.sql.errors import SqlError
from understudy.sql.mysql.prepared import MAX_LONG_DATA_BYTES, MAX_PREPARED, Prepared, prepared

MAX_PACKET_BYTES: Final = 1024 * 1024
LOGIN_S: Final = 10.0
IDLE_S: Final = 8 * 3600.0
"""Time without a command after which a connection ends, as MySQL's `wait_timeout`."""

UNREAD_S: Final = 30.0
"""Time in which a client has to read something of a result."""

_HEADER_BYTES: Final = 4
_ASKS_FOR_TLS: Final = 0x08
"""The bit of the second byte of a client's capabilities by which its first packet asks for TLS."""


class PacketReader(asyncio.StreamReader):
    """The bytes that a client sends. `on_gone` is called when it leaves.

    A client that asks for TLS begins it at once, so what comes behind its request is kept for the handshake.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, offers_tls: bool) -> None:
        super().__init__(loop=loop)
        self.on_gone: Callable[[], object] = bool
        self._wait_s = LOGIN_S
        self._first: bytearray | None = bytearray() if offers_tls else None
        self._handshake: bytearray | None = None

    def wait_longer(self) -> None:
        """Wait for commands as long as for those of a client that has logged in."""
        self._wait_s = IDLE_S

    def taken_handshake(self) -> bytes:
        """Return what has come of a handshake; what follows comes over TLS."""
        found, self._handshake = bytes(self._handshake or b""), None
        return found

    def feed_data(self, data: Any) -> None:
        """See `StreamReader`."""
        if self._handshake is not None:
            self._handshake += data
        elif self._first is not None:
            self._first += data
            self._feed_first(self._first)
        else:
            super().feed_data(data)

    def _feed_first(self, data: bytearray) -> None:
        """Feed the first packet when it is whole."""
        size = _HEADER_BYTES + int.from_bytes(data[:3], "little")
        if len(data) < min(size, MAX_PACKET_BYTES) or len(data) <= _HEADER_BYTES:
            return
        self._first = None
        if len(data) > 5 and data[5] & _ASKS_FOR_TLS:
            self._handshake = data[size:]
            del data[size:]
        super().feed_data(bytes(data))

    def feed_eof(self) -> None:
        """See `StreamReader`."""
        super().feed_eof()
        self.on_gone()

    def set_exception(self, exc: Exception) -> None:
        """See `StreamReader`."""
        super().set_exception(exc)
        self.on_gone()

    async def read(self, n: int = -1) -> bytes:
        """Read the header of a packet; empty bytes at the end. Raises ConnectionClosed for a client that is silent."""
        try:
            async with asyncio.timeout(self._wait_s):
                return await super().readexactly(n)
        except asyncio.IncompleteReadError:
            return b""
        except TimeoutError:
            raise ConnectionClosed from None

    async def readexactly(self, n: int) -> bytes:
        """Read the rest of a packet. Raises MysqlError for a large one, ConnectionClosed for one that is cut."""
        if n > MAX_PACKET_BYTES:
            what = f"Got a packet bigger than 'max_allowed_packet' bytes: {n}, and {MAX_PACKET_BYTES} are read"
            raise MysqlError(what, 1153)
        try:
            async with asyncio.timeout(LOGIN_S):
                return await super().readexactly(n)
        except (asyncio.IncompleteReadError, TimeoutError):
            raise ConnectionClosed from None


class PacketWriter:
    """The bytes for a client: one that does not read them is dropped."""

    def __init__(self, writer: asyncio.StreamWriter, reader: PacketReader) -> None:
        self._writer, self._reader = writer, reader
        self.is_tls = False

    @property
    def transport(self) -> Any:
        """The transport, which mysql-mimic takes to begin TLS on it, and for nothing else."""
        loop, transport = asyncio.get_running_loop(), self._writer.transport
        loop.call_soon(lambda: loop.call_soon(self._begin_handshake, transport))
        return transport

    def _begin_handshake(self, transport: asyncio.WriteTransport) -> None:
        """Hand what came of the handshake to the protocol of TLS, which has taken the transport over."""
        data, protocol = self._reader.taken_handshake(), transport.get_protocol()
        if isinstance(protocol, asyncio.BufferedProtocol):
            while data:
                buffer = protocol.get_buffer(len(data))
                count = min(len(buffer), len(data))  # type: ignore[arg-type]
                buffer[:count], data = data[:count], data[count:]  # type: ignore[index]
                protocol.buffer_updated(count)

    @property
    def _transport(self) -> Any:
        return self._writer.transport

    @_transport.setter
    def _transport(self, made: Any) -> None:
        self._writer._transport = made  # type: ignore[attr-defined]  # noqa: SLF001  # as mysql-mimic does
        self.is_tls = True

    def write(self, data: bytes) -> None:
        """Send some bytes."""
        self._writer.write(bytes(data))

    async def drain(self) -> None:
        """Wait until there is room for more. Raises ConnectionResetError for a client that does not read."""
        try:
            async with asyncio.timeout(UNREAD_S):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise ConnectionResetError("the client reads nothing") from None


class StoreConnection(Connection):  # type: ignore[misc]
    """A connection, with parameters of statements that are escaped, and results that wait for their reader."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._prepared: dict[int, Prepared] = {}

    async def handle_stmt_prepare(self, data: bytes) -> None:
        """Prepare a statement. Raises MysqlError."""
        if len(self.prepared_stmts) >= MAX_PREPARED:
            what = f"this connection has {MAX_PREPARED} prepared statements: close some"
            raise MysqlError(what, 1461)
        try:
            made = prepared(self.client_charset.decode(data))
        except SqlError as error:
            raise MysqlError(error.what) from None
        marks = "SELECT " + ",".join("?" for _ in made.places)  # mysql-mimic counts the marks, and those in texts too
        before = set(self.prepared_stmts)
        await super().handle_stmt_prepare(marks.encode())
        (number,) = self.prepared_stmts.keys() - before
        self._prepared[number] = made

    async def handle_stmt_execute(self, data: bytes) -> None:
        """Execute a prepared statement. Raises MysqlError."""
        (number,) = struct.unpack_from("<I", data)
        statement, made = self.get_stmt(number), self._prepared[number]
        try:
            text = made.bound(data[9:], {at: bytes(each) for at, each in (statement.param_buffers or {}).items()})
        except SqlError as error:
            raise MysqlError(f"{error.what}. {error.fix}") from None
        statement.sql, statement.num_params = text, 0
        # Without a cursor, which a server may refuse: mysql-mimic's lose a row at the end of each fetch.
        await super().handle_stmt_execute(struct.pack("<IBI", number, 0, 1))

    async def handle_stmt_send_long_data(self, data: bytes) -> None:
        """Take a part of a long parameter. The command has no answer, so one that is too long fails when executed."""
        number, at = struct.unpack_from("<IH", data)
        statement = self.prepared_stmts.get(number)
        held = 0 if statement is None else sum(map(len, (statement.param_buffers or {}).values()))
        if statement is not None and at < len(self._prepared[number].places) and held <= MAX_LONG_DATA_BYTES:
            await super().handle_stmt_send_long_data(data)

    async def handle_stmt_close(self, data: bytes) -> None:
        """Forget a prepared statement."""
        self._prepared.pop(struct.unpack_from("<I", data)[0], None)
        await super().handle_stmt_close(data)

    async def write_text_resultset(self, result_set: Any) -> None:
        """Send a result, as its reader takes it."""
        columns, write = result_set.columns, self.stream.write
        await write(packets.make_column_count(capabilities=self.capabilities, column_count=len(columns)), drain=False)
        for each in columns:
            described = packets.make_column_definition_41(
                server_charset=self.server_charset,
                name=each.name,
                column_type=each.type,
                character_set=each.character_set,
            )
            await write(described, drain=False)
        if not self.deprecate_eof():
            await write(self.eof(), drain=False)
        async for row in aiterate(result_set.rows):
            await write(packets.make_text_resultset_row(row, columns), drain=False)
        await write(self.ok_or_eof())
