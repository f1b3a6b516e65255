"""Who looks on while something happens to a cluster: readers that must always be answered, an ear for assignments."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.cluster import APPLICATION, LIMIT_S, ClusterRouter
from tests.support.counting_query import WORDS, why_mixed
from tests.support.spark_queries import wait_until

from understudy_shared.bus.base import Back
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.messages import Assignment


class Reader:
    """Looks words up at routers, again and again, while something happens to the cluster."""

    def __init__(self, routers: list[ClusterRouter]) -> None:
        self.answered = 0
        self.failed: list[str] = []
        self._routers = routers
        self._ended = threading.Event()
        self._body = json.dumps({"keys": [[word] for word in WORDS]}).encode()
        self._thread = threading.Thread(target=self._run, name="reader")
        self._thread.start()

    def wait_for_answers(self, count: int = 50) -> None:
        """Return when it has got so many more."""
        enough = self.answered + count
        wait_until(lambda: self.answered >= enough or bool(self.failed), what="answers", limit_s=LIMIT_S)

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        try:
            turn = 0
            while not self._ended.wait(0.002) and not self.failed:
                turn += 1
                self._look(self._routers[turn % len(self._routers)], turn)
        except BaseException as error:  # told by `reading`: a thread of its own cannot fail the test
            self.failed.append(repr(error))

    def _look(self, router: ClusterRouter, turn: int) -> None:
        if turn % 5 == 0:
            reply = router.post("/v1/stores/op0/lookup", self._body)
            results: Any = reply.body.get("results", [reply.body])
        else:
            results = [router.look_up([WORDS[turn % len(WORDS)]]).body]
        for result in results:
            wrong = None if result.get("found") else f"not answered: {result}"
            wrong = wrong or why_mixed(result)
            if wrong is not None:
                self.failed.append(wrong)
            self.answered += 1


@contextmanager
def reading(*routers: ClusterRouter) -> Iterator[Reader]:
    """Every lookup made while the block runs must be answered, from one version throughout."""
    reader = Reader(list(routers))
    try:
        yield reader
        reader.wait_for_answers()
    finally:
        reader.end()
    assert reader.failed == [], reader.failed[:3]


@contextmanager
def heard_assignments(redis_url: str) -> Iterator[list[Assignment]]:
    """Every assignment that is told on the bus while the block runs, in order."""
    heard: list[Assignment] = []
    loops: list[asyncio.AbstractEventLoop] = []
    stands = threading.Event()
    bus = RedisBus(redis_url)

    async def listen() -> None:
        loops.append(asyncio.get_running_loop())
        async for each in Gossip(bus, APPLICATION).listen():
            if isinstance(each, Back):
                stands.set()
            elif isinstance(each, Assignment):
                heard.append(each)
        await bus.close()

    thread = threading.Thread(target=lambda: asyncio.run(listen()), name="assignments")
    thread.start()
    try:
        assert stands.wait(LIMIT_S)
        yield heard
    finally:
        asyncio.run_coroutine_threadsafe(bus.close(), loops[0])  # ends what listens, and with it the loop
        thread.join(LIMIT_S)
