"""Snapshots of tables that were filled by hand, and clusters in every condition for property tests."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from tests.support.router.tables import APPLICATION, END_EXPIRY_MS, HEARTBEAT_MS, LINEAGE, assigned, beat, expire

from understudy_router.admin.facts import ReplicaIndex
from understudy_router.admin.snapshot import About, ClusterSnapshot, gather
from understudy_router.cluster.catalogue import CatalogueStores, stores_of
from understudy_router.cluster.tables import Tables
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Applied, AssignedTask, Catalogue, CatalogueStore, Heartbeat, Restore

T = TypeVar("T")

NODES = ("a", "b", "c", "d")
_KEY_SCHEMA = '{"type":"struct","fields":[{"name":"word","type":"string","nullable":true,"metadata":{}}]}'


def finished(steps: Generator[None, None, T]) -> T:
    """The result of work that comes in slices."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: T = done.value
            return found


def stores_named(names: Mapping[str, int], *, partitions: int) -> CatalogueStores:
    """Stores by their operators."""
    stores = [
        CatalogueStore(
            store=name,
            operator_id=operator_id,
            operator="stateStoreSave",
            key_schema=_KEY_SCHEMA,
            key_names=["word"],
            partitions=partitions,
            value=[],
        )
        for name, operator_id in names.items()
    ]
    found = Catalogue(application_id=APPLICATION, lineage=LINEAGE, partitions=partitions, stores=stores)
    return stores_of(found, "c1")


def about(*, now_ms: float = 0, tick: int = 1, **fields: Any) -> About:
    return About(
        tick=tick,
        now_ms=now_ms,
        now_us=1_000_000_000 + round(now_ms * 1000),
        application_id=APPLICATION,
        router=HostInfo("127.0.0.1", 8080),
        **fields,
    )


def snapshot_of(
    tables: Tables,
    stores: CatalogueStores | None,
    *,
    now_ms: float = 0,
    tick: int = 1,
    index: ReplicaIndex | None = None,
    **fields: Any,
) -> ClusterSnapshot:
    return finished(gather(tables, stores, about(now_ms=now_ms, tick=tick, **fields), index))


def tables_with(
    tasks: Mapping[str, AssignedTask], *heartbeats: Heartbeat, now_ms: float = 0, partitions: int = 1
) -> Tables:
    """An assignment, and what was heard at `now_ms`, with the bus there."""
    tables = Tables(end_expiry_ms=END_EXPIRY_MS)
    tables.bus_back(now_ms)
    tables.assigned(assigned(tasks, partitions=partitions), now_ms)
    for heartbeat in heartbeats:
        assert tables.heard(heartbeat, age_ms=0, now_ms=now_ms)
    return tables


def kill(tables: Tables, *node_ids: str, now_ms: float) -> float:
    """Have nodes die while the others live. Returns the time then."""
    later_ms = now_ms + 3 * HEARTBEAT_MS + 1
    for node_id, node in list(tables.nodes.items()):
        if node_id not in node_ids:
            heartbeat = node.heartbeat.model_copy(update={"sequence": node.heartbeat.sequence + 1})
            assert tables.heard(heartbeat, age_ms=0, now_ms=later_ms)
    expire(tables, later_ms)
    assert not set(node_ids) & tables.nodes.keys()
    return later_ms


APPLIED = st.builds(
    Applied,
    version=st.none() | st.integers(0, 8),
    time_lag_ms=st.none() | st.integers(0, 9),
    state=st.sampled_from(["CREATED", "RESTORING", "RUNNING", "CLOSED"]),
    error=st.none() | st.just("disk full"),
    restore=st.none() | st.builds(Restore, stage=st.just("files"), done_bytes=st.integers(0, 9), total_bytes=st.none()),
)
IN_STEP = st.just(Applied(version=7, time_lag_ms=0))


@st.composite
def assignments(draw: st.DrawFn, *, partitions: int, operators: Sequence[int]) -> dict[str, AssignedTask]:
    """Each task to up to three nodes, in any roles; some tasks to nobody."""
    tasks = {}
    for operator_id in operators:
        for partition in range(partitions):
            holders = draw(st.lists(st.sampled_from(NODES), unique=True, max_size=3))
            is_led: bool = draw(st.booleans())
            active = holders[0] if holders and is_led else None
            others = holders[1:] if active else holders
            split = draw(st.integers(0, len(others)))
            is_named: bool = draw(st.booleans())
            if holders or is_named:
                duty = AssignedTask(active=active, standbys=tuple(others[:split]), warmups=tuple(others[split:]))
                tasks[f"{operator_id}_{partition}"] = duty
    return tasks


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Tables, CatalogueStores, float]:
    """Tables in every condition, the stores, and the time: nodes in step and not, dead, silent, unheard, of another
    history, behind an epoch; with exceptions, and with lists of what they hold.
    """
    partitions = draw(st.integers(1, 3))
    stores = stores_named({"one": 0, "two": 0, "three": 3}, partitions=partitions)
    every = [f"{operator_id}_{partition}" for operator_id in (0, 3) for partition in range(partitions)]
    tables = Tables(end_expiry_ms=END_EXPIRY_MS)
    tables.bus_back(0)
    has_previous = draw(st.booleans())
    if has_previous:
        before = draw(assignments(partitions=partitions, operators=(0, 3)))
        tables.assigned(assigned(before, order=(1, 1), partitions=partitions), 0)
    tasks = draw(assignments(partitions=partitions, operators=(0, 3)))
    tables.assigned(assigned(tasks, order=(1, 2), partitions=partitions), 0)
    for node_id in draw(st.lists(st.sampled_from(NODES), unique=True)):
        heartbeat = beat(
            node_id,
            sequence=1,
            partitions=draw(st.sampled_from([partitions, partitions, 99])),
            lineage=draw(st.sampled_from([LINEAGE, LINEAGE, LINEAGE, "l2"])),
            end_age_ms=draw(st.sampled_from([0, 0, 20, None])),
            applied=draw(IN_STEP | APPLIED),
            exceptions=draw(st.dictionaries(st.sampled_from([*every, "9_9"]), APPLIED, max_size=3)),
            held=draw(st.none() | st.none() | st.lists(st.sampled_from(every), unique=True)),
            epoch=draw(st.sampled_from([2, 2, 1, 7])),
            state=draw(st.sampled_from(["serving", "serving", "draining", "failed"])),
        )
        tables.heard(heartbeat, age_ms=draw(st.integers(0, 500)), now_ms=0)
    now_ms = 0.0
    dying = draw(st.lists(st.sampled_from(NODES), unique=True, max_size=2))
    if present := [node_id for node_id in dying if node_id in tables.nodes]:
        now_ms = kill(tables, *present, now_ms=0)
    if draw(st.booleans()):
        now_ms += draw(st.sampled_from([10, 2000, END_EXPIRY_MS + 500]))
    return tables, stores, now_ms
