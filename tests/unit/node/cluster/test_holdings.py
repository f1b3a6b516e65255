"""Members of a cluster as the assignor sees them: what counts as a zone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus.documents import heartbeat

from understudy_node.cluster.assignor import assign
from understudy_node.cluster.holdings import members_of
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Endpoint, Heartbeat


def seen(node_id: str, machine: str, zone: str | None = None) -> AgedHeartbeat:
    beat: Heartbeat = heartbeat(node_id, endpoint=Endpoint(host=machine, port=7101), zone=zone)
    return AgedHeartbeat(beat, 0)


def zones(*nodes: AgedHeartbeat) -> list[str]:
    return [member.zone for member in members_of(nodes, "l1")]


def test_a_machine_is_a_zone_where_no_zones_are_named_or_only_one() -> None:
    assert zones(seen("a", "h1"), seen("b", "h1"), seen("c", "h2")) == ["h1", "h1", "h2"]
    assert zones(seen("a", "h1", "z"), seen("b", "h1", "z"), seen("c", "h2", "z")) == ["h1", "h1", "h2"]


def test_zones_that_are_named_count() -> None:
    assert zones(seen("a", "h1", "y"), seen("b", "h1", "z"), seen("c", "h2")) == ["y", "z", "h2"]


@given(machines=st.integers(2, 4), processes=st.integers(1, 4), tasks=st.integers(1, 40))
def test_with_nodes_on_several_machines_no_task_has_both_its_replicas_on_one(
    machines: int, processes: int, tasks: int
) -> None:
    nodes = [seen(f"h{machine}-{number}", f"h{machine}") for machine in range(machines) for number in range(processes)]
    names = [f"0_{number}" for number in range(tasks)]
    found = assign(members_of(nodes, "l1"), names, {}, {}, num_standby_replicas=1, max_warmup_replicas=2)
    for task in found.values():
        assert len({holder.partition("-")[0] for holder in task.holders}) == 2
