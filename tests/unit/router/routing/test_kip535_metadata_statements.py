"""KIP-535's statements about metadata and choice, by number (1 to 7, 14, 15); deviations are said."""

from __future__ import annotations

import dataclasses

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.tables import (
    HEARTBEAT_MS,
    TASK,
    assigned,
    beat,
    catalogue,
    expire,
    port_of,
    route,
    tables_of,
    task,
)

from understudy_router.cluster.candidates import candidates_of
from understudy_router.cluster.catalogue import stores_of
from understudy_router.cluster.tables import Tables
from understudy_router.http.app import MetadataCall
from understudy_router.routing.choose import choose, explain_key, resolve
from understudy_shared.base.errors import NoSuchStoreError
from understudy_shared.base.words import HostInfo, KeyQueryMetadata
from understudy_shared.bus.messages import Assignment, Farewell
from understudy_shared.http.problems import ProblemError, ProblemType, problem_of
from understudy_shared.reads.bounds import NO_BOUND, Bound


def host(node_id: str) -> HostInfo:
    return HostInfo("127.0.0.1", port_of(node_id))


def asked(tables: Tables, now_ms: float, bound: Bound = NO_BOUND) -> str:
    choice = choose(candidates_of(tables, 0, 0, now_ms), bound, key_hash=1, load={})
    return "".join(each.node_id for each in choice.asked)


def test_statement_01_metadata_is_an_active_host_standby_hosts_and_a_partition() -> None:
    """The choice stands beside the hosts; their order says nothing. A warm-up is no standby."""
    tables = tables_of(task("a", "b", "c", warmups=("d",)), beat("a"), beat("b", version=3), beat("c"), beat("d"))
    found = resolve(tables, route(), ("w",))
    assert [field.name for field in dataclasses.fields(found)] == ["active_host", "standby_hosts", "partition"]
    assert (found.active_host, set(found.standby_hosts), found.partition) == (host("a"), {host("b"), host("c")}, 0)
    explanation = explain_key(tables, route(), ("w",), NO_BOUND, load={"d": 1}, now_ms=0)
    assert [each["node_id"] for each in explanation["choice"]] == ["a", "c", "d", "b"]  # type: ignore[attr-defined]


def test_statement_02_before_the_first_assignment_the_call_is_refused_and_may_be_retried() -> None:
    """Deviation: a 503 instead of the NOT_AVAILABLE constant, which names no host."""
    tables = Tables()
    tables.heard(beat("a"), age_ms=0, now_ms=0)
    for call in (lambda: resolve(tables, route(), ("w",)), lambda: MetadataCall(tables, route(), {})):
        with pytest.raises(ProblemError) as refused:
            call()
        assert refused.value.problem.type is ProblemType.NOT_INITIALISED
        assert refused.value.problem.status == 503
        assert "assignment" in refused.value.problem.detail
        assert "Retry" in refused.value.problem.fix


def test_statement_03_an_unknown_store_is_another_no_than_try_later() -> None:
    with pytest.raises(NoSuchStoreError) as unknown:
        stores_of(catalogue(name="aircraft"), "c1").get("airports")
    assert problem_of(unknown.value).status == 404
    assert "aircraft" in unknown.value.fix
    assert "op1: its state is not read" in unknown.value.fix


def test_statement_04_a_partition_without_an_active_keeps_its_number_and_its_standbys() -> None:
    tables = tables_of(task(None, "b"), beat("b"))
    assert resolve(tables, route(), ("w",)) == KeyQueryMetadata(None, (host("b"),), 0)
    assert asked(tables, 0) == "b"


def test_statement_04_an_active_that_left_is_no_host_and_its_standbys_are_asked() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b"))
    tables.left(Farewell(application_id="flights", node_id="a", incarnation="i1"), 1)
    assert resolve(tables, route(), ("w",)) == KeyQueryMetadata(None, (host("b"),), 0)
    assert asked(tables, 1) == "b"


@given(st.permutations([(1, 9), (2, 1), (2, 3)]))
def test_statement_05_of_two_claims_to_be_active_the_higher_term_and_epoch_wins(orders: list[tuple[int, int]]) -> None:
    """Deviation: there the later in (host, port) order wins, silently. Here the order of claims does not matter."""
    claims: dict[tuple[int, int], Assignment] = {
        order: assigned({TASK: task(node_id)}, order=order)
        for order, node_id in zip([(1, 9), (2, 1), (2, 3)], ("z", "y", "a"), strict=True)
    }
    tables = Tables()
    for order in orders:
        tables.assigned(claims[order], 0)
    assert resolve(tables, route(), ("w",)).active_host == host("a")


def test_statement_06_a_store_without_key_columns_has_a_real_partition_and_real_hosts() -> None:
    """Not applicable as it stands: Spark has no store that every instance holds (there: partition -1). What comes
    nearest is a global aggregate, whose one key is `[]`: it lies in partition 0, with an active and standbys.
    """
    keyless = route(partitions=8, has_keys=False)
    tables = Tables()
    tables.assigned(assigned({TASK: task("a", "b")}, partitions=8), 0)
    assert resolve(tables, keyless, keyless.codec.parse_json([])) == KeyQueryMetadata(host("a"), (host("b"),), 0)


@given(st.text(), st.sets(st.integers(0, 7)))
def test_statement_07_the_number_of_partitions_is_the_catalogues_whatever_the_assignment(
    word: str, given_out: set[int]
) -> None:
    tables = Tables()
    tables.assigned(assigned({f"0_{partition}": task("a") for partition in given_out}, partitions=8), 0)
    store = route(partitions=8)
    found = resolve(tables, store, (word,))
    assert found.partition == store.codec.partition((word,), 8)
    assert found.active_host == (host("a") if found.partition in given_out else None)
    assert len(orjson.loads(b"".join(MetadataCall(tables, store, {}).pieces()))["partitions"]) == 8


def test_statement_14_the_choice_is_by_lag_which_travels_in_heartbeats_and_not_in_the_assignment() -> None:
    """Deviation: the proposal leaves choosing to the application; here it is what a router does."""
    tables = tables_of(task("a", "b", "c"), beat("a", version=1), beat("b", version=4), beat("c", version=6))
    assert asked(tables, 0) == "acb"
    assert asked(tables, 0, Bound(max_lag=3)) == "cba", "the active is outside the bound: asked last"
    before = tables.assignment
    tables.heard(beat("b", sequence=2, version=7), age_ms=0, now_ms=1)
    assert asked(tables, 1, Bound(max_lag=3)) == "bca"
    assert tables.assignment is before


def test_statement_15_standbys_answer_from_the_moment_that_the_active_is_gone() -> None:
    """A request that fails moves the active behind its standbys at once; three heartbeats of silence leave it out."""
    tables = tables_of(task("a", "b"), beat("a"), beat("b", version=6))
    assert asked(tables, 0) == "ab"
    tables.hop_failed("a", 1, "connection refused")
    assert asked(tables, 1) == "ba"
    tables.heard(beat("b", sequence=2, version=6), age_ms=0, now_ms=3 * HEARTBEAT_MS)
    expire(tables, 3 * HEARTBEAT_MS + 1)
    assert asked(tables, 3 * HEARTBEAT_MS + 1) == "b"
