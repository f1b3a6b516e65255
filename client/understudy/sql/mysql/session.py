"""A session of MySQL: what a client sends, answered by DuckDB over stores, or from what is known of them.

A session has one statement at a time: the next one ends the one before. It asks the servers with the key that its
client has logged in with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mysql_mimic import ResultSet, Session
from mysql_mimic.connection import Connection
from mysql_mimic.constants import KillKind
from mysql_mimic.errors import ErrorCode, MysqlError
from mysql_mimic.variable_processor import VariableProcessor
from mysql_mimic.variables import SessionVariables
from sqlglot import expressions as exp

from understudy.client.sync import Client
from understudy.sql.engine import Engine
from understudy.sql.errors import MemoryLimitError, SqlError
from understudy.sql.mysql.answers import TableAnswer, answered
from understudy.sql.mysql.catalogue import information_schema, rewritten_show, show_text
from understudy.sql.mysql.dialect import (
    DATABASE,
    INFORMATION_SCHEMA,
    duckdb_text,
    parse,
    reads_information_schema,
    require_read,
)
from understudy.sql.mysql.login import Login
from understudy.sql.mysql.statements import Open, Statement
from understudy.sql.mysql.values import ResultColumns
from understudy.sql.session import Answer, SqlSession
from understudy.sql.table_columns import tables_of
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.printable import printable

if TYPE_CHECKING:
    from understudy.sql.mysql.server import Front

T = TypeVar("T")
_STOP_S: Final = 2.0
"""Time that a stopped statement has before its client gets the error; its place is free when its thread has ended."""

_LEFT: Final = "the client has left"
_OF_THE_SESSION: Final = (exp.Set, exp.Use, exp.Transaction, exp.Commit, exp.Rollback)
_UTC: Final = ("utc", "+00:00", "-00:00", "system", "etc/utc")
_VERSION: Final = "understudy_version"
_TRANSACTION: Final = ("START", "SAVEPOINT", "RELEASE")


class StoreSession(Session):  # type: ignore[misc]
    """The session of one connection."""

    def __init__(self, front: Front, on_login: Callable[[], None]) -> None:
        super().__init__(SessionVariables(front.variables))
        self._front, self._on_login = front, on_login
        self._client: Client | None = None
        self._login: Login | None = None
        self._unexported: set[str] = set()
        self._waiting: asyncio.Future[None] | None = None
        self._running: Statement | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason = ""
        self._stopped = asyncio.Event()
        self._is_gone = False

    @property
    def is_busy(self) -> bool:
        """Whether a statement runs, or waits for a place."""
        return self._running is not None or self._waiting is not None

    @property
    def login(self) -> Login | None:
        """The login that is in force."""
        return self._login

    # ---- the life of a session, as mysql-mimic calls it

    async def init(self, connection: Connection) -> None:
        """Begin. Raises MysqlError without a login: mysql-mimic goes on after one that it refused."""
        await super().init(connection)
        self._log_in()
        self._on_login()
        if self.database:
            await self.use(self.database)

    async def reset(self) -> None:
        """End the statement; a client may have logged in anew."""
        self._end()
        self._log_in()

    async def close(self) -> None:
        """End the statement, and the connections to servers."""
        self._end()
        if self._client is not None:
            self._client.close()
        await super().close()

    async def use(self, database: str) -> None:
        """Choose the database of names without one."""
        if database.lower() not in (DATABASE, INFORMATION_SCHEMA):
            raise _mysql_error(_no_database(database))
        self.database = database.lower()

    def stop(self, reason: str) -> None:
        """Stop the statement, and have it say why."""
        self._reason = self._reason or reason
        self._stopped.set()
        if self._waiting is not None:
            self._waiting.cancel()
        if self._running is not None:
            self._running.cancel()

    def leave(self) -> None:
        """Stop the statement of a client that has left, and those that it had sent before."""
        self._is_gone = True
        self.stop(_LEFT)

    def _log_in(self) -> None:
        login = self.username
        if not isinstance(login, Login):
            raise MysqlError("Access denied: the login was refused", ErrorCode.ACCESS_DENIED_ERROR)
        if self._login is None or self._login.key != login.key:
            if self._client is not None:
                self._client.close()
            self._client = self._front.client(login.key)
            self._unexported = set()
        self._login = login

    def _end(self) -> None:
        statement, self._running = self._running, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if statement is not None:
            statement.close()

    # ---- statements

    async def handle_query(self, sql: str, attrs: dict[str, str]) -> Any:
        """Answer a statement. Raises MysqlError."""
        self._end()
        if self._is_gone:
            raise MysqlError(_LEFT)
        self._reason, self._stopped = "", asyncio.Event()
        try:
            expression = await self._front.parsed(sql)
            if isinstance(expression, _OF_THE_SESSION) or _is_begin(expression):
                return await self._changed(expression, sql, attrs)
            if isinstance(expression, exp.Kill):
                return await self._killed(expression)
            with VariableProcessor(_functions(self), self.variables, self._known(expression)).set_variables():
                return await self._run(self._opened(expression))
        except UnderstudyError as error:
            raise _mysql_error(error) from None

    async def _changed(self, expression: exp.Expr, sql: str, attrs: dict[str, str]) -> Any:
        """Change the session. Transactions begin and end without an effect: a statement is one."""
        if not isinstance(expression, (exp.Set, exp.Use)):
            return [], []
        zone = self.variables.get("time_zone")
        try:
            found = await super().handle_query(sql, attrs)
        except MysqlError:
            raise
        except Exception as error:  # mysql-mimic's own code, for odd values
            what = f"this SET is not understood: {type(error).__name__} {error}"
            raise SqlError(what, where="SQL", fix="SET name = value") from None
        asked = str(self.variables.get("time_zone"))
        if asked.lower() not in _UTC:
            self.variables.set("time_zone", zone)
            what = f"the time zone {printable(asked)} cannot be set: times are in UTC"
            raise SqlError(what, where="time_zone", fix="SET time_zone = '+00:00'")
        return found

    async def _killed(self, kill: exp.Kill) -> Any:
        """Stop a statement or a connection of the same key."""
        text = kill.this.name
        kind = KillKind.QUERY if kill.text("kind").upper() == "QUERY" else KillKind.CONNECTION
        if not text.isdigit() or not await self._front.kill(int(text), kind, self._login):
            what = f"there is no connection {printable(text)} of this key"
            raise SqlError(what, where="KILL", fix="SELECT CONNECTION_ID() says which it is")
        return [], []

    def _known(self, expression: exp.Expr) -> exp.Expr:
        """Return a statement whose variables there are. Raises SqlError."""
        for each in expression.find_all(exp.SessionParameter):
            if each.name.lower() not in self.variables:
                what = f"there is no variable {printable(each.name)}"
                raise SqlError(what, where="SQL", fix="SHOW VARIABLES lists them")
        if (found := expression.find(exp.Parameter)) is not None:
            what = f"{printable(found.sql(dialect='mysql'))} is a variable of a user, of which there are none"
            raise SqlError(what, where="SQL", fix="Write its value")
        return expression

    def _opened(self, expression: exp.Expr) -> tuple[Open, Callable[[], None]]:
        """Return what runs a statement, and what stops it. Raises SqlError."""
        assert self._client is not None
        if isinstance(expression, exp.Command) and str(expression.this).upper() == "SHOW":
            expression = parse(rewritten_show(f"SHOW {expression.expression}"))
        shown = _as_show(expression)
        if shown is not None:
            return partial(self._shown, shown), _nothing
        require_read(expression)
        limit = self.variables.get("sql_select_limit")
        text = duckdb_text(expression, self.database, max_rows=None if limit is None else max(int(limit), 0))
        if self.database == INFORMATION_SCHEMA or reads_information_schema(expression):
            return partial(self._described, lambda _: text), _nothing
        if expression.find(exp.Table) is None:
            return partial(answered, text=text, described={}), _nothing
        session: list[SqlSession] = []
        client, bounds, unexported = self._client, self._front.bounds, self._unexported

        @contextmanager
        def run(engine: Engine) -> Iterator[Answer]:
            made = SqlSession(client, bounds=bounds, engine=engine, unexported=unexported)
            session.append(made)
            with made.run(text) as answer:
                yield answer

        def cancel() -> None:
            for each in session:
                each.cancel()

        return run, cancel

    @contextmanager
    def _described(self, text_of: Callable[[Any], str], engine: Engine) -> Iterator[TableAnswer]:
        assert self._client is not None
        tables = list(tables_of(each.schema for each in self._client.stores()).values())
        described = information_schema(tables, self.variables.list())
        with answered(engine, text_of(tables), described) as answer:
            yield answer

    @contextmanager
    def _shown(self, show: exp.Show, engine: Engine) -> Iterator[TableAnswer]:
        pattern = show.args.get("like")
        like = None if pattern is None else pattern.sql(dialect="duckdb")
        with self._described(lambda tables: show_text(show, tables, self.database, like), engine) as answer:
            yield answer

    async def _run(self, opened: tuple[Open, Callable[[], None]]) -> ResultSet:
        """Start a statement, and return its rows, which come as they are read."""
        timeout_s = self._timeout_s()
        reason = f"the statement took longer than {timeout_s:g} s: read less, or give more by --statement-timeout-s"
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self.stop, reason)
        try:
            statement = await self._placed(*opened)
            schema = await self._part(statement.start())
            if (version := statement.version) is not None:
                self.variables.set(_VERSION, version, force=True)
            columns = ResultColumns(schema)
            return ResultSet(self._rows(statement, columns), columns.described)
        except BaseException:
            self._end()
            raise

    async def _placed(self, open_: Open, cancel: Callable[[], None]) -> Statement:
        """Wait for a place, and return the statement that has it. From that moment on `_end` closes it, so a connection
        that is killed then keeps no place.
        """

        async def place() -> None:
            self._running = await self._front.places.begin(open_, cancel)

        if self._stopped.is_set():
            raise SqlError(self._reason, where="SQL")
        self._waiting = asyncio.ensure_future(place())
        try:
            await self._waiting
        except asyncio.CancelledError:
            if self._reason:
                raise SqlError(self._reason, where="SQL") from None
            raise
        finally:
            self._waiting = None
        assert self._running is not None
        return self._running

    async def _part(self, part: Coroutine[Any, Any, T]) -> T:
        """Return what a part of a statement brings. One that was stopped says why, though its thread may go on."""
        working = asyncio.ensure_future(part)
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await asyncio.wait({working}, timeout=0 if self._is_gone else _STOP_S)
            if not working.done():
                raise SqlError(self._reason, where="SQL")
            return working.result()
        except UnderstudyError as error:
            raise (SqlError(self._reason, where="SQL") if self._reason else error) from None
        finally:
            stopping.cancel()
            working.cancel()

    async def _rows(self, statement: Statement, columns: ResultColumns) -> AsyncIterator[tuple[Any, ...]]:
        places, left = self._front.places, self._front.limits.max_result_rows
        try:
            while (batch := await self._part(statement.next())) is not None:
                left -= batch.num_rows
                if left < 0:
                    what = f"the result has more than {self._front.limits.max_result_rows} rows"
                    raise SqlError(what, where="SQL", fix="Add LIMIT, or give more by --max-result-rows")
                for row in await places.call(partial(columns.rows, batch)):
                    yield row
        except UnderstudyError as error:
            raise _mysql_error(error) from None
        finally:
            if statement is self._running:
                self._end()

    def _timeout_s(self) -> float:
        asked_ms = self.variables.get("max_execution_time") or 0
        limit_s = self._front.limits.statement_timeout_s
        return min(limit_s, asked_ms / 1000) if asked_ms > 0 else limit_s


def _nothing() -> None:
    """Stop nothing: statements about tables are short."""


def _is_begin(expression: exp.Expr) -> bool:
    return isinstance(expression, exp.Command) and str(expression.this).upper() in _TRANSACTION


def _as_show(expression: exp.Expr) -> exp.Show | None:
    """Return a SHOW, or the one that a DESCRIBE of a table is; None for other statements."""
    if isinstance(expression, exp.Show):
        return expression
    if isinstance(expression, exp.Describe) and isinstance(expression.this, exp.Table):
        table = expression.this
        return exp.Show(this="COLUMNS", target=table.this, db=table.args.get("db"))
    return None


def _functions(session: StoreSession) -> dict[str, Callable[[], Any]]:
    """Return the functions that tell of a session."""
    user = f"{session.username}@%"
    user_of, database = (lambda: user), (lambda: session.database)
    return {
        "CONNECTION_ID": lambda: session.connection.connection_id,
        "VERSION": lambda: session.variables.get("version"),
        "CURRENT_VERSION": lambda: session.variables.get("version"),
        **dict.fromkeys(("USER", "CURRENT_USER", "SYSTEM_USER", "SESSION_USER"), user_of),
        **dict.fromkeys(("DATABASE", "SCHEMA", "CURRENT_SCHEMA", "CURRENT_DATABASE"), database),
        **dict.fromkeys(("LAST_INSERT_ID", "ROW_COUNT", "FOUND_ROWS"), lambda: 0),
    }


def _no_database(name: str) -> SqlError:
    return SqlError(f"there is no database {printable(name)}", where="SQL", fix=f"The stores are tables of {DATABASE}")


def _mysql_error(error: UnderstudyError) -> MysqlError:
    """Return an error as a client of MySQL gets it: in one line, with what to do."""
    where = f" ({error.where})" if error.where and error.where != "SQL" else ""
    fix = f". {error.fix}" if error.fix else ""
    return MysqlError(f"{error.what}{where}{fix}", _code(error))


def _code(error: UnderstudyError) -> Any:
    if isinstance(error, MemoryLimitError) or not isinstance(error, SqlError):
        return ErrorCode.UNKNOWN_ERROR
    for start, code in _CODES.items():
        if error.what.startswith(start):
            return code
    return ErrorCode.UNKNOWN_ERROR


_CODES: Final = {
    "You have an error in your SQL syntax": ErrorCode.PARSE_ERROR,
    "there is no statement": ErrorCode.EMPTY_QUERY,
    "there is no variable": ErrorCode.UNKNOWN_SYSTEM_VARIABLE,
    "there is no table": 1146,
    "there is no column": 1054,
    "there is no database": 1049,
    "SHOW ": ErrorCode.NOT_SUPPORTED_YET,
}
"""The numbers of MySQL, by which some drivers choose the class of an error."""
