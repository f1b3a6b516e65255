"""A snapshot says of every replica what the routing says of it, whatever the nodes said, and its sums are sums."""

from __future__ import annotations

from hypothesis import given
from tests.support.router.snapshots import snapshot_of, worlds

from understudy_router.admin.facts import DEAD, ROLES, WARMUP, Standing
from understudy_router.cluster.candidates import candidates_of
from understudy_router.cluster.catalogue import CatalogueStores
from understudy_router.cluster.tables import Tables

World = tuple[Tables, CatalogueStores, float]


@given(worlds())
def test_a_snapshot_says_of_each_replica_what_a_choice_would_know(world: World) -> None:
    tables, stores, now_ms = world
    snapshot = snapshot_of(tables, stores, now_ms=now_ms)
    index = snapshot.index
    for route in index.routes:
        found = [(index.partition[index.task[replica]], replica) for replica in index.of_store(route)]
        for partition in range(route.partitions):
            candidates = {each.node_id: each for each in candidates_of(tables, route.operator_id, partition, now_ms)}
            mine = {index.node_ids[index.node[replica]]: replica for where, replica in found if where == partition}
            assert mine.keys() == candidates.keys()
            for node_id, replica in mine.items():
                facts, expected = snapshot.facts(replica), candidates[node_id]
                assert ROLES[index.role[replica]] == expected.role
                assert facts.state == (expected.state if expected.is_live else DEAD)
                assert (facts.version, facts.offset_lag, facts.time_lag_ms, facts.report_age_ms, facts.error) == (
                    expected.version,
                    expected.offset_lag,
                    expected.time_lag_ms,
                    expected.report_age_ms,
                    expected.error,
                )
                assert facts.standing.is_live == expected.is_live
                is_open = expected.is_heard and expected.version is not None and expected.is_live
                assert facts.standing.is_open == (is_open and expected.has_lineage and expected.has_layout)
                assert snapshot.holders[index.node[replica]].endpoint == expected.endpoint


@given(worlds())
def test_the_sums_of_a_snapshot_are_those_of_its_replicas(world: World) -> None:
    tables, stores, now_ms = world
    snapshot = snapshot_of(tables, stores, now_ms=now_ms)
    index, totals = snapshot.index, snapshot.totals
    for operator_id, summary in totals.summaries.items():
        tasks = index.tasks_of[operator_id]
        replicas = [replica for task in tasks for replica in index.holders(task)]
        facts = {replica: snapshot.facts(replica) for replica in replicas}
        live = [replica for replica in replicas if facts[replica].standing.is_live]
        wanted = [replica for replica in live if index.role[replica] != WARMUP]
        assert summary.by_role == [sum(index.role[each] == role for each in live) for role in range(3)]
        assert summary.dead == len(replicas) - len(live)
        assert summary.running == sum(facts[each].state == "RUNNING" for each in live)
        assert summary.restoring == sum(facts[each].state in {"RESTORING", "CREATED"} for each in live)
        assert summary.broken == sum(bool(facts[each].error) for each in live)
        assert summary.unknown == sum(facts[each].offset_lag is None for each in wanted)
        known = [lag for each in wanted if (lag := facts[each].offset_lag) is not None]
        assert summary.worst_lag == max(known, default=None)
        ages = [lag for each in wanted if (lag := facts[each].time_lag_ms) is not None]
        assert summary.worst_lag_ms == max(ages, default=None)
        if summary.worst is not None:
            assert facts[summary.worst].offset_lag == summary.worst_lag
        unserved = [task for task in tasks if not any(facts[each].standing.is_open for each in index.holders(task))]
        assert [task for task in totals.unserved if task in tasks] == unserved
        assert summary.unserved == len(unserved)
        settled = [sum(facts[each].standing is Standing.CAUGHT_UP for each in index.holders(task)) for task in tasks]
        pairs = zip(tasks, settled, strict=True)
        expected = {task for task, count in pairs if len(index.holders(task)) > 1 and count < 2}
        assert {task for task in totals.unsettled if task in tasks} == expected
        assert not set(totals.thin) & set(unserved)
