"""`Server`: a server in memory, and what a test does to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from understudy.client.errors import UsageError
from understudy.testing.seam import MemoryService, find_service
from understudy.testing.stores import Changes, DeclaredStore, Store
from understudy.testing.transports import AsyncMemoryTransport, MemoryTransport

if TYPE_CHECKING:
    from understudy.client.aio import AsyncClient
    from understudy.client.sync import Client

MEMORY_URL = "http://understudy.testing"
"""The URL of clients in memory; nothing resolves it."""

MAX_AGE = timedelta(days=365)
"""Longest time by which the clock of a server moves at once."""


class Trouble:
    """A fault of a server, until `end`, or until the end of a `with` block."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def end(self) -> None:
        """End it; the server is as before when this returns."""
        self._end()

    def __enter__(self) -> Trouble:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Server:
    """A server in memory with the stores that are declared.

        with Server({"aircraft": Store(key={"tail": "string"}, value={"flights": "long"}, rows=[...])}) as server:
            server.client().store("aircraft").get("N14228")

    It answers as `understudy serve` does, because it is its code: only the checkpoint is in memory, and its query is
    `commit`. Any thread may use it.
    """

    def __init__(self, stores: Mapping[str, Store], *, partitions: int = 2) -> None:
        """Start it at version 1, which has the rows of the stores. Raises UsageError and BadKeyError."""
        if not stores:
            raise UsageError("a server needs a store", where="stores", fix='Give {"name": Store(key=..., value=...)}')
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 64:
            raise UsageError(
                f"partitions={partitions!r} is not a number from 1 to 64", where="partitions", fix="Give partitions=2"
            )
        self._stores = {name: DeclaredStore(name, declared) for name, declared in stores.items()}
        self._troubles: set[Trouble] = set()
        self._url = ""
        self._service: MemoryService = find_service()(
            {name: (each.key, each.value, each.result) for name, each in self._stores.items()},
            {name: each.rows for name, each in self._stores.items()},
            partitions=partitions,
        )

    def __repr__(self) -> str:
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

    # ---- the query

    @property
    def version(self) -> int:
        """The version that was committed last."""
        return self._service.version

    @property
    def now(self) -> datetime:
        """The time at the server, which `lag` moves forward."""
        return datetime.fromtimestamp(self._service.wall_us() / 1e6, UTC)

    def commit(self, changes: Mapping[str, Changes] | None = None) -> int:
        """Commit the next version, and return it when it can be read.

            server.commit({"aircraft": {"N1": {"flights": 4}, "N2": None}})

        Keys are given as to a client, values by column or as a model; None deletes a key. Raises UsageError and
        BadKeyError for what does not fit, and commits nothing then.
        """
        changes = changes or {}
        unknown = [name for name in changes if name not in self._stores]
        if unknown:
            raise UsageError(
                f"there is no store {unknown[0]!r}", where="commit", fix=f"The server has {', '.join(self._stores)}"
            )
        return self._service.commit({name: self._stores[name].changes(each) for name, each in changes.items()})

    # ---- what goes wrong

    def lag(self, age: timedelta | None, *, versions: int = 1) -> Trouble:
        """Let answers be `age` behind: the query commits `versions` more, which are not shown, and that time passes.

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
        return self._began(self._service.lag(None if age is None else age.total_seconds() * 1000, versions))

    def fail(
        self,
        problem: str = "no-acceptable-replica",
        *,
        detail: str = "",
        store: str | None = None,
        times: int | None = None,
    ) -> Trouble:
        """Answer requests of the API with a problem, named by its type: all of them, those of one store, so many."""
        return self._trouble(problem=problem, detail=detail, store=store, times=times)

    def slow(self, delay: timedelta, *, store: str | None = None, times: int | None = None) -> Trouble:
        """Answer requests of the API after a delay."""
        if not isinstance(delay, timedelta) or delay < timedelta(0):
            raise UsageError(f"delay={delay!r} is not a time", where="delay", fix="Give timedelta(milliseconds=50)")
        return self._trouble(delay_s=delay.total_seconds(), store=store, times=times)

    def cut(self, *, store: str | None = None, times: int | None = None) -> Trouble:
        """Close the connection of a request of the API in the middle of its answer."""
        return self._trouble(is_cut=True, store=store, times=times)

    def heal(self) -> None:
        """End all troubles."""
        for trouble in list(self._troubles):
            trouble.end()

    def _trouble(
        self,
        *,
        problem: str | None = None,
        detail: str = "",
        delay_s: float = 0.0,
        is_cut: bool = False,
        store: str | None = None,
        times: int | None = None,
    ) -> Trouble:
        if store is not None and store not in self._stores:
            raise UsageError(f"there is no store {store!r}", where="store", fix=f"Give {', '.join(self._stores)}")
        if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
            raise UsageError(f"times={times!r} is not a number of requests", where="times", fix="Give times=1, or None")
        return self._began(
            self._service.trouble(
                problem=problem, detail=detail, delay_s=delay_s, is_cut=is_cut, store=store, times=times
            )
        )

    def _began(self, end: Callable[[], None]) -> Trouble:
        def ended() -> None:
            self._troubles.discard(trouble)
            end()

        trouble = Trouble(ended)
        self._troubles.add(trouble)
        return trouble
