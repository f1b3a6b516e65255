"""The life of one application in a process: its start, and its end, by ASGI's lifespan as a server would run it."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import App
from understudy_shared.telemetry.logs import name_records_here


class Lifespan:
    """Runs the lifespan of one ASGI application. `start` returns when it has started, `stop` when it has ended."""

    def __init__(self, app: App, name: str) -> None:
        self._app = app
        self._name = name
        self._wanted: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue(2)  # one startup, one shutdown
        self._said: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue(2)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the application. Raises UnderstudyError with the reason why it did not start."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"application {self._name}")
        await self._ask("lifespan.startup", "did not start")

    async def stop(self) -> None:
        """End the application, if it was started. Raises UnderstudyError if it did not end in good order."""
        if self._task is not None and not self._task.done():
            await self._ask("lifespan.shutdown", "did not end in good order")
            await self._task

    async def _ask(self, what: str, failure: str) -> None:
        assert self._task is not None, "started"
        self._wanted.put_nowait({"type": what})
        said = asyncio.ensure_future(self._said.get())
        await asyncio.wait([said, self._task], return_when=asyncio.FIRST_COMPLETED)
        if not said.done():
            said.cancel()
            error = None if self._task.cancelled() else self._task.exception()
            raise UnderstudyError(f"it {failure}: {error}", where=f"application {self._name}")
        if said.result()["type"] == f"{what}.failed":
            raise UnderstudyError(f"it {failure}: {said.result().get('message')}", where=f"application {self._name}")

    async def _run(self) -> None:
        name_records_here(application=self._name)
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        await self._app(scope, self._wanted.get, self._said.put)
