"""`AsyncClient`: the shell for event loops, with the surface of `Client`. Tasks may share one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload

from understudy.client.core import lookups, scans
from understudy.client.core.changes import ChangesOptions, ChangesQuestion, ReadingChanges
from understudy.client.core.exchange import (
    Close,
    Failure,
    Opened,
    Outcome,
    Receive,
    Send,
    Step,
    Steps,
    Tell,
    Together,
    Wait,
)
from understudy.client.core.reader import BoundStore, Reader
from understudy.client.core.scans import HistorySpan, Question
from understudy.client.core.state import ClientState, Duration, Routing, client_state
from understudy.client.core.streaming import Streaming
from understudy.client.core.values import Bounds, CountQuestion, RowsQuestion, Since, SnapshotBounds, WindowQuestion
from understudy.client.core.watches import Watching, WatchOptions, WatchQuestion
from understudy.client.credentials import trust
from understudy.client.pages import Count, KeyVersion, Page, Reads, Row, Window
from understudy.client.results import Result, RoutingCounts, StoreInfo, Stores, V, WatchEvent
from understudy.client.transports.base import AsyncStream, AsyncTransport
from understudy.client.transports.streams import StreamTransport
from understudy_shared.base.errors import UnderstudyError

if TYPE_CHECKING:
    import ssl

    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl
    import pyarrow as pa


class AsyncEvents(Generic[V]):
    """Events as they come: iterate over it. Its end closes the connection.

    One task iterates. It is an iterator, not a generator: leaving a loop by `break` or by cancellation leaves no task
    behind.
    """

    def __init__(self, take: Callable[[Step], Awaitable[Outcome]], streaming: Streaming) -> None:
        self._take, self._streaming = take, streaming
        self._steps = streaming.steps()
        self._stream: AsyncStream | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._streaming!r})"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent[V]:
        """Wait for the next event. Raises the error of a stream that cannot be resumed."""
        outcome: Outcome = None
        try:
            while not self._is_closed:
                try:
                    step = self._steps.send(outcome)
                except StopIteration:
                    break  # everything has come
                if isinstance(step, Tell):
                    event: WatchEvent[V] = step.event
                    return event
                outcome = await self._take(step)
                if isinstance(outcome, Opened):
                    self._stream = outcome.stream
                elif isinstance(step, Close):
                    self._stream = None
        except BaseException:
            await self.aclose()
            raise
        self._close_stream()  # one that was opened while another task closed it
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._close_stream()

    @property
    def position(self) -> str | None:
        """The position after all events so far, to resume another watch by `position`. None before the first."""
        return self._streaming.position

    async def aclose(self) -> None:
        """End it, and its connection."""
        self._is_closed = True
        self._close_stream()

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


class AsyncWatch(AsyncEvents[V]):
    """The events of a watch. `AsyncStore.watch` and `AsyncStore.watch_many` make it."""


class AsyncChanges(AsyncEvents[V]):
    """The changes of a store, up to the last version. `AsyncStore.changes` makes it."""


class AsyncDriver:
    """The driver of calls: it runs their steps over one transport, for one state."""

    def __init__(self, state: ClientState, transport: AsyncTransport) -> None:
        self.state, self.transport = state, transport

    async def run(self, steps: Steps[T]) -> T:
        """Take the steps of a call, and return what they end with."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Send) and not step.request.streams:
                    step = steps.send(await self.transport.exchange(step))
                elif isinstance(step, Together):
                    step = steps.send(await self._together(step))
                else:
                    step = steps.send(await self.take(step))
        except StopIteration as stop:
            found: T = stop.value
            return found
        finally:
            steps.close()

    async def take(self, step: Step) -> Outcome:
        """Take a step, and return what came of it."""
        match step:
            case Send():
                return await (self.transport.open(step) if step.request.streams else self.transport.exchange(step))
            case Receive():
                piece: bytes | Failure = await step.stream.receive(step.deadline_s)
                return piece
            case Close():
                step.stream.close()
            case Wait():
                await asyncio.sleep(step.seconds)
        return None

    async def _together(self, step: Together) -> tuple[Any, ...]:
        tasks = [asyncio.ensure_future(self.run(each)) for each in step.calls]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # one failed, or the call was cancelled
                task.cancel()


T = TypeVar("T")
M = TypeVar("M")


class AsyncStore(Generic[V]):
    """A store, and the calls that read it. `AsyncClient.store` makes it."""

    def __init__(self, driver: AsyncDriver, store: BoundStore) -> None:
        self._driver, self._store = driver, store

    def __repr__(self) -> str:
        return repr(self._store)

    @property
    def name(self) -> str:
        return self._store.name

    async def get(self, *key: Any, timeout: Duration | None = None, **bounds: Unpack[Bounds]) -> Result[V]:
        """Look one key up: a value for each key column, a mapping by column, or a model."""
        deadline_s = self._driver.state.deadline_s(timeout)
        return await self._driver.run(lookups.get(self._store, key, bounds, deadline_s))

    async def get_many(
        self, keys: Sequence[Any], *, timeout: Duration | None = None, **bounds: Unpack[Bounds]
    ) -> list[Result[V]]:
        """Look many keys up; the results are in the order of the keys. A key that could not be read has an `error`."""
        deadline_s = self._driver.state.deadline_s(timeout)
        return await self._driver.run(lookups.get_many(self._store, keys, bounds, deadline_s))

    async def info(self, *, timeout: Duration | None = None) -> StoreInfo:
        """Describe the store: its columns, its kind, its lineage."""
        return await self._driver.run(lookups.info(self._store, self._driver.state.deadline_s(timeout)))

    def scan(self, *, timeout: Duration | None = None, **question: Unpack[RowsQuestion]) -> AsyncScan[V]:
        """Iterate over rows, all of one version, or over the first `limit` of them; or take them as a table. `timeout`
        is for each page.
        """
        return AsyncScan(self._driver, Question(self._store, "scan", question), timeout)

    def top(
        self, n: int, *, by: str, timeout: Duration | None = None, **question: Unpack[RowsQuestion]
    ) -> AsyncScan[V]:
        """Iterate over the `n` rows with the greatest values of a column, the greatest first."""
        asked: RowsQuestion = {**question, "order": by, "reverse": True, "limit": n}
        return self.scan(timeout=timeout, **asked)

    async def count(
        self, *, estimate: bool = False, timeout: Duration | None = None, **question: Unpack[CountQuestion]
    ) -> Count:
        """Count rows, exactly or about."""
        asked = Question(self._store, "count", {**question, **({"estimate": True} if estimate else {})})
        return await self._driver.run(scans.count(asked, self._driver.state.deadline_s(timeout, is_scan=True)))

    def windows(
        self, *key: Any, timeout: Duration | None = None, **question: Unpack[WindowQuestion]
    ) -> AsyncPages[Window[V]]:
        """Iterate over the windows of a key, in the order of their starts. The key is without its window."""
        asked = Question(self._store, "windows", question, key)
        return AsyncPages(self._driver, partial(scans.windows, asked), asked.limit, timeout)

    async def history(
        self,
        *key: Any,
        first: int | None = None,
        last: int | None = None,
        include_expired: bool | None = None,
        timeout: Duration | None = None,
    ) -> AsyncIterator[KeyVersion[V]]:
        """Iterate over the versions that changed a key, both ends inclusive, the oldest first."""
        asked = HistorySpan(self._store, key, last, include_expired=include_expired)
        while True:
            deadline_s = self._driver.state.deadline_s(timeout, is_scan=True)
            versions, following = await self._driver.run(asked.page(first, deadline_s))
            for version in versions:
                yield version
            if following is None:
                return
            first = following

    def watch(self, *key: Any, timeout: Duration | None = None, **options: Unpack[WatchOptions]) -> AsyncWatch[V]:
        """Iterate over the value of a key and each version that changes it, or over all changes after a position; with
        `prefix` instead of a key, over those of all keys with it.

        The watch resumes by itself, at any server. `timeout` is for its start.
        """
        return self._watched(WatchQuestion([key], options), timeout)

    def watch_many(
        self, keys: Sequence[Any], *, timeout: Duration | None = None, **options: Unpack[WatchOptions]
    ) -> AsyncWatch[V]:
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
    ) -> AsyncChanges[V]:
        """Iterate over what each version put or deleted, both ends inclusive; without `last` to the newest version.
        `since` is a time in place of a version: `"1m"` ago, or a `datetime`.

        It resumes by itself, at any server. `timeout` is for its start.
        """
        asked = ChangesQuestion(first, last, options, since)
        timeout_s = self._driver.state.timeout_s(timeout, is_scan=True)
        return AsyncChanges(self._driver.take, ReadingChanges(self._store, asked, timeout_s))

    def _watched(self, asked: WatchQuestion, timeout: Duration | None) -> AsyncWatch[V]:
        timeout_s = self._driver.state.timeout_s(timeout, is_scan=asked.prefix is not None)
        return AsyncWatch(self._driver.take, Watching(self._store, asked, timeout_s))


class AsyncPages(Generic[T]):
    """A list that comes in pages: iterate over it, or over its `pages()`."""

    def __init__(
        self,
        driver: AsyncDriver,
        page: Callable[[str | None, int | None, float], Steps[Page[T]]],
        limit: int | None,
        timeout: Duration | None,
    ) -> None:
        self._driver, self._page, self._limit, self._timeout = driver, page, limit, timeout

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for item in page.items:
                yield item

    async def pages(self, cursor: str | None = None) -> AsyncIterator[Page[T]]:
        """Iterate over the pages, from the `next_cursor` of one on. A page may be empty and not be the last."""
        left = self._limit
        while True:
            deadline_s = self._driver.state.deadline_s(self._timeout, is_scan=True)
            page = await self._driver.run(self._page(cursor, left, deadline_s))
            yield page
            cursor = page.next_cursor
            left = None if left is None else left - len(page.items)
            if cursor is None or (left is not None and left <= 0):
                return


class AsyncScan(AsyncPages[Row[V]]):
    """The rows of a scan: iterate over them, over their `pages()`, or take all of them at once as a table.

    The columns are as in an export, plus `problem` where a row has one. They come by an export if it can give these
    rows.
    """

    def __init__(self, driver: AsyncDriver, asked: Question, timeout: Duration | None) -> None:
        super().__init__(driver, partial(scans.rows, asked), asked.limit, timeout)
        self._asked = asked

    async def to_arrow(self) -> pa.Table:
        """Return the rows as a table of pyarrow. Raises MissingExtraError without it."""
        return await self._driver.run(scans.table(self._asked, self._deadline_s))

    async def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame of pandas, with Arrow's types: an integer that may be null stays an integer.
        Raises MissingExtraError without it.
        """
        return await self._driver.run(scans.frame(self._asked, self._deadline_s, "pandas"))

    async def to_polars(self) -> pl.DataFrame:
        """Return the rows as a data frame of Polars. Raises MissingExtraError without it."""
        frame: pl.DataFrame = await self._driver.run(scans.frame(self._asked, self._deadline_s, "polars"))
        return frame

    async def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dicts by column, with JSON's values, and without any package."""
        return await self._driver.run(scans.dicts(self._asked, self._deadline_s))

    def _deadline_s(self) -> float:
        return self._driver.state.deadline_s(self._timeout, is_scan=True)


class AsyncView:
    """A view of all stores: the newest, or of one version."""

    def __init__(self, driver: AsyncDriver, reader: Reader) -> None:
        self._driver, self._reader = driver, reader

    @overload
    def store(self, name: str, *, key: type | None = None, value: None = None) -> AsyncStore[Any]: ...

    @overload
    def store(self, name: str, *, key: type | None = None, value: type[M]) -> AsyncStore[M | None]: ...

    def store(self, name: str, *, key: type | None = None, value: type[Any] | None = None) -> AsyncStore[Any]:
        """Return the store of that name. `key` and `value` are models, as `understudy types` prints them."""
        return AsyncStore(self._driver, BoundStore(self._reader, name, key=key, value=value))

    async def read(
        self, keys: Mapping[str, Sequence[Any]], *, timeout: Duration | None = None, **bounds: Unpack[Bounds]
    ) -> Reads:
        """Look keys of several stores up at one version: `read({"aircraft": ["N14228"], "airport": ["JFK"]})`."""
        deadline_s = self._driver.state.deadline_s(timeout)
        return await self._driver.run(lookups.read(self._reader, keys, bounds, deadline_s))


class AsyncSnapshot(AsyncView):
    """The reads of a leased version. `lease` has all that the server says about it."""

    def __init__(self, driver: AsyncDriver, reader: Reader, lease: Mapping[str, Any]) -> None:
        super().__init__(driver, reader)
        self.lease = lease

    def __repr__(self) -> str:
        return f"AsyncSnapshot(version={self.version})"

    @property
    def version(self) -> int:
        version: int = self.lease["version"]
        return version

    @property
    def token(self) -> str:
        """The token of the lease: `snapshot` of any read, also of other programs."""
        token: str = self.lease["snapshot"]
        return token


class AsyncApplication(AsyncView):
    """An application of a fleet: its stores, its position and its snapshots. `AsyncClient.application` makes it."""

    def __repr__(self) -> str:
        return f"AsyncApplication({self._driver.state.application!r})"

    @property
    def position(self) -> str | None:
        """The newest position of all answers: as `min_position` elsewhere, no answer is older."""
        return self._driver.state.position.token

    @property
    def routing_counts(self) -> RoutingCounts | None:
        """Counts of keys asked of nodes, and of routers with the reasons; None without direct routing."""
        direct = self._reader.direct
        return None if direct is None else direct.counts

    async def stores(self, *, estimate: bool = False, timeout: Duration | None = None) -> Stores:
        """List the stores that can be asked. `estimate`: with the approximate number of keys of each."""
        deadline_s = self._driver.state.deadline_s(timeout)
        return await self._driver.run(lookups.stores(self._reader, deadline_s, estimate=estimate))

    async def lag(self, store: str | None = None, *, timeout: Duration | None = None) -> Mapping[str, Any]:
        """Report the lag of each replica, as the server's JSON."""
        return await self._driver.run(lookups.lag(self._reader, store, self._driver.state.deadline_s(timeout)))

    def at(self, moment: datetime | timedelta | str | int | None = None, *, version: int | None = None) -> AsyncView:
        """Return reads at the last version committed by a moment, or at a version by its number."""
        return AsyncView(self._driver, self._reader.at(moment, version))

    @asynccontextmanager
    async def snapshot(
        self,
        stores: Sequence[str] | None = None,
        *,
        ttl: timedelta | None = None,
        timeout: Duration | None = None,
        **bounds: Unpack[SnapshotBounds],
    ) -> AsyncIterator[AsyncSnapshot]:
        """Lease one version of all stores, or of those named, for the reads of the block. Each use renews it."""
        state = self._driver.state
        lease = await self._driver.run(
            lookups.lease(
                self._reader,
                stores=stores,
                ttl=ttl,
                bounds=bounds,
                deadline_s=state.deadline_s(timeout),
            )
        )
        held = AsyncSnapshot(self._driver, self._reader.naming({"snapshot": lease["snapshot"]}), lease)
        try:
            yield held
        finally:
            with suppress(UnderstudyError):  # it ends by itself, too
                await self._driver.run(lookups.release(self._reader, held.token, state.deadline_s(timeout)))


class AsyncClient(AsyncApplication):
    """A client of routers, or of nodes that hold everything (`understudy serve`).

        async with AsyncClient("http://127.0.0.1:8080") as client:
            (await client.store("aircraft").get("N14228", max_staleness=timedelta(seconds=5))).value

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
        transport: AsyncTransport | None = None,
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
        super().__init__(AsyncDriver(state, transport or StreamTransport(trusted)), Reader(state))

    def __repr__(self) -> str:
        return f"AsyncClient({self._driver.state.servers!r})"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. A later call opens new ones."""
        await self._driver.transport.aclose()

    def application(self, name: str) -> AsyncApplication:
        """Return the calls of one application of a fleet, over the same connections. Raises UsageError."""
        state = self._driver.state.within(name)
        return AsyncApplication(AsyncDriver(state, self._driver.transport), Reader(state))
