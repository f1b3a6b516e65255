"""A node and a router that hear the same come to the same: who lives, what is assigned, what cannot be true."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.tables import HEARTBEAT_MS, assigned, beat, farewell, task

from understudy_node.cluster.context import Neighbours
from understudy_router.cluster.tables import Tables
from understudy_shared.base.plausible import CEILING, FIRST_SIGHT, MAX_JUMP, Order
from understudy_shared.bus.messages import Assignment, Heartbeat
from understudy_shared.cluster.view import refused_forks

OWN_ID = "observer"
NODES = "abcd"


@dataclass(frozen=True)
class Beat:
    """A heartbeat, as old as a key says."""

    node_id: str
    incarnation: str
    sequence: int
    order: Order
    end_version: int
    age_ms: int
    forks: str


@dataclass(frozen=True)
class Left:
    node_id: str
    incarnation: str


@dataclass(frozen=True)
class Assigned:
    order: Order
    holders: str


@dataclass(frozen=True)
class NoAnswer:
    """A request to the node that ends without an answer, sent so long ago."""

    node_id: str
    ago_ms: int


@dataclass(frozen=True)
class Passed:
    ms: int


Event = Beat | Left | Assigned | NoAnswer | Passed

NODE_IDS = st.sampled_from(NODES)
PROCESSES = st.sampled_from(["1", "2"])
NUMBERS = st.one_of(st.integers(1, 9), st.sampled_from([MAX_JUMP, MAX_JUMP + 9, FIRST_SIGHT, FIRST_SIGHT + 1, CEILING]))
ORDERS = st.one_of(st.tuples(st.integers(0, 4), st.integers(0, 4)), st.tuples(NUMBERS, NUMBERS))
HOLDERS = st.sampled_from(["ab", "bc", "abc", "a"])
AGES_MS = st.sampled_from([0, 0, 0, HEARTBEAT_MS, 2 * HEARTBEAT_MS, 3 * HEARTBEAT_MS])
FORKS = st.sampled_from(["", "", "", "a", "b"])
STORIES = st.lists(
    st.one_of(
        st.builds(Beat, NODE_IDS, PROCESSES, NUMBERS, ORDERS, NUMBERS, AGES_MS, FORKS),
        st.builds(Beat, NODE_IDS, PROCESSES, st.integers(1, 9), st.just((1, 1)), st.just(7), AGES_MS, FORKS),
        st.builds(Left, NODE_IDS, PROCESSES),
        st.builds(Assigned, ORDERS, HOLDERS),
        st.builds(NoAnswer, NODE_IDS, st.sampled_from([0, 200, 2000])),
        st.builds(Passed, st.sampled_from([1, 100, HEARTBEAT_MS, 2 * HEARTBEAT_MS, 3 * HEARTBEAT_MS])),
    ),
    max_size=24,
)


def heartbeat(said: Beat) -> Heartbeat:
    return beat(
        said.node_id,
        incarnation=said.incarnation,
        sequence=said.sequence,
        term=said.order[0],
        epoch=said.order[1],
        end_version=said.end_version,
        forks=dict.fromkeys(said.forks.replace(said.node_id, ""), "version 3 differs"),
    )


def assignment(said: Assigned) -> Assignment:
    return assigned({"0_0": task(*said.holders)}, order=said.order)


@dataclass(frozen=True)
class Judgement:
    alive: dict[str, Heartbeat]
    """The nodes that were heard within their expiry, and what of their last heartbeats is believed."""
    dead: set[str]
    """The nodes of the assignment that left, or were silent and did not answer when asked."""
    order: Order
    refused: Counter[str]
    highest: Order
    forks: set[str]


class Side:
    """A process without its bus: what is told to it, and what it refused."""

    view: Tables | Neighbours

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()

    def refuse(self, kind: str, why: str) -> None:
        self.refused[kind] += 1

    def take(self, event: Event, now_ms: float) -> None:
        match event:
            case Beat():
                self.view.heard(heartbeat(event), age_ms=event.age_ms, now_ms=now_ms)
            case Left():
                self.view.left(farewell(event.node_id, event.incarnation), now_ms)
            case Assigned() if isinstance(self.view, Tables):
                self.view.assigned(assignment(event), now_ms)
            case Assigned():
                self.view.follow(assignment(event))
            case NoAnswer():
                self.view.did_not_answer(event.node_id, now_ms - event.ago_ms)


class RouterSide(Side):
    def __init__(self) -> None:
        super().__init__()
        self.view = self.tables = Tables(refuse=self.refuse)
        self.tables.bus_back(0)

    def judgement(self, now_ms: float) -> Judgement:
        tables = self.tables
        tables.expire(now_ms)
        alive = {
            node_id: node.heartbeat for node_id, node in tables.nodes.items() if not tables.is_silent(node, now_ms)
        }
        gone = tables.holders - tables.nodes.keys()
        dead = {node_id for node_id in gone if tables.is_gone(node_id)}
        return Judgement(alive, dead, tables.order, self.refused, tables.highest(), set(tables.forks))


class NodeSide(Side):
    """Its own history ends where the router says that the nodes' history does."""

    def __init__(self, router: RouterSide) -> None:
        super().__init__()
        tables = router.tables
        self.view = self.neighbours = Neighbours(
            OWN_ID, refuse=self.refuse, history=lambda: (tables.lineage, tables.end_version)
        )

    def judgement(self, now_ms: float) -> Judgement:
        neighbours = self.neighbours
        alive = {each.heartbeat.node_id: each.heartbeat for each in neighbours.alive(now_ms)}
        dead = {node_id for node_id in neighbours.holders - alive.keys() if neighbours.is_gone(node_id)}
        forks = refused_forks(alive.values(), neighbours.holders, judging=OWN_ID)
        return Judgement(alive, dead, neighbours.order, self.refused, neighbours.highest(), set(forks))


@given(STORIES)
def test_what_a_node_and_a_router_hear_they_judge_alike(story: list[Event]) -> None:
    router = RouterSide()
    node = NodeSide(router)
    now_ms = 10_000.0
    for event in story:
        now_ms += event.ms if isinstance(event, Passed) else 1
        node.take(event, now_ms)  # first: it judges by the end before this event
        router.take(event, now_ms)
        by_node, by_router = node.judgement(now_ms), router.judgement(now_ms)
        if router.tables.nodes.keys() != by_router.alive.keys():  # a silent node still counts for a router
            by_router = replace(by_router, highest=by_node.highest, forks=by_node.forks)
        assert by_node == by_router
