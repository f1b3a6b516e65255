"""Watchers at work: through both clients, of keys and of a prefix, one watch after another until the load ends."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tests.system.proof.client_reads import Clients
from tests.system.proof.history_file import HistoryWriter
from tests.system.proof.subjects import Subject
from tests.system.proof.watching import LASTS_S, Watching, WatchQuestion, choose_watch

from understudy import AsyncClient, Client, UnderstudyError

WATCHERS: Final = (("sync", False), ("async", False), ("sync", True), ("async", True))
"""The client of each watcher, and whether it watches a prefix."""

PAUSE_S: Final = 0.3


def now_ms() -> float:
    return time.monotonic() * 1000


class Watchers:
    """The watchers of a load. `newest` returns the newest version that its readers have seen."""

    def __init__(  # noqa: PLR0917  # what the load has, too
        self,
        subject: Subject,
        clients: Clients,
        writer: HistoryWriter,
        outcomes: Counter[str],
        chance: random.Random,
        newest: Callable[[], int],
    ) -> None:
        self._subject, self._clients, self._writer = subject, clients, writer
        self._outcomes, self._chance, self._newest = outcomes, chance, newest
        self._numbers = 0
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Let them all stop."""
        self._ended.set()

    async def run(self) -> None:
        """Watch until ended."""
        await asyncio.gather(*(self._watch_on(way, of_prefix=of_prefix) for way, of_prefix in WATCHERS))

    async def _watch_on(self, way: str, *, of_prefix: bool) -> None:
        before: Watching | None = None
        while not self._ended.is_set():
            if self._newest() == 1:  # no reader knows yet which keys there are
                await asyncio.sleep(PAUSE_S)
                continue
            asked = choose_watch(self._subject, self._chance, self._newest(), before, of_prefix=of_prefix)
            if asked is None:
                return
            self._numbers += 1
            watching = before = Watching(self._numbers, way, asked, now_ms())
            why = ""
            try:
                await (self._sync(watching) if way == "sync" else self._async(watching))
            except UnderstudyError as error:
                why, before = f"{type(error).__name__}: {error}", None
            self._writer.write(watching.ended(now_ms, why))
            self._outcomes["watches"] += 1
            self._outcomes["watches gone on"] += asked.position is not None
            self._outcomes["events"] += len(watching.events)
            await asyncio.sleep(PAUSE_S)

    async def _lasts(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._chance.uniform(*LASTS_S)):
                await self._ended.wait()

    async def _async(self, watching: Watching) -> None:
        async with AsyncClient(self._clients.urls, application=self._clients.application) as client:
            asked = watching.question

            store = client.store(asked.store)
            watch = store.watch(**_options(asked)) if asked.prefix else store.watch_many(asked.keys, **_options(asked))

            async def told() -> None:
                async with watch:
                    async for event in watch:
                        watching.took(now_ms(), event)

            task = asyncio.ensure_future(told())
            lasting = asyncio.ensure_future(self._lasts())
            try:
                await asyncio.wait([task, lasting], return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    task.result()
            finally:
                for each in (task, lasting):
                    each.cancel()
                await asyncio.wait([task, lasting])

    async def _sync(self, watching: Watching) -> None:
        client, asked = Client(self._clients.urls, application=self._clients.application), watching.question
        store = client.store(asked.store)
        watch = store.watch(**_options(asked)) if asked.prefix else store.watch_many(asked.keys, **_options(asked))

        def told() -> None:
            for event in watch:
                watching.took(now_ms(), event)

        telling = asyncio.get_running_loop().run_in_executor(self._clients.threads, told)
        lasting = asyncio.ensure_future(self._lasts())
        await asyncio.wait([telling, lasting], return_when=asyncio.FIRST_COMPLETED)
        lasting.cancel()
        if telling.done():
            telling.result()
        watch.close()
        with suppress(UnderstudyError):  # it was about to go on
            await telling
        client.close()


def _options(asked: WatchQuestion) -> dict[str, Any]:
    prefix = {} if asked.prefix is None else {"prefix": asked.prefix}
    return {"position": asked.position, "versions": True, **prefix}
