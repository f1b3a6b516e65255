"""Watchers of a cluster to which something happens: readers that must always be answered, a log of assignments."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.cluster.in_process import APPLICATION, LIMIT_S, ClusterRouter
from tests.support.cluster.served_node import Reply, Served
from tests.support.spark.counting_query import WORDS, why_mixed
from tests.support.spark.queries import wait_until

from understudy_shared.bus.assignments import AssignmentChange, apply_change
from understudy_shared.bus.base import Back
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Assignment
from understudy_shared.bus.redis_bus import RedisBus


class Reader:
    """Looks words up at routers, again and again, while something happens to the cluster.

    One that `goes_elsewhere` is behind a load balancer: who refuses its connection, or is not ready yet, is not asked.
    """

    def __init__(self, routers: list[Served], *, goes_elsewhere: bool = False) -> None:
        self.answered = 0
        self.failed: list[str] = []
        self._routers = routers
        self._goes_elsewhere = goes_elsewhere
        self._ended = threading.Event()
        self._body = json.dumps({"keys": [[word] for word in WORDS]}).encode()
        self._thread = threading.Thread(target=self._run, name="reader")
        self._thread.start()

    def wait_for_answers(self, count: int = 50) -> None:
        """Return when it has got so many more."""
        enough = self.answered + count
        wait_until(lambda: self.answered >= enough or bool(self.failed), what="answers", limit_s=LIMIT_S)

    def end(self) -> None:
        self._ended.set()
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        try:
            turn = 0
            while not self._ended.wait(0.002) and not self.failed:
                turn += 1
                self._look(turn)
        except BaseException as error:  # reported by `reading`: a thread of its own cannot fail the test
            self.failed.append(repr(error))

    def _look(self, turn: int) -> None:
        first = turn % len(self._routers)
        order = [*self._routers[first:], *self._routers[:first]]
        for router in order[:-1] if self._goes_elsewhere else ():
            try:
                reply = self._ask(router, turn)
            except ConnectionError:
                continue
            if reply.status != 503 or reply.problem != "not-initialised":
                break
        else:
            reply = self._ask(order[-1] if self._goes_elsewhere else order[0], turn)
        results: Any = reply.body.get("results", [reply.body])
        for result in results:
            wrong = None if result.get("found") else f"not answered: {result}"
            wrong = wrong or why_mixed(result)
            if wrong is not None:
                self.failed.append(wrong)
            self.answered += 1

    def _ask(self, router: Served, turn: int) -> Reply:
        if turn % 5 == 0:
            return router.post("/v1/stores/op0/lookup", self._body)
        return router.look_up([WORDS[turn % len(WORDS)]])


@contextmanager
def reading(*routers: Served, goes_elsewhere: bool = False) -> Iterator[Reader]:
    """Every lookup made while the block runs must be answered, from one version throughout."""
    reader = Reader(list(routers), goes_elsewhere=goes_elsewhere)
    try:
        yield reader
        reader.wait_for_answers()
    finally:
        reader.end()
    assert reader.failed == [], reader.failed[:3]


@contextmanager
def heard_assignments(redis_url: str) -> Iterator[list[Assignment]]:
    """Every assignment that is published on the bus while the block runs, in order."""
    heard: list[Assignment] = []
    loops: list[asyncio.AbstractEventLoop] = []
    stands = threading.Event()
    bus = RedisBus(redis_url)

    async def listen() -> None:
        loops.append(asyncio.get_running_loop())
        gossip = Gossip(bus, APPLICATION)
        known: Assignment | None = None
        async for each in gossip.listen():
            if isinstance(each, Back):
                known = await gossip.assignment()
                stands.set()
            elif isinstance(each, Assignment | AssignmentChange):
                known = each if isinstance(each, Assignment) else apply_change(each, known)
                assert known is not None, "a change of what was not published"
                heard.append(known)
        await bus.close()

    thread = threading.Thread(target=lambda: asyncio.run(listen()), name="assignments")
    thread.start()
    try:
        assert stands.wait(LIMIT_S)
        yield heard
    finally:
        asyncio.run_coroutine_threadsafe(bus.close(), loops[0])  # ends what listens, and with it the loop
        thread.join(LIMIT_S)


def holders(assignment: Assignment | None) -> dict[str, set[str]]:
    """The nodes that have each task, in any role."""
    assert assignment is not None
    return {task: set(duty.holders) for task, duty in assignment.tasks.items()}


def chosen(router: ClusterRouter, word: str) -> list[tuple[str, str]]:
    """Whom a router would ask for a word, in order, and why."""
    choice = router.explain(word)["choice"]
    return [(each["node_id"], each["why"]) for each in choice]
