"""`Server`: a server for tests, of one application or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from understudy.client.credentials import trust
from understudy.client.errors import UsageError
from understudy.client.transports.sockets import SocketTransport
from understudy.testing.stores import Changes, DeclaredStore, StoreDefinition
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import MissingExtraError
from understudy_shared.fleet.applications_file import require_id

if TYPE_CHECKING:
    from understudy.client.aio import AsyncClient
    from understudy.client.sync import Client
    from understudy.testing.service import LocalService, Query

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
