"""`Server`: a server in memory, of one application or several."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from understudy.client.errors import UsageError
from understudy.testing.application import Application
from understudy.testing.seam import MemoryService, find_service
from understudy.testing.stores import DeclaredStore, Store
from understudy.testing.transports import AsyncMemoryTransport, MemoryTransport
from understudy_shared.base.errors import SettingsError
from understudy_shared.fleet.choosing import require_id

if TYPE_CHECKING:
    from understudy.client.aio import AsyncClient
    from understudy.client.sync import Client

MEMORY_URL = "http://understudy.testing"
"""The URL of clients in memory; nothing resolves it."""


class Server(Application):
    """A server in memory with the stores that are declared.

        with Server({"aircraft": Store(key={"tail": "string"}, value={"flights": "long"}, rows=[...])}) as server:
            server.client().store("aircraft").get("N14228")

    It answers as `understudy serve` does, because it is its code: only the checkpoint is in memory, and its query is
    `commit`. Any thread may use it.

    With `applications` it is a fleet, as `understudy serve A B`: `application("orders")` is the query of one, and
    `client(application="orders")` reads it.
    """

    def __init__(
        self,
        stores: Mapping[str, Store] | None = None,
        *,
        applications: Mapping[str, Mapping[str, Store]] | None = None,
        partitions: int = 2,
    ) -> None:
        """Start it at version 1, which has the rows of the stores. Raises UsageError and BadKeyError."""
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
        self._url = ""
        self._service: MemoryService = find_service()(
            {
                application: (
                    {name: (each.key, each.value, each.result) for name, each in stores.items()},
                    {name: each.rows for name, each in stores.items()},
                )
                for application, stores in declared.items()
            },
            partitions=partitions,
        )
        found = self._service.applications
        self._applications = {name: Application(stores, found[name]) for name, stores in declared.items() if name}
        super().__init__(declared.get("", {}), found.get(""))

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
        self._service.close()

    # ---- clients

    def client(self, **options: Any) -> Client:
        """Return a `Client` of this server, without a socket. It takes the options of any `Client`, but no URL."""
        from understudy.client.sync import Client  # noqa: PLC0415  # as `understudy` itself does

        return Client(MEMORY_URL, transport=MemoryTransport(self._service.connect), **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """Return an `AsyncClient` of this server, without a socket, for any event loop."""
        from understudy.client.aio import AsyncClient  # noqa: PLC0415

        return AsyncClient(MEMORY_URL, transport=AsyncMemoryTransport(self._service.connect), **options)

    def listen(self, port: int = 0) -> str:
        """Listen at a port of this machine, for other processes and languages, and return the URL. 0 takes a free one;
        a second call returns the same.
        """
        if not self._url:
            self._url = self._service.listen("127.0.0.1", port)
        return self._url

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
