"""Direct routing while nodes leave, die, come back and get other partitions: every read has a right answer (Q48)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.clients.asking import Asking, asking
from tests.support.cluster.in_process import LIMIT_S, VERSION, Cluster, cluster
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

STORE = "op0"


class Reads:
    """The answers that readers got. `wrong` lists those that differ from the checkpoint."""

    def __init__(self, checkpoint: HandmadeCheckpoint) -> None:
        self._counts = {version: checkpoint.counts(version) for version in range(1, VERSION + 3)}
        self.wrong: list[str] = []
        self.number = 0

    def read(self, client: Asking) -> None:
        """Read each word alone, then all of them, and hold the answers against the checkpoint."""
        for word in WORDS:
            self._judge(word, client, lambda each, word=word: each.store(STORE).get(word, timeout=10))  # type: ignore[misc]
        self._judge("all", client, lambda each: each.store(STORE).get_many(WORDS, timeout=10))

    def _judge(self, what: str, client: Asking, call: Callable[[Any], Any]) -> None:
        last = client.client.position
        try:
            found = client.ask(call)
        except Exception as error:
            self.wrong.append(f"{what}: {error!r}")
            return
        results = found if isinstance(found, list) else [found]
        self.number += len(results)
        words = WORDS if what == "all" else [what]
        for word, result in zip(words, results, strict=True):
            if result.error is not None:
                self.wrong.append(f"{word}: {result.error!r}")
            elif not result.found or result.value["count"] != self._counts[result.version][word]:
                self.wrong.append(f"{word} has {result} by {result.served_by}, after {last}")


@contextmanager
def reading(client: Asking, reads: Reads) -> Iterator[None]:
    """Read all the time until the block ends."""
    ended = threading.Event()

    def live() -> None:
        while not ended.is_set():
            reads.read(client)

    thread = threading.Thread(target=live, name="a reader")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_for_direct_reads(client: Asking, what: str) -> None:
    """Return when nodes answer every key of two rounds, and no router any."""

    def is_direct() -> bool:
        before = client.counts
        wait_until(lambda: client.counts.direct > before.direct + 4 * len(WORDS), what=what, limit_s=LIMIT_S)
        return sum(client.counts.routed.values()) == sum(before.routed.values())

    wait_until(is_direct, what=what, limit_s=LIMIT_S)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_no_read_is_wrong_or_fails_while_nodes_die_restart_and_are_moved(
    kind: str, tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer
) -> None:
    reads = Reads(checkpoint)
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=3, routers=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        urls = [f"http://127.0.0.1:{each.port}" for each in known.routers]
        with asking(kind, urls, routing="direct", session=True) as client, reading(client, reads):
            wait_for_direct_reads(client, "direct reads at the start")
            for change in (
                lambda: known.end("n2"),
                lambda: known.start("n2"),
                lambda: known.router.post("/admin/v1/nodes/n1/drain", b""),
                lambda: known.router.post("/admin/v1/nodes/n1/drain", b'{"drain": false}'),
                lambda: known.stop("n3"),
                lambda: (checkpoint.add(VERSION + 1), known.start("n3")),
                lambda: known.restart_router(0),
            ):
                change()
                wait_for_direct_reads(client, "direct reads after a change")
            _wait_for_version(client, VERSION + 1)
            orders = _epoch(known)
            fetched = client.counts.metadata_requests
        assert reads.wrong == []
        assert reads.number > 100
        assert fetched <= 3 * orders + 20, "few for each assignment, and one now and then"


def _wait_for_version(client: Asking, version: int) -> None:
    wait_until(
        lambda: all(each.version >= version for each in client.ask(lambda each: each.store(STORE).get_many(WORDS))),
        what="the newest version everywhere",
        limit_s=LIMIT_S,
    )


def _epoch(known: Cluster) -> int:
    return sum(known.router.order())
