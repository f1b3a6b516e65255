"""`Server`: a server for tests, of one application or several, and the stores that a test declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from understudy.client.credentials import trust
from understudy.client.errors import UsageError
from understudy.client.transports.sockets import SocketTransport
from understudy.typed.columns import TypedColumn
from understudy.typed.key_writer import KeyWriter
from understudy.typed.models import columns_of
from understudy_shared.base.errors import SettingsError, UnsupportedError
from understudy_shared.base.extras import MissingExtraError
from understudy_shared.base.texts import clipped
from understudy_shared.fleet.applications_file import require_id
from understudy_shared.spark.types import Field, StructType, parse_type_name

if TYPE_CHECKING:
    from understudy.client.aio import AsyncClient
    from understudy.client.sync import Client
    from understudy.testing.service import LocalService, Query

Changes = Mapping[Any, Any] | Iterable[tuple[Any, Any]]
"""Values by key, or pairs of them where keys are not hashable. None deletes the key."""

Change = tuple[object, object]
"""The JSON of a key in exact form, and of its value: an object by column, or None to delete the key."""


@dataclass(frozen=True)
class StoreDefinition:
    """A store: the columns of its key and of its value, and the rows that it begins with, key and value in one.

    Types are Spark's, as `GET /v1/stores` prints them. `result` is what the query makes of stored values, as an alias
    file has it.
    """

    key: Mapping[str, str]
    value: Mapping[str, str]
    rows: Sequence[Any] = ()
    result: Mapping[str, object] = field(default_factory=dict)


class DeclaredStore:
    """A store as it was declared, checked."""

    def __init__(self, name: str, declared: StoreDefinition) -> None:
        """Check it. Raises UsageError."""
        self.name = name
        self.key, self.value = _struct(name, "key", declared.key), _struct(name, "value", declared.value)
        self.result = declared.result
        twice = [*declared.key.keys() & declared.value.keys()]
        if twice:
            raise UsageError(
                f"a column is in the key and in the value: {', '.join(twice)}",
                where=f"store {name}",
                fix="Give each column another name",
            )
        self._write_key = KeyWriter(_columns(self.key)).write
        self._write_value = KeyWriter(_columns(self.value)).write
        self.rows: Sequence[Change] = [self._row(each) for each in declared.rows]

    def changes(self, changes: Changes) -> list[Change]:
        """Return changes as JSON. Raises UsageError and BadKeyError for what does not fit."""
        pairs = changes.items() if isinstance(changes, Mapping) else changes
        return [(self._write_key(key), None if value is None else self._value(key, value)) for key, value in pairs]

    def _row(self, row: Any) -> Change:
        columns = self._by_column(row, "a row")
        key = {name: columns[name] for name in _names(self.key) if name in columns}
        return self._write_key(key), self._value(key, {name: columns[name] for name in columns if name not in key})

    def _value(self, key: object, value: Any) -> object:
        columns = self._by_column(value, f"the value of {clipped(key)}")
        known = _names(self.value)
        unknown = [name for name in columns if name not in known]
        if unknown:
            raise UsageError(
                f"there is no column {clipped(unknown[0])}",
                where=f"store {self.name}",
                fix=f"The value has {', '.join(known)}",
            )
        return self._write_value({name: columns.get(name) for name in known})

    def _by_column(self, row: Any, what: str) -> Mapping[str, Any]:
        columns = columns_of(row)
        if columns is None:
            raise UsageError(
                f"{what} is not given by column: {clipped(row)}",
                where=f"store {self.name}",
                fix="Give a dict by column, or a model",
            )
        return columns


def _struct(store: str, part: str, columns: Mapping[str, str]) -> StructType:
    if not columns:
        raise UsageError(f"the {part} has no columns", where=f"store {store}", fix=f'Give {part}={{"name": "string"}}')
    return StructType(tuple(Field(name, _type(store, name, text)) for name, text in columns.items()))


def _type(store: str, column: str, text: str) -> Any:
    try:
        return parse_type_name(text)
    except UnsupportedError:
        raise UsageError(
            f"{clipped(text)} is not a type of Spark",
            where=f"store {store}, column {column}",
            fix="Write it as GET /v1/stores prints it: long, decimal(12,2), struct<start:timestamp,end:timestamp>",
        ) from None


def _columns(struct: StructType) -> list[TypedColumn]:
    return [TypedColumn(each.name, each.type, each.nullable) for each in struct.fields]


def _names(struct: StructType) -> list[str]:
    return [each.name for each in struct.fields]


MAX_AGE = timedelta(days=365)
"""Largest step of a server's clock."""


class Trouble:
    """A fault of a server, until `end`, or until the end of a `with` block."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def end(self) -> None:
        """End it; the server is as before when this returns."""
        self._end()

    def __enter__(self) -> Trouble:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class ServedApplication:
    """One query of a server: its commits, and what goes wrong with it. Others do not notice."""

    def __init__(self, stores: Mapping[str, DeclaredStore], query: Query | None) -> None:
        """Take the stores. `query` writes them; None where a server has several applications."""
        self._stores = stores
        self._only = query
        self._troubles: set[Trouble] = set()

    @property
    def _query(self) -> Query:
        if self._only is None:
            raise UsageError(
                "the server has several applications",
                where="application",
                fix='Name one: server.application("orders").commit(...)',
            )
        return self._only

    # ---- the query

    @property
    def version(self) -> int:
        """The version that was committed last."""
        return self._query.version

    @property
    def now(self) -> datetime:
        """The time at the server, which `lag` moves forward."""
        return datetime.fromtimestamp(self._query.wall_us() / 1e6, UTC)

    def commit(self, changes: Mapping[str, Changes] | None = None) -> int:
        """Commit the next version, and return it when it can be read.

            server.commit({"aircraft": {"N1": {"flights": 4}, "N2": None}})

        Keys are given as to a client, values by column or as a model; None deletes a key. Raises UsageError and
        BadKeyError for what does not fit, and commits nothing then.
        """
        query, changes = self._query, changes or {}
        unknown = [name for name in changes if name not in self._stores]
        if unknown:
            raise UsageError(
                f"there is no store {unknown[0]!r}", where="commit", fix=f"The server has {', '.join(self._stores)}"
            )
        return query.commit({name: self._stores[name].changes(each) for name, each in changes.items()})

    # ---- what goes wrong

    def lag(self, age: timedelta | None, *, versions: int = 1) -> Trouble:
        """Let answers lag by `age`: the query commits `versions` more, which are not shown, and that time passes.

        What is committed meanwhile is shown at the end, too. With None the server loses its storage: lag is unknown.
        """
        if age is not None and (not isinstance(age, timedelta) or not timedelta(0) <= age <= MAX_AGE):
            raise UsageError(
                f"age={age!r} is not a time up to a year", where="age", fix="Give timedelta(seconds=30), or None"
            )
        if isinstance(versions, bool) or not isinstance(versions, int) or not 1 <= versions <= 1000:
            raise UsageError(
                f"versions={versions!r} is not a number from 1 to 1000", where="versions", fix="Give versions=1"
            )
        return self._began(self._query.lag(None if age is None else age.total_seconds() * 1000, versions))

    def fail(
        self,
        problem: str = "no-acceptable-replica",
        *,
        detail: str = "",
        store: str | None = None,
        times: int | None = None,
    ) -> Trouble:
        """Answer requests of the API with a problem, named by its type: all requests, a store's, or some of them."""
        return self._trouble(store, times, problem=problem, detail=detail)

    def slow(self, delay: timedelta, *, store: str | None = None, times: int | None = None) -> Trouble:
        """Answer requests of the API after a delay."""
        if not isinstance(delay, timedelta) or delay < timedelta(0):
            raise UsageError(f"delay={delay!r} is not a time", where="delay", fix="Give timedelta(milliseconds=50)")
        return self._trouble(store, times, delay_s=delay.total_seconds())

    def cut(self, *, store: str | None = None, times: int | None = None) -> Trouble:
        """Close the connection of a request of the API in the middle of its answer."""
        return self._trouble(store, times, is_cut=True)

    def heal(self) -> None:
        """End all troubles."""
        for trouble in list(self._troubles):
            trouble.end()

    def _trouble(self, store: str | None, times: int | None, **fault: Any) -> Trouble:
        query = self._query
        if store is not None and store not in self._stores:
            raise UsageError(f"there is no store {store!r}", where="store", fix=f"Give {', '.join(self._stores)}")
        if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
            raise UsageError(f"times={times!r} is not a number of requests", where="times", fix="Give times=1, or None")
        return self._began(query.fault(store, times, **fault))

    def _began(self, end: Callable[[], None]) -> Trouble:
        def ended() -> None:
            self._troubles.discard(trouble)
            end()

        trouble = Trouble(ended)
        self._troubles.add(trouble)
        return trouble


class Server(ServedApplication):
    """A server with the stores that are declared, on a port of this machine.

        with Server({"aircraft": Store(key={"tail": "string"}, value={"flights": "long"}, rows=[...])}) as server:
            server.client().store("aircraft").get("N14228")

    It is the service of `understudy serve`, in this process, over a small checkpoint in a folder for temporary files.
    Its query is `commit`. Any thread may use it.

    With `applications` it is a fleet, as `understudy serve A B`: `application("orders")` is the query of one, and
    `client(application="orders")` reads it.
    """

    def __init__(
        self,
        stores: Mapping[str, StoreDefinition] | None = None,
        *,
        applications: Mapping[str, Mapping[str, StoreDefinition]] | None = None,
        partitions: int = 2,
        port: int = 0,
    ) -> None:
        """Start it at version 1, which has the rows of the stores. `port` 0 takes a free one.

        Raises UsageError and BadKeyError.
        """
        if (stores is None) == (applications is None):
            raise UsageError(
                "a server has either stores or applications",
                where="stores",
                fix='Give {"name": Store(key=..., value=...)}, or applications={"orders": {"name": Store(...)}}',
            )
        declared = _declared({"": stores} if stores is not None else _named(applications or {}))
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 64:
            raise UsageError(
                f"partitions={partitions!r} is not a number from 1 to 64", where="partitions", fix="Give partitions=2"
            )
        self._service = _start(declared, partitions=partitions, port=port)
        self._transport = SocketTransport(trust({}, None, ca_file=None, cert_file=None, key_file=None))
        self.url = f"http://127.0.0.1:{self._service.port}"
        """Its URL, for clients of its own making, other processes and languages."""
        queries = self._service.queries
        self._applications = {
            name: ServedApplication(stores, queries[name]) for name, stores in declared.items() if name
        }
        super().__init__(declared.get("", {}), queries.get(""))

    def __repr__(self) -> str:
        if self._applications:
            return f"Server({', '.join(self._applications)})"
        return f"Server({', '.join(self._stores)}; version {self.version})"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. Its clients find no server then."""
        self._transport.close()
        self._service.close()

    # ---- clients

    def client(self, **options: Any) -> Client:
        """Return a `Client` of this server. It takes the options of any `Client`, but no URL.

        All of them share their connections, which `close` of the server ends, too.
        """
        from understudy.client.sync import Client  # noqa: PLC0415  # as `understudy` itself does

        return Client(self.url, **{"transport": self._transport, **options})

    def async_client(self, **options: Any) -> AsyncClient:
        """Return an `AsyncClient` of this server, for any event loop."""
        from understudy.client.aio import AsyncClient  # noqa: PLC0415

        return AsyncClient(self.url, **options)

    # ---- its applications

    def application(self, name: str) -> ServedApplication:
        """Return the query of one application of a fleet. Raises UsageError if there is no such application."""
        if name not in self._applications:
            known = ", ".join(self._applications) or "no applications: it serves one query alone"
            raise UsageError(f"there is no application {name!r}", where="application", fix=f"The server has {known}")
        return self._applications[name]

    def heal(self) -> None:
        """End all troubles, of all applications."""
        super().heal()
        for application in self._applications.values():
            application.heal()


def _start(declared: Mapping[str, Mapping[str, DeclaredStore]], *, partitions: int, port: int) -> LocalService:
    """Start the service, or say which extra to install."""
    try:
        from understudy.testing.service import LocalService  # noqa: PLC0415  # the node, which imports seconds long
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"understudy.testing needs {error.name}, which is not installed", extras="node"
        ) from None
    return LocalService(declared, partitions=partitions, port=port)


def _named(applications: Mapping[str, Mapping[str, StoreDefinition]]) -> Mapping[str, Mapping[str, StoreDefinition]]:
    """Return the applications of a fleet. Raises UsageError for what cannot be one."""
    for name in applications:
        try:
            require_id(name)
        except SettingsError as error:
            raise UsageError(error.what, where="applications", fix=error.fix) from None
    if not applications:
        raise UsageError("a fleet needs an application", where="applications", fix='Give {"orders": {...}}')
    return applications


def _declared(applications: Mapping[str, Mapping[str, StoreDefinition]]) -> dict[str, dict[str, DeclaredStore]]:
    if not all(applications.values()):
        raise UsageError("a server needs a store", where="stores", fix='Give {"name": Store(key=..., value=...)}')
    return {
        application: {name: DeclaredStore(name, each) for name, each in stores.items()}
        for application, stores in applications.items()
    }
