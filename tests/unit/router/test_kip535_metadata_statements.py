"""What KIP-535 and its implementation say of metadata, statement by statement, and what we do (docs/kips.md)."""

from __future__ import annotations

import json

import pytest
from tests.support.router_tables import NOW_MS, assigned, said, tables_of

from understudy_router.candidates import candidates_of
from understudy_router.catalogue import StoreRoute, Stores, stores_of
from understudy_router.choose import choose
from understudy_router.explain import explain_key
from understudy_router.resolve import metadata_of, resolve
from understudy_router.tables import Tables
from understudy_shared.bounds import NO_BOUND, Bound, UnknownLag
from understudy_shared.errors import BadKeyError, UnknownStoreError
from understudy_shared.messages import AssignedTask, Assignment, Catalogue, CatalogueStore
from understudy_shared.problems import ProblemError, ProblemType
from understudy_shared.words import HostInfo

PARTITIONS = 4


def struct(*names: str) -> str:
    fields = [{"name": name, "type": "string", "nullable": True, "metadata": {}} for name in names]
    return json.dumps({"type": "struct", "fields": fields})


def stores(partitions: int = PARTITIONS) -> Stores:
    """`words` by one column, and `totals`, a global aggregate without any."""
    described = [
        CatalogueStore(
            store=name,
            operator_id=operator,
            operator="stateStoreSave",
            key_schema=struct(*columns),
            key_names=columns,
            partitions=partitions,
            value=[],
        )
        for operator, (name, columns) in enumerate({"words": ["word"], "totals": []}.items())
    ]
    catalogue = Catalogue(application_id="flights", lineage="l1", partitions=partitions, stores=described)
    return stores_of(catalogue, "digest")


def words() -> StoreRoute:
    return stores().get("words")


def assignment(tasks: dict[str, AssignedTask], order: tuple[int, int] = (1, 1)) -> Assignment:
    return Assignment(
        application_id="flights",
        term=order[0],
        epoch=order[1],
        written_by="a",
        lineage="l1",
        partitions=PARTITIONS,
        tasks=tasks,
        members={node: {"host": node, "port": 7000} for task in tasks.values() for node in task.holders},  # type: ignore[misc]
    )


def everywhere(active: str | None, *standbys: str, order: tuple[int, int] = (1, 1)) -> Assignment:
    """Every task of `words` held by the same nodes."""
    task = AssignedTask(active=active, standbys=list(standbys))
    return assignment({f"0_{partition}": task for partition in range(PARTITIONS)}, order)


def test_statement_01_metadata_is_the_active_the_standbys_and_the_partition() -> None:
    tables = tables_of(everywhere("a", "b", "c"), a=10, b=10, c=10)
    metadata = resolve(tables, words(), ("N14228",))
    assert metadata.active_host == HostInfo("a", 7000)
    assert set(metadata.standby_hosts) == {HostInfo("b", 7000), HostInfo("c", 7000)}
    assert metadata.partition == words().codec.partition(("N14228",), PARTITIONS)


def test_statement_01_ours_adds_an_order_to_ask_them_in() -> None:
    tables = tables_of(everywhere("a", "b", "c"), a=10, b=6, c=8)
    explained = explain_key(tables, words(), ("N14228",), NO_BOUND, load={}, now_ms=NOW_MS)
    assert [each["node_id"] for each in explained["choice"]] == ["a", "c", "b"]  # type: ignore[attr-defined]


def test_statement_02_a_cluster_that_is_not_known_yet_is_not_initialised_and_may_be_asked_again() -> None:
    with pytest.raises(ProblemError) as refused:
        resolve(Tables(), words(), ("N14228",))
    assert refused.value.problem.type is ProblemType.NOT_INITIALISED
    assert refused.value.problem.status == 503
    assert "Retry" in refused.value.problem.fix


def test_statement_03_an_unknown_store_is_another_no_and_names_the_stores_there_are() -> None:
    with pytest.raises(UnknownStoreError) as unknown:
        stores().get("wrods")
    assert "totals, words" in str(unknown.value)


def test_statement_03_a_missing_key_is_refused_before_anything_is_looked_up() -> None:
    with pytest.raises(BadKeyError):
        words().codec.parse_json([])


def test_statement_04_a_partition_without_an_active_has_a_partition_and_standbys_to_ask() -> None:
    tables = tables_of(everywhere(None, "b"), b=9)
    metadata = resolve(tables, words(), ("N14228",))
    assert metadata.active_host is None
    assert metadata.standby_hosts == (HostInfo("b", 7000),)
    assert metadata.partition == words().codec.partition(("N14228",), PARTITIONS)
    candidates = candidates_of(tables, 0, metadata.partition, NOW_MS)
    assert [each.node_id for each in choose(candidates, NO_BOUND, key_hash=0, load={}).order] == ["b"]


def test_statement_05_of_two_claims_to_be_active_the_later_epoch_counts_whatever_the_hosts_are_called() -> None:
    for first, second in (("a", "z"), ("z", "a")):
        tables = tables_of(everywhere(first, order=(1, 5)), a=10, z=10)
        assert not tables.assigned(everywhere(second, order=(1, 4)))
        assert metadata_of(tables, words(), 0).active_host == HostInfo(first, 7000)
        assert tables.assigned(everywhere(second, order=(2, 1)))
        assert metadata_of(tables, words(), 0).active_host == HostInfo(second, 7000)


def test_statement_05_one_hash_places_a_key_as_spark_did_and_there_is_no_partitioner_to_choose() -> None:
    route = words()
    placed = {route.codec.partition((f"N{number}",), PARTITIONS) for number in range(200)}
    assert placed == set(range(PARTITIONS))


def test_statement_06_a_store_without_key_columns_has_one_key_in_a_partition_of_its_own() -> None:
    """Kafka's global store is on every host, with partition -1; Spark's global aggregate is one row of one task."""
    totals = stores().get("totals")
    tables = tables_of(assignment({"1_0": AssignedTask(active="a", standbys=["b"])}), a=10, b=10)
    metadata = resolve(tables, totals, totals.codec.parse_json([]))
    assert metadata.partition == 0
    assert metadata.active_host == HostInfo("a", 7000)


def test_statement_07_the_number_of_partitions_is_the_catalogues_and_not_that_of_who_is_assigned() -> None:
    key = next((f"N{number}",) for number in range(100) if words().codec.partition((f"N{number}",), PARTITIONS) == 3)
    tables = tables_of(assignment({"0_0": AssignedTask(active="a")}), a=10)
    metadata = resolve(tables, words(), key)
    assert metadata.partition == 3
    assert metadata.active_host is None
    assert metadata.standby_hosts == ()


def test_statement_07_the_owner_may_change_between_metadata_and_read_so_metadata_tells_its_epoch() -> None:
    tables = tables_of(everywhere("a", order=(3, 9)), a=10)
    explained = explain_key(tables, words(), ("N14228",), NO_BOUND, load={}, now_ms=NOW_MS)
    assert (explained["term"], explained["epoch"]) == (3, 9)


def test_statement_14_choosing_by_lag_and_lag_in_time_are_not_left_to_the_application() -> None:
    tables = tables_of(assigned("a", ["b", "c"]), a=None, b=4, c=9)
    candidates = candidates_of(tables, 0, 0, NOW_MS)
    assert [each.node_id for each in choose(candidates, NO_BOUND, key_hash=0, load={}).order] == ["c", "b"]
    in_time = choose(candidates, Bound(max_staleness_ms=1), key_hash=0, load={})
    assert {str(each.reason) for each in in_time.doubtful} == {"lag-exceeded", "not-open"}


def test_statement_15_while_the_active_is_gone_its_standbys_are_asked() -> None:
    tables = tables_of(assigned("a", ["b"]), a=10)
    said(tables, "b", 9, sequence=2, age_ms=-5000)
    tables.expire(NOW_MS + 5000)
    choice = choose(candidates_of(tables, 0, 0, NOW_MS + 5000), NO_BOUND, key_hash=0, load={})
    assert [each.node_id for each in choice.order] == ["b"]
    assert [(each.candidate.node_id, str(each.reason)) for each in choice.exclusions] == [("a", "dead")]


def test_statement_15_a_lone_survivor_of_unknown_lag_serves_whoever_set_no_bound() -> None:
    tables = tables_of(assigned("a", ["b"]))
    said(tables, "b", 9, end_age_ms=None)
    candidates = [each for each in candidates_of(tables, 0, 0, NOW_MS) if each.node_id == "b"]
    assert [each.node_id for each in choose(candidates, NO_BOUND, key_hash=0, load={}).order] == ["b"]
    assert choose(candidates, Bound(max_lag=5), key_hash=0, load={}).order == ()
    assert choose(candidates, Bound(max_lag=5, unknown_lag=UnknownLag.SERVE), key_hash=0, load={}).order != ()
