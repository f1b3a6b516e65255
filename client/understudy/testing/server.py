"""`Server`: a server for tests, of one application or several."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from understudy.client.errors import UsageError
from understudy.client.transports.sockets import SocketTransport
from understudy.client.transports.trust import trust
from understudy.testing.application import Application
from understudy.testing.stores import DeclaredStore, Store
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import MissingExtraError
from understudy_shared.fleet.applications_file import require_id

if TYPE_CHECKING:
    from understudy.client.aio import AsyncClient
    from understudy.client.sync import Client
    from understudy.testing.service import LocalService


class Server(Application):
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
        stores: Mapping[str, Store] | None = None,
        *,
        applications: Mapping[str, Mapping[str, Store]] | None = None,
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
        self._applications = {name: Application(stores, queries[name]) for name, stores in declared.items() if name}
        super().__init__(declared.get("", {}), queries.get(""))

    def __repr__(self) -> str:
        if self._applications:
            return f"Server({', '.join(self._applications)})"
        return f"Server({', '.join(self._stores)}; version {self.version})"

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def application(self, name: str) -> Application:
        """Return the query of one application of a fleet. Raises UsageError for one that it does not have."""
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


def _named(applications: Mapping[str, Mapping[str, Store]]) -> Mapping[str, Mapping[str, Store]]:
    """Return the applications of a fleet. Raises UsageError for what cannot be one."""
    for name in applications:
        try:
            require_id(name)
        except SettingsError as error:
            raise UsageError(error.what, where="applications", fix=error.fix) from None
    if not applications:
        raise UsageError("a fleet needs an application", where="applications", fix='Give {"orders": {...}}')
    return applications


def _declared(applications: Mapping[str, Mapping[str, Store]]) -> dict[str, dict[str, DeclaredStore]]:
    if not all(applications.values()):
        raise UsageError("a server needs a store", where="stores", fix='Give {"name": Store(key=..., value=...)}')
    return {
        application: {name: DeclaredStore(name, each) for name, each in stores.items()}
        for application, stores in applications.items()
    }
