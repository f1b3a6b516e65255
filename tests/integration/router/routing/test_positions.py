"""A reader that carries its position never goes back, and sees each commit it knows of: over routers and failovers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import LIMIT_S, Cluster, ClusterRouter, cluster
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_shared.reads.tokens import Position, decode_position

FIRST = 5


@pytest.fixture
def checkpoint(tmp_path: Path) -> HandmadeCheckpoint:
    return HandmadeCheckpoint(tmp_path / "checkpoint").create().add(*range(1, FIRST + 1))


@pytest.fixture
def known(tmp_path: Path, redis: RedisServer, checkpoint: HandmadeCheckpoint) -> Iterator[Cluster]:
    """Every node has a replica of everything, behind two routers."""
    settings = {"num_standby_replicas": 2, "acceptable_recovery_lag": 1000}
    with cluster(checkpoint.path, tmp_path, redis.url, routers=2, **settings) as started:
        started.wait_to_rest(copies=3, version=FIRST)
        yield started


class Session:
    """A reader that sends the position of its last answer with the next, to the routers in turn."""

    def __init__(self, routers: list[ClusterRouter], *, word: str = WORDS[0]) -> None:
        self.position = ""
        self.versions: list[int] = []
        self.refused = 0
        self._routers = routers
        self._word = word
        self._turn = 0

    def read(self, bounds: str = "") -> dict[str, Any]:
        """One lookup, which is answered, or refused because nobody is that far yet."""
        self._turn += 1
        router = self._routers[self._turn % len(self._routers)]
        carried = [f"min_position={self.position}"] if self.position else []
        reply = router.look_up([self._word], bounds="&".join([*carried, *([bounds] if bounds else [])]))
        body: dict[str, Any] = reply.body
        if reply.status != 200:
            assert {each["reason"] for each in body["candidates"]} & {"below-min-position"}, body
            self.refused += 1
            return body
        assert body["value"]["count"] == body["version"], "a mix of versions"
        self.versions.append(body["version"])
        self.position = body["position"]
        return body

    @property
    def went_back(self) -> bool:
        return self.versions != sorted(self.versions)


@contextmanager
def committing(checkpoint: HandmadeCheckpoint) -> Iterator[None]:
    """A commit every 100 ms while the block runs."""
    ended = threading.Event()

    def commit() -> None:
        version = FIRST
        while not ended.wait(0.1):
            version += 1
            checkpoint.add(version)

    thread = threading.Thread(target=commit, name="commits")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LIMIT_S)


def test_a_session_never_goes_back_over_routers_held_up_replicas_and_the_death_of_its_active(
    known: Cluster, checkpoint: HandmadeCheckpoint
) -> None:
    sessions = [Session(known.routers, word=word) for word in WORDS[:4]]
    with committing(checkpoint):
        _read_until(sessions, 20)
        active = known.router.explain(WORDS[0])["choice"][0]["node_id"]
        held_up = next(node_id for node_id in known.nodes if node_id != active)
        known.nodes[held_up].node.hold_at(max(sessions[0].versions))
        _read_until(sessions, 20)
        known.end(active)
        _read_until(sessions, 60)
        known.nodes[held_up].node.hold_at(None)
        _read_until(sessions, 20)
    assert [session.went_back for session in sessions] == [False] * len(sessions)


def _read_until(sessions: list[Session], count: int) -> None:
    enough = [len(session.versions) + count for session in sessions]

    def read() -> bool:
        for session in sessions:
            session.read()
        return all(len(session.versions) >= wanted for session, wanted in zip(sessions, enough, strict=True))

    wait_until(read, what="answers", limit_s=LIMIT_S)


def test_a_reader_that_waits_for_a_commit_it_knows_of_gets_it_as_soon_as_it_is_there(
    known: Cluster, checkpoint: HandmadeCheckpoint
) -> None:
    reader = Session(known.routers)
    seen = decode_position(reader.read()["position"])
    announced = Position(seen.application_id, seen.lineage, FIRST + 1, None)
    reader.position = announced.encode()

    assert reader.read("wait_ms=0")["title"]
    assert reader.refused == 1

    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(reader.read("wait_ms=20000")))
    waiting.start()
    checkpoint.add(FIRST + 1)
    waiting.join(LIMIT_S)
    assert found[0]["version"] == FIRST + 1
    assert reader.refused == 1
