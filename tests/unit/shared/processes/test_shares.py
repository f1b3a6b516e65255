"""What each of several processes gets of a limit."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_router.settings import RouterSettings
from understudy_shared.processes.shares import memory_share_bytes, share_of, worker_settings

PROCESSES = st.integers(1, 64)


@given(limit=st.integers(0, 1 << 50), processes=PROCESSES)
def test_the_shares_make_the_limit_and_less_than_one_more_for_each(limit: int, processes: int) -> None:
    assert limit <= share_of(limit, processes) * processes < limit + processes


@given(limit=st.integers(-1, 1 << 50), processes=PROCESSES, used=st.integers(0, 1 << 50))
def test_the_shares_of_memory_and_the_supervisor_fit_into_the_limit(limit: int, processes: int, used: int) -> None:
    share = memory_share_bytes(limit, processes, used_bytes=used)
    assert (share == 0) == (limit <= 0), "0 is no limit"
    assert share <= 1 or share * processes + used <= limit


def test_a_worker_gets_its_part_of_what_limits_the_service_and_the_rest_as_it_is() -> None:
    settings = RouterSettings(
        redis="redis://h", application_id="a", processes=2, max_in_flight=101, max_connections=1000, retry_per_s=3,
        memory_limit_bytes=1 << 30, data_dir=Path("/d"),
    )  # fmt: skip
    own = RouterSettings(**worker_settings(settings, 2, port=7000))
    assert (own.max_in_flight, own.max_connections, own.port) == (51, 500, 7000)
    assert own.memory_limit_bytes is not None
    assert 0 < own.memory_limit_bytes < 1 << 29
    same = set(RouterSettings.model_fields) - {"max_in_flight", "max_connections", "port", "memory_limit_bytes"}
    assert {name: getattr(own, name) for name in same} == {name: getattr(settings, name) for name in same}


def test_a_node_under_its_deprecated_name_for_the_cache_gets_its_part_of_it() -> None:
    settings = ClusterNodeSettings(
        checkpoint="/c", redis="redis://h", statestore_cache_max_bytes=1000, memory_limit_bytes=0
    )
    own = ClusterNodeSettings(**worker_settings(settings, 4))
    assert (own.statestore_cache_max_bytes, own.memory_limit_bytes) == (250, 0)
