"""Nodes leave, die, come back and are drained while lookups go on; and what standbys of different lag answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import HEARTBEAT_MS, LIMIT_S, VERSION, Cluster, cluster
from tests.support.cluster.watch import heard_assignments, reading
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until


def active_for(known: Cluster, node_id: str) -> set[str]:
    assignment = known.router.router.tables.assignment
    assert assignment is not None
    return {task for task, duty in assignment.tasks.items() if duty.active == node_id}


def answered_by(known: Cluster) -> set[object]:
    """The roles that all words are answered in."""
    return {result["served_by"]["role"] for result in known.router.look_up_all([[word] for word in WORDS])}  # type: ignore[index]


def test_when_a_node_leaves_its_standbys_become_active_at_once(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        before = known.router.router.tables.assignment
        assert before is not None
        lost = active_for(known, "n1")
        assert lost
        with heard_assignments(redis.url) as heard, reading(known.router):
            known.stop("n1")
            wait_until(lambda: bool(heard), what="the next assignment", limit_s=LIMIT_S)
            for task in lost:
                assert heard[0].tasks[task].active in before.tasks[task].standbys
            wait_until(
                lambda: all("n1" not in duty.holders for duty in heard[-1].tasks.values()),
                what="an assignment without it",
                limit_s=LIMIT_S,
            )
            known.wait_to_rest(copies=2, version=VERSION)
        # Its tasks end before its farewell. On a loaded machine that takes longer than its expiry, of 0.6 s here.
        silent = f"silent for more than {3 * HEARTBEAT_MS} ms, and it did not answer when asked"
        (dead,) = [node for node in known.router.lag()["nodes"] if not node["live"]]  # type: ignore[attr-defined]
        assert (dead["node_id"], dead["reason"] in {"it said farewell", silent}) == ("n1", True), dead
        assert answered_by(known) == {"active"}


KEY = WORDS[0]
FIRST, END = 5, 12
NEARER_LAG, FARTHER_LAG = 2, 5
"""Versions that each standby is behind at the end."""


Order = list[tuple[str, int | None]]
"""Node ids, and how far the router believes each to be behind."""


class Trio:
    """The active of a key and its two standbys, by node id."""

    def __init__(self, known: Cluster, checkpoint: HandmadeCheckpoint) -> None:
        self.known = known
        self.checkpoint = checkpoint
        chosen = known.router.explain(KEY)["choice"]
        assert [each["role"] for each in chosen] == ["active", "standby", "standby"]
        # The one that was asked before the other, when both were in step, is to be asked after it.
        self.active: str = chosen[0]["node_id"]
        self.farther: str = chosen[1]["node_id"]
        self.nearer: str = chosen[2]["node_id"]
        self.standbys: Order = [(self.nearer, NEARER_LAG), (self.farther, FARTHER_LAG)]

    def add_versions(self) -> None:
        """Commit up to END, and only then let the standbys go on to where they stay.

        A replica that had reached an end in between would be caught up for a moment, and could become the active.
        """
        self.checkpoint.add(*range(FIRST + 1, END + 1))
        nodes = {node_id: served.node for node_id, served in self.known.nodes.items()}
        wait_until(lambda: all(node.end.version == END for node in nodes.values()), what="the end", limit_s=LIMIT_S)
        nodes[self.farther].hold_at(END - FARTHER_LAG)
        nodes[self.nearer].hold_at(END - NEARER_LAG)

    def order(self, *, bounds: str = "") -> Order:
        """Whom the router would ask, in order, and how far it believes each to be behind."""
        choice = self.known.router.explain(KEY, bounds=bounds)["choice"]
        return [(each["node_id"], each["offset_lag"]) for each in choice]

    def wait_for_order(self, expected: Order) -> None:
        try:
            wait_until(lambda: self.order() == expected, what=f"{expected}", limit_s=LIMIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.known.router.explain(KEY)}") from None

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

    def assert_nearer_within_bounds(self) -> None:
        """The less lagged standby is asked first, and answers, with each bound that it keeps."""
        for bound in (NEARER_LAG, FARTHER_LAG - 1, FARTHER_LAG, FARTHER_LAG + 1):
            assert self.answers(self.look_up(f"max_lag={bound}"), self.nearer, NEARER_LAG)
            asked = self.order(bounds=f"max_lag={bound}")
            assert [each for each in asked if each[0] != self.active] == self.standbys

    def assert_refused_below_both(self) -> None:
        """A bound that neither keeps is refused with what each of them said of itself, in the order of explain."""
        bounds = f"max_lag={NEARER_LAG - 1}"
        reply = self.known.router.look_up([KEY], bounds=bounds)
        assert (reply.status, reply.problem) == (503, "no-acceptable-replica")
        candidates: Any = reply.body["candidates"]
        reported = {each["node_id"]: (each["reason"], each["offset_lag"], each["version"]) for each in candidates}
        assert reported[self.nearer] == ("lag-exceeded", NEARER_LAG, END - NEARER_LAG)
        assert reported[self.farther] == ("lag-exceeded", FARTHER_LAG, END - FARTHER_LAG)
        if self.active in reported:
            assert reported[self.active][0] in {"dead", "refused", "reset"}
        explained = self.known.router.explain(KEY, bounds=bounds)["choice"]
        standbys = [each for each in explained if each["node_id"] != self.active]
        assert [(each["node_id"], each["offset_lag"]) for each in standbys] == self.standbys
        assert all(each["why"].startswith("asked last: lag-exceeded") for each in standbys)


@pytest.fixture
def trio(tmp_path: Path, redis: RedisServer) -> Iterator[Trio]:
    """Everybody at `FIRST`, the standbys held back from there on."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(*range(1, FIRST + 1))
    # One version behind is not caught up: then no standby is, and nothing but lag decides between them.
    settings = {"num_standby_replicas": 2, "acceptable_recovery_lag": 0}
    with cluster(checkpoint.path, tmp_path, redis.url, routers=0, **settings) as known:
        # On a busy machine the farther standby would answer a hedge first, or the nearer one become suspect.
        known.start_router(hedge_after_ms=0, suspect_after_ms=60_000)
        known.wait_to_rest(copies=3, version=FIRST)
        trio = Trio(known, checkpoint)
        for standby in (trio.farther, trio.nearer):
            known.nodes[standby].node.hold_at(FIRST)
        yield trio


def test_when_the_active_is_gone_the_less_lagged_standby_answers_and_says_its_true_lag(trio: Trio) -> None:
    with reading(trio.known.router) as reader:
        trio.add_versions()
        trio.wait_for_order([(trio.active, 0), *trio.standbys])
        assert trio.answers(trio.look_up(), trio.active, 0)
        trio.known.end(trio.active)
        for _ in range(20):  # the first of these find the dead active still in the tables
            assert trio.answers(trio.look_up(), trio.nearer, NEARER_LAG)
        trio.assert_nearer_within_bounds()
        trio.assert_refused_below_both()
        trio.wait_for_order(trio.standbys)
        wait_until(lambda: trio.look_up()["served_by"]["role"] == "active", what="a new active", limit_s=LIMIT_S)
        assert trio.answers(trio.look_up(), trio.nearer, NEARER_LAG)
        trio.assert_nearer_within_bounds()
        trio.assert_refused_below_both()
        reader.wait_for_answers()
    every_word = trio.known.router.look_up_all([[word] for word in WORDS])
    assert {result["version"] for result in every_word} == {END - NEARER_LAG}
