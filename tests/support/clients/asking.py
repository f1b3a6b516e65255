"""Both shells of the Python client by one way to ask, so that each test of the surface runs against both."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

from understudy import AsyncClient, Client
from understudy.client.results import RoutingCounts


class Asking:
    """A client of either kind. `ask` takes what a program would write, and waits for the result where it is awaited."""

    def __init__(self, client: Client | AsyncClient, run: Callable[[Any], Any], url: str = "") -> None:
        """`url` is where reports are read, if not at the first server of the client."""
        self.client, self._run = client, run
        self._url = url or client._driver.state.servers.endpoints[0].url

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """The result of a call of the client."""
        found = self._run(_called(call, self.client)) if isinstance(self.client, AsyncClient) else call(self.client)
        is_list = hasattr(found, "__iter__") and not hasattr(found, "columns")  # and no table
        return list(found) if is_list and not isinstance(found, (list, dict, str)) else found

    @contextmanager
    def entered(self, block: Callable[[Any], Any]) -> Iterator[Any]:
        """What a block of the client gives, until its end."""
        manager = block(self.client)
        if isinstance(self.client, Client):
            with manager as given:
                yield given
            return
        given = self._run(manager.__aenter__())
        try:
            yield given
        finally:
            self._run(manager.__aexit__(None, None, None))

    @property
    def counts(self) -> RoutingCounts:
        """How the keys were looked up by a client with direct routing."""
        found = self.client.routing_counts
        assert found is not None
        return found

    def snapshots(self) -> list[dict[str, Any]]:
        """The leases that the server lists."""
        with urlopen(f"{self._url}/admin/v1/snapshots", timeout=10) as reply:
            found: list[dict[str, Any]] = json.load(reply)["snapshots"]
        return found

    def close(self) -> None:
        if isinstance(self.client, Client):
            self.client.close()
        else:
            self._run(self.client.aclose())


async def _called(call: Callable[[Any], Any], client: AsyncClient) -> Any:
    found = call(client)
    if hasattr(found, "__aiter__"):
        return [each async for each in found]
    return await found if inspect.isawaitable(found) else found


@contextmanager
def loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="loop of a client")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def asking(kind: str, urls: Any = None, **options: Any) -> Iterator[Asking]:
    """A client of the kind `sync` or `async`."""
    if kind == "sync":
        asked = Asking(Client(urls, **options), lambda found: found)
        yield asked
        asked.close()
        return
    with loop_thread() as loop:
        asked = Asking(
            AsyncClient(urls, **options),
            lambda call: asyncio.run_coroutine_threadsafe(call, loop).result(60),
        )
        yield asked
        asked.close()
