"""The server: it takes connections up to a limit, and ends in good order.

Rule: beyond loopback it listens with TLS, and only where the servers of the stores ask for keys.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mysql_mimic import packets
from mysql_mimic.constants import DEFAULT_SERVER_CAPABILITIES, KillKind
from mysql_mimic.control import LocalControl
from mysql_mimic.errors import MysqlError
from mysql_mimic.stream import ConnectionClosed, MysqlStream
from mysql_mimic.types import Capabilities
from mysql_mimic.variables import SYSTEM_VARIABLES, GlobalVariables

from understudy.client.sync import Client
from understudy.sql.mysql.connection import IDLE_S, PacketReader, PacketWriter, StoreConnection
from understudy.sql.mysql.dialect import parse
from understudy.sql.mysql.login import KeyIdentity, KeyLogin, KeyPair, Login
from understudy.sql.mysql.session import StoreSession
from understudy.sql.mysql.statements import Places

if TYPE_CHECKING:
    from sqlglot import expressions as exp

    from understudy.client.core.values import SnapshotBounds

_log = logging.getLogger(__name__)
GOODBYE_S: Final = 10.0
"""Time that statements have to end when the server ends."""

_LOOK_S: Final = 0.05
_VARIABLES: Final = {
    "version": (str, "8.0.29-understudy", False),
    "version_comment": (str, "Understudy", False),
    "license": (str, "Apache-2.0", False),
    "sql_mode": (str, "STRICT_TRANS_TABLES", True),
    "collation_connection": (str, "utf8mb4_bin", True),
    "collation_database": (str, "utf8mb4_bin", True),
    "collation_server": (str, "utf8mb4_bin", True),
    "lower_case_table_names": (int, 1, False),
    "max_allowed_packet": (int, 1024 * 1024, True),
    "transaction_isolation": (str, "REPEATABLE-READ", True),
    "tx_isolation": (str, "REPEATABLE-READ", True),
    "tx_read_only": (bool, True, True),
    "transaction_read_only": (bool, True, True),
    "read_only": (bool, True, False),
    "super_read_only": (bool, True, False),
    "net_read_timeout": (int, 30, True),
    "net_write_timeout": (int, 30, True),
    "wait_timeout": (int, int(IDLE_S), True),
    "interactive_timeout": (int, int(IDLE_S), True),
    "have_ssl": (str, "YES", False),
    "have_openssl": (str, "YES", False),
    "query_cache_size": (int, 0, True),
    "query_cache_type": (str, "OFF", True),
    "group_concat_max_len": (int, 4294967295, True),
    "foreign_key_checks": (bool, True, True),
    "unique_checks": (bool, True, True),
    "sql_notes": (bool, True, True),
    "sql_safe_updates": (bool, False, True),
    "sql_quote_show_create": (bool, True, True),
    "default_storage_engine": (str, "Understudy", False),
    "default_tmp_storage_engine": (str, "Understudy", False),
    "understudy_version": (int, None, False),
}
"""Variables of MySQL that tools ask for or set, with another value than mysql-mimic's, or unknown to it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the server."""

    max_connections: int = 32
    max_statements: int = 2
    max_result_rows: int = 1_000_000
    statement_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of the stores, and how they are asked."""

    urls: Sequence[str]
    timeout_s: float
    scan_timeout_s: float
    context: ssl.SSLContext | None
    bounds: SnapshotBounds

    def client(self, key: str) -> Client:
        """Return a client that shows a key, unless it is empty. Raises UsageError for what is no key."""
        return Client(
            self.urls,
            api_key=key,
            timeout=self.timeout_s,
            scan_timeout=self.scan_timeout_s,
            ssl_context=self.context,
        )


class Front:
    """The server, and what its sessions share."""

    def __init__(
        self, servers: Servers, limits: Limits, memory_limit: str, tls: ssl.SSLContext | None, *, needs_key: bool
    ) -> None:
        """Prepare it. `needs_key`: an empty password is refused. Raises MissingExtraError."""
        self.limits, self.bounds = limits, servers.bounds
        self.places = Places(limits.max_statements, memory_limit)
        self.variables = GlobalVariables({**SYSTEM_VARIABLES, **_VARIABLES})
        self._servers, self._tls, self._needs_key = servers, tls, needs_key
        self._pair = KeyPair() if tls is None else None
        self._control = LocalControl()
        self._open: dict[int, StoreConnection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._readers = ThreadPoolExecutor(1, "understudy-sql-parse")
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: asyncio.StreamReaderProtocol(self._reader(loop), self._connected, loop), host, port, backlog=64
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """End in good order: no new connections, idle ones end at once, statements have some time."""
        assert self._server is not None
        self._server.close()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + GOODBYE_S
        while self._tasks and loop.time() < until_s:
            for each in list(self._open.values()):
                if not each.session.is_busy:
                    each.kill()
            await asyncio.wait(self._tasks, timeout=_LOOK_S)
        for each in list(self._open.values()):
            each.session.stop("the server has ended")
            each.kill()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GOODBYE_S)
        await self.places.close()
        self._readers.shutdown()

    # ---- what sessions ask for

    def client(self, key: str) -> Client:
        """Return a client for a session."""
        return self._servers.client(key)

    async def parsed(self, sql: str) -> exp.Expr:
        """Read a statement, in a thread: a long one takes its time."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, parse, sql)

    async def kill(self, number: int, kind: KillKind, login: Login | None) -> bool:
        """Stop another connection, if it has logged in with the same key."""
        other = self._open.get(number)
        if other is None or login is None or other.session.login is None or other.session.login.key != login.key:
            return False
        if kind is KillKind.QUERY:
            other.session.stop("Query execution was interrupted")
        else:
            other.session.stop("the connection was killed")
            await self._control.kill(number, kind)
        return True

    async def check(self, key: str) -> None:
        """Ask the servers whether they take a key. Raises their errors."""

        def ask() -> None:
            with self._servers.client(key) as client:
                client.stores()

        await asyncio.to_thread(ask)

    # ---- connections

    def _reader(self, loop: asyncio.AbstractEventLoop) -> PacketReader:
        return PacketReader(loop, offers_tls=self._tls is not None)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end. Nothing that happens in it ends the server."""
        task = asyncio.current_task()
        assert task is not None
        assert isinstance(reader, PacketReader)
        self._tasks.add(task)
        try:
            await self._serve(reader, PacketWriter(writer, reader))
        except (OSError, ConnectionClosed, asyncio.IncompleteReadError, MysqlError, asyncio.CancelledError) as error:
            _log.debug("a connection ended: %r", error)
        except Exception:
            _log.exception("a connection failed")
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, reader: PacketReader, writer: PacketWriter) -> None:
        stream = MysqlStream(reader, writer)
        if len(self._open) >= self.limits.max_connections:
            await stream.write(packets.make_error(msg=f"Too many connections: {len(self._open)} are open", code=1040))
            return
        session = StoreSession(self, reader.wait_longer)
        login = KeyLogin(self.check, self._pair, lambda: writer.is_tls, needs_key=self._needs_key)
        connection = StoreConnection(
            stream=stream,
            session=session,
            control=self._control,
            server_capabilities=DEFAULT_SERVER_CAPABILITIES & ~Capabilities.CLIENT_QUERY_ATTRIBUTES,
            identity_provider=KeyIdentity(login),
            ssl=self._tls,
        )
        number = connection.connection_id = await self._control.add(connection)
        self._open[number] = connection
        reader.on_gone = session.leave
        try:
            await connection.start()
        except MysqlError as error:
            with suppress(OSError):  # what went wrong in a login is said already
                if session.login is not None:
                    await stream.write(connection.error(msg=error.msg, code=error.code))
        finally:
            session.stop("the connection has ended")
            del self._open[number]
            await self._control.remove(number)
            await session.close()
