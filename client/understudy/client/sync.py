"""`Client`: the shell that blocks. Threads may share one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from understudy.client.core import lookups, scans
from understudy.client.core.changes import ChangesOptions, ChangesQuestion, ReadingChanges
from understudy.client.core.exchange import Steps
from understudy.client.core.reader import BoundStore, Reader
from understudy.client.core.scans import HistorySpan, Question
from understudy.client.core.state import Duration, Routing, client_state
from understudy.client.core.values import Bounds, CountQuestion, RowsQuestion, Since, SnapshotBounds, WindowQuestion
from understudy.client.core.watches import Watching, WatchOptions, WatchQuestion
from understudy.client.credentials import trust
from understudy.client.driver import Changes, Driver, Watch
from understudy.client.pages import Count, KeyVersion, Page, Reads, Row, Window
from understudy.client.results import Result, RoutingCounts, StoreInfo, Stores, V
from understudy.client.transports.base import Transport
from understudy.client.transports.sockets import SocketTransport
from understudy_shared.base.errors import UnderstudyError

if TYPE_CHECKING:
    import ssl

    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl
    import pyarrow as pa

T = TypeVar("T")
M = TypeVar("M")


class Store(Generic[V]):
    """A store, and the calls that read it. `Client.store` makes it."""

    def __init__(self, driver: Driver, store: BoundStore) -> None:
        self._driver, self._store = driver, store
        self.driver, self.reader = driver, store  # for modules that add calls of their own, as SQL does

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def name(self) -> str:
        return self._store.name

    def get(self, *key: Any, timeout: Duration | None = None, **bounds: Unpack[Bounds]) -> Result[V]:
        """Look one key up: a value for each key column, a mapping by column, or a model."""
        deadline_s = self._driver.state.deadline_s(timeout)
        return self._driver.run(lookups.get(self._store, key, bounds, deadline_s))

    def get_many(
        self, keys: Sequence[Any], *, timeout: Duration | None = None, **bounds: Unpack[Bounds]
    ) -> list[Result[V]]:
        """Look many keys up; the results are in the order of the keys. A key that could not be read has an `error`."""
        deadline_s = self._driver.state.deadline_s(timeout)
        return self._driver.run(lookups.get_many(self._store, keys, bounds, deadline_s))

    def info(self, *, timeout: Duration | None = None) -> StoreInfo:
        """Describe the store: its columns, its kind, its lineage."""
        return self._driver.run(lookups.info(self._store, self._driver.state.deadline_s(timeout)))

    def scan(self, *, timeout: Duration | None = None, **question: Unpack[RowsQuestion]) -> Scan[V]:
        """Iterate over rows, all of one version, or over the first `limit` of them; or take them as a table. `timeout`
        is for each page.
        """
        return Scan(self._driver, Question(self._store, "scan", question), timeout)

    def top(self, n: int, *, by: str, timeout: Duration | None = None, **question: Unpack[RowsQuestion]) -> Scan[V]:
        """Iterate over the `n` rows with the greatest values of a column, the greatest first."""
        asked: RowsQuestion = {**question, "order": by, "reverse": True, "limit": n}
        return self.scan(timeout=timeout, **asked)

    def count(
        self, *, estimate: bool = False, timeout: Duration | None = None, **question: Unpack[CountQuestion]
    ) -> Count:
        """Count rows, exactly or about."""
        asked = Question(self._store, "count", {**question, **({"estimate": True} if estimate else {})})
        return self._driver.run(scans.count(asked, self._driver.state.deadline_s(timeout, is_scan=True)))

    def windows(
        self, *key: Any, timeout: Duration | None = None, **question: Unpack[WindowQuestion]
    ) -> Pages[Window[V]]:
        """Iterate over the windows of a key, in the order of their starts. The key is without its window."""
        asked = Question(self._store, "windows", question, key)
        return Pages(self._driver, partial(scans.windows, asked), asked.limit, timeout)

    def history(
        self,
        *key: Any,
        first: int | None = None,
        last: int | None = None,
        include_expired: bool | None = None,
        timeout: Duration | None = None,
    ) -> Iterator[KeyVersion[V]]:
        """Iterate over the versions that changed a key, both ends inclusive, the oldest first."""
        asked = HistorySpan(self._store, key, last, include_expired=include_expired)
        while True:
            deadline_s = self._driver.state.deadline_s(timeout, is_scan=True)
            versions, following = self._driver.run(asked.page(first, deadline_s))
            yield from versions
            if following is None:
                return
            first = following

    def watch(self, *key: Any, timeout: Duration | None = None, **options: Unpack[WatchOptions]) -> Watch[V]:
        """Iterate over the value of a key and each version that changes it, or over all changes after a position; with
        `prefix` instead of a key, over those of all keys with it.

        The watch resumes by itself, at any server. `timeout` is for its start.
        """
        return self._watched(WatchQuestion([key], options), timeout)

    def watch_many(
        self, keys: Sequence[Any], *, timeout: Duration | None = None, **options: Unpack[WatchOptions]
    ) -> Watch[V]:
        """Iterate over the same of up to 1,000 keys. Events of one key are in the order of their versions."""
        return self._watched(WatchQuestion(keys, options, is_many=True), timeout)

    def changes(
        self,
        first: int | None = None,
        last: int | None = None,
        *,
        since: Since | None = None,
        timeout: Duration | None = None,
        **options: Unpack[ChangesOptions],
    ) -> Changes[V]:
        """Iterate over what each version put or deleted, both ends inclusive; without `last` to the newest version.
        `since` is a time in place of a version: `"1m"` ago, or a `datetime`.

        It resumes by itself, at any server. `timeout` is for its start.
        """
        asked = ChangesQuestion(first, last, options, since)
        timeout_s = self._driver.state.timeout_s(timeout, is_scan=True)
        return Changes(self._driver.take, ReadingChanges(self._store, asked, timeout_s))

    def _watched(self, asked: WatchQuestion, timeout: Duration | None) -> Watch[V]:
        timeout_s = self._driver.state.timeout_s(timeout, is_scan=asked.prefix is not None)
        return Watch(self._driver.take, Watching(self._store, asked, timeout_s))


class Pages(Generic[T]):
    """A list that comes in pages: iterate over it, or over its `pages()`."""

    def __init__(
        self,
        driver: Driver,
        page: Callable[[str | None, int | None, float], Steps[Page[T]]],
        limit: int | None,
        timeout: Duration | None,
    ) -> None:
        self._driver, self._page, self._limit, self._timeout = driver, page, limit, timeout

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            yield from page.items

    def pages(self, cursor: str | None = None) -> Iterator[Page[T]]:
        """Iterate over the pages, from the `next_cursor` of one on. A page may be empty and not be the last."""
        left = self._limit
        while True:
            deadline_s = self._driver.state.deadline_s(self._timeout, is_scan=True)
            page = self._driver.run(self._page(cursor, left, deadline_s))
            yield page
            cursor = page.next_cursor
            left = None if left is None else left - len(page.items)
            if cursor is None or (left is not None and left <= 0):
                return


class Scan(Pages[Row[V]]):
    """The rows of a scan: iterate over them, over their `pages()`, or take all of them at once as a table.

    The columns are as in an export, plus `problem` where a row has one. They come by an export if it can give these
    rows.
    """

    def __init__(self, driver: Driver, asked: Question, timeout: Duration | None) -> None:
        super().__init__(driver, partial(scans.rows, asked), asked.limit, timeout)
        self._asked = asked

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table of pyarrow. Raises MissingExtraError without it."""
        return self._driver.run(scans.table(self._asked, self._deadline_s))

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame of pandas, with Arrow's types: an integer that may be null stays an integer.
        Raises MissingExtraError without it.
        """
        return self._driver.run(scans.frame(self._asked, self._deadline_s, "pandas"))

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a data frame of Polars. Raises MissingExtraError without it."""
        frame: pl.DataFrame = self._driver.run(scans.frame(self._asked, self._deadline_s, "polars"))
        return frame

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dicts by column, with JSON's values, and without any package."""
        return self._driver.run(scans.dicts(self._asked, self._deadline_s))

    def _deadline_s(self) -> float:
        return self._driver.state.deadline_s(self._timeout, is_scan=True)


class View:
    """A view of all stores: the newest, or of one version."""

    def __init__(self, driver: Driver, reader: Reader) -> None:
        self._driver, self._reader = driver, reader

    @overload
    def store(self, name: str, *, key: type | None = None, value: None = None) -> Store[Any]: ...

    @overload
    def store(self, name: str, *, key: type | None = None, value: type[M]) -> Store[M | None]: ...

    def store(self, name: str, *, key: type | None = None, value: type[Any] | None = None) -> Store[Any]:
        """Return the store of that name. `key` and `value` are models, as `understudy types` prints them."""
        return Store(self._driver, BoundStore(self._reader, name, key=key, value=value))

    def read(
        self, keys: Mapping[str, Sequence[Any]], *, timeout: Duration | None = None, **bounds: Unpack[Bounds]
    ) -> Reads:
        """Look keys of several stores up at one version: `read({"aircraft": ["N14228"], "airport": ["JFK"]})`."""
        deadline_s = self._driver.state.deadline_s(timeout)
        return self._driver.run(lookups.read(self._reader, keys, bounds, deadline_s))


class Snapshot(View):
    """The reads of a leased version. `lease` has all that the server says about it."""

    def __init__(self, driver: Driver, reader: Reader, lease: Mapping[str, Any]) -> None:
        super().__init__(driver, reader)
        self.lease = lease

    def __repr__(self) -> str:
        return f"Snapshot(version={self.version})"

    @property
    def version(self) -> int:
        version: int = self.lease["version"]
        return version

    @property
    def token(self) -> str:
        """The token of the lease: `snapshot` of any read, also of other programs."""
        token: str = self.lease["snapshot"]
        return token


class Application(View):
    """An application of a fleet: its stores, its position and its snapshots. `Client.application` makes it."""

    def __repr__(self) -> str:
        return f"Application({self._driver.state.application!r})"

    @property
    def position(self) -> str | None:
        """The newest position of all answers: as `min_position` elsewhere, no answer is older."""
        return self._driver.state.position.token

    @property
    def routing_counts(self) -> RoutingCounts | None:
        """Counts of keys asked of nodes, and of routers with the reasons; None without direct routing."""
        direct = self._reader.direct
        return None if direct is None else direct.counts

    def stores(self, *, estimate: bool = False, timeout: Duration | None = None) -> Stores:
        """List the stores that can be asked. `estimate`: with the approximate number of keys of each."""
        deadline_s = self._driver.state.deadline_s(timeout)
        return self._driver.run(lookups.stores(self._reader, deadline_s, estimate=estimate))

    def lag(self, store: str | None = None, *, timeout: Duration | None = None) -> Mapping[str, Any]:
        """Report the lag of each replica, as the server's JSON."""
        return self._driver.run(lookups.lag(self._reader, store, self._driver.state.deadline_s(timeout)))

    def at(self, moment: datetime | timedelta | str | int | None = None, *, version: int | None = None) -> View:
        """Return reads at the last version committed by a moment, or at a version by its number."""
        return View(self._driver, self._reader.at(moment, version))

    @contextmanager
    def snapshot(
        self,
        stores: Sequence[str] | None = None,
        *,
        ttl: timedelta | None = None,
        timeout: Duration | None = None,
        **bounds: Unpack[SnapshotBounds],
    ) -> Iterator[Snapshot]:
        """Lease one version of all stores, or of those named, for the reads of the block. Each use renews it."""
        state = self._driver.state
        lease = self._driver.run(
            lookups.lease(
                self._reader,
                stores=stores,
                ttl=ttl,
                bounds=bounds,
                deadline_s=state.deadline_s(timeout),
            )
        )
        held = Snapshot(self._driver, self._reader.naming({"snapshot": lease["snapshot"]}), lease)
        try:
            yield held
        finally:
            with suppress(UnderstudyError):  # it ends by itself, too
                self._driver.run(lookups.release(self._reader, held.token, state.deadline_s(timeout)))


class Client(Application):
    """A client of routers, or of nodes that hold everything (`understudy serve`).

        with Client("http://127.0.0.1:8080") as client:
            client.store("aircraft").get("N14228", max_staleness=timedelta(seconds=5)).value

    `application`: the application of a fleet that all calls are for. Without it, the name of a store must be unique
    among the applications.

    Without arguments it reads `UNDERSTUDY_URL`, `UNDERSTUDY_API_KEY` and the other variables of the command line.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        api_key_file: str | os.PathLike[str] | None = None,
        timeout: Duration = 5.0,
        scan_timeout: Duration = 30.0,
        retries: int = 2,
        session: bool = False,
        routing: Routing = "routers",
        addresses: Mapping[str, str] | None = None,
        application: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Prepare calls; nothing is sent. Raises UsageError."""
        # Keywords and no object of settings: readers write this call by hand, and their editors show its choices.
        state = client_state(
            urls,
            api_key=api_key,
            api_key_file=api_key_file,
            timeout=timeout,
            scan_timeout=scan_timeout,
            retries=retries,
            session=session,
            routing=routing,
            addresses=addresses,
            environ=os.environ,
            application=application,
        )
        trusted = trust(os.environ, ssl_context, ca_file=ca_file, cert_file=cert_file, key_file=key_file)
        super().__init__(Driver(state, transport or SocketTransport(trusted)), Reader(state))

    def __repr__(self) -> str:
        return f"Client({self._driver.state.servers!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        self._driver.transport.close()

    def application(self, name: str) -> Application:
        """Return the calls of one application of a fleet, over the same connections. Raises UsageError."""
        state = self._driver.state.within(name)
        return Application(Driver(state, self._driver.transport), Reader(state))
