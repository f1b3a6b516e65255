"""Two standbys of different lag: who is asked, what is answered, and what a reader with a bound is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import LIMIT_S, Cluster, cluster
from tests.support.cluster_watch import reading
from tests.support.counting_query import WORDS
from tests.support.handmade_checkpoint import HandmadeCheckpoint
from tests.support.redis_server import RedisServer, redis_server
from tests.support.spark_queries import wait_until

KEY = WORDS[0]
FIRST, END = 5, 12
NEARER_LAG, FARTHER_LAG, ACTIVE_LAG = 2, 5, 7
"""Versions that each is behind at the end; the active only where it is held back too, and then most of all."""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


class Trio:
    """The active of a key and its two standbys, by node id."""

    def __init__(self, known: Cluster) -> None:
        self.known = known
        chosen = known.router.explain(KEY)["choice"]
        assert [each["role"] for each in chosen] == ["active", "standby", "standby"]
        # By name, so that which one is asked first is not what it was before they fell behind.
        self.active: str = chosen[0]["node_id"]
        self.farther, self.nearer = (str(each["node_id"]) for each in chosen[1:])

    def order(self, *, bounds: str = "") -> list[tuple[str, int | None]]:
        """Whom the router would ask, in order, and how far it believes each to be behind."""
        choice = self.known.router.explain(KEY, bounds=bounds)["choice"]
        return [(each["node_id"], each["offset_lag"]) for each in choice]

    def look_up(self, bounds: str = "") -> dict[str, Any]:
        reply = self.known.router.look_up([KEY], bounds=bounds)
        assert reply.status == 200, reply
        return reply.body

    def answers(self, body: dict[str, Any], node_id: str, lag: int) -> bool:
        """Whether this answer is of that node, and says how far it truly is behind."""
        return bool(
            body["served_by"]["port"] == self.known.nodes[node_id].port
            and body["version"] == END - lag
            and body["value"]["count"] == END - lag
            and body["lag"]["offset_lag"] == lag
            and body["lag"]["end_offset_position"] == END
        )


@pytest.mark.parametrize("active", ["ended without a farewell", "held back most of all"])
def test_the_less_lagged_of_two_standbys_is_asked_first_and_says_its_true_lag(
    tmp_path: Path, redis: RedisServer, active: str
) -> None:
    redis.flush()
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(*range(1, FIRST + 1))
    # One version behind is not caught up: then nobody is, and what is asked for is decided by lag alone.
    settings = {"num_standby_replicas": 2, "acceptable_recovery_lag": 0}
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=3, **settings) as known:
        known.wait_to_rest(copies=3, version=FIRST)
        trio = Trio(known)
        known.nodes[trio.farther].node.hold_at(END - FARTHER_LAG)
        known.nodes[trio.nearer].node.hold_at(END - NEARER_LAG)
        ends = active == "ended without a farewell"
        if not ends:
            known.nodes[trio.active].node.hold_at(END - ACTIVE_LAG)
        with reading(known.router) as reader:
            checkpoint.add(*range(FIRST + 1, END + 1))
            behind = [(trio.nearer, NEARER_LAG), (trio.farther, FARTHER_LAG)]
            everyone = [(trio.active, 0), *behind] if ends else [*behind, (trio.active, ACTIVE_LAG)]
            wait_until(lambda: trio.order() == everyone, what=f"{everyone}", limit_s=LIMIT_S)
            if ends:
                assert trio.answers(trio.look_up(), trio.active, 0)
                known.end(trio.active)
            reader.wait_for_answers()
            for _ in range(20):  # the first of these find the dead active still in the tables
                assert trio.answers(trio.look_up(), trio.nearer, NEARER_LAG)
            for bound in (NEARER_LAG, FARTHER_LAG, FARTHER_LAG + 5):
                assert trio.answers(trio.look_up(f"max_lag={bound}"), trio.nearer, NEARER_LAG)
                asked = trio.order(bounds=f"max_lag={bound}")
                assert [each for each in asked if each[0] != trio.active] == behind
        refused(trio, dead=trio.active if ends else None)
        if ends:
            wait_until(lambda: trio.order() == behind, what="the active's death", limit_s=LIMIT_S)
            wait_until(lambda: trio.look_up()["served_by"]["role"] == "active", what="a new active", limit_s=LIMIT_S)
            assert trio.answers(trio.look_up(), trio.nearer, NEARER_LAG)
            refused(trio, dead=None)
        every_word = known.router.look_up_all([[word] for word in WORDS])
        assert {result["version"] for result in every_word} == {END - NEARER_LAG}


def refused(trio: Trio, *, dead: str | None) -> None:
    """A bound below all of them is refused with what each of them said of itself."""
    reply = trio.known.router.look_up([KEY], bounds=f"max_lag={NEARER_LAG - 1}")
    assert (reply.status, reply.problem) == (503, "no-acceptable-replica")
    candidates: Any = reply.body["candidates"]
    told = {each["node_id"]: (each["reason"], each["offset_lag"], each["version"]) for each in candidates}
    assert told[trio.nearer] == ("lag-exceeded", NEARER_LAG, END - NEARER_LAG)
    assert told[trio.farther] == ("lag-exceeded", FARTHER_LAG, END - FARTHER_LAG)
    others = set(told) - {trio.nearer, trio.farther}
    assert others <= {trio.active}
    if dead is not None:
        assert dead not in told or told[dead][0] in {"dead", "refused", "reset"}
    explained = trio.known.router.explain(KEY, bounds=f"max_lag={NEARER_LAG - 1}")
    asked = [each for each in explained["choice"] if each["node_id"] != trio.active]
    assert [each["node_id"] for each in asked] == [trio.nearer, trio.farther]
    assert all(each["why"].startswith("asked last: lag-exceeded") for each in asked)
