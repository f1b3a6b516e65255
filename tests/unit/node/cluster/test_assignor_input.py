"""A cluster as the assignor sees it: which nodes are members, what counts as a zone, who has which replica."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus.documents import heartbeat

from understudy_node.cluster.assignor import Holdings, assign, members_of
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Applied, AssignedTask, Assignment, Endpoint, Heartbeat


def seen(node_id: str, machine: str, zone: str | None = None) -> AgedHeartbeat:
    beat: Heartbeat = heartbeat(node_id, endpoint=Endpoint(host=machine, port=7101), zone=zone)
    return AgedHeartbeat(beat, 0)


def zones(*nodes: AgedHeartbeat) -> list[str]:
    return [member.zone for member in members_of(nodes, "l1")]


def test_a_machine_is_a_zone_where_no_zones_are_named_or_only_one() -> None:
    assert zones(seen("a", "h1"), seen("b", "h1"), seen("c", "h2")) == ["h1", "h1", "h2"]
    assert zones(seen("a", "h1", "z"), seen("b", "h1", "z"), seen("c", "h2", "z")) == ["h1", "h1", "h2"]


@given(machines=st.integers(2, 4), processes=st.integers(1, 4), tasks=st.integers(1, 40))
def test_with_nodes_on_several_machines_no_task_has_both_its_replicas_on_one(
    machines: int, processes: int, tasks: int
) -> None:
    nodes = [seen(f"h{machine}-{number}", f"h{machine}") for machine in range(machines) for number in range(processes)]
    names = [f"0_{number}" for number in range(tasks)]
    found = assign(members_of(nodes, "l1"), names, {}, {}, num_standby_replicas=1, max_warmup_replicas=2)
    for task in found.values():
        assert len({holder.partition("-")[0] for holder in task.holders}) == 2


TASKS = [f"0_{number}" for number in range(4)]
ASSIGNED = st.fixed_dictionaries({task: st.sets(st.sampled_from("abc"), max_size=2) for task in TASKS})
REPORTS = st.dictionaries(
    st.sampled_from("abc"),
    st.fixed_dictionaries(
        {
            "version": st.sampled_from([None, 1, 8, 9]),
            "behind": st.none() | st.sampled_from(["0_0", "0_1", "0_2"]),
            "held": st.none() | st.lists(st.sampled_from(TASKS), unique=True),
            "late": st.integers(0, 2),
            "is_member": st.booleans(),
        }
    ),
)


@given(turns=st.lists(st.tuples(st.none() | ASSIGNED, REPORTS), max_size=6))
def test_replicas_taken_in_one_after_another_are_those_taken_in_at_once(
    turns: list[tuple[dict[str, set[str]] | None, dict[str, dict[str, Any]]]],
) -> None:
    kept, assignments = Holdings(3), [assignment_of({}, 0)]
    before: dict[str, set[tuple[str, bool, bool]]] = {}
    for given_now, reports in turns:
        if given_now is not None:
            assignments.append(assignment_of(given_now, len(assignments)))
            kept.follow(assignments[-1])
        nodes = [report_of(node_id, assignments, **report) for node_id, report in reports.items()]
        members = {node_id for node_id, report in reports.items() if report["is_member"]}
        changed = kept.look(nodes, members, "l1", 4)
        new = Holdings(3)
        for assignment in assignments[1:]:
            new.follow(assignment)
        assert new.look(nodes, members, "l1", 4) == {task for task in TASKS if new.get(task, ())}
        kinds = {}
        for task in TASKS:
            assert set(kept.get(task, ())) == set(new.get(task, ()))
            kinds[task] = {(each.node_id, each.caught_up, each.version is None) for each in new.get(task, ())}
        assert changed == {task for task in TASKS if kinds[task] != before.get(task, set())}
        before = kinds


def assignment_of(tasks: dict[str, set[str]], epoch: int) -> Assignment:
    """An assignment without actives, which do not matter here."""
    assigned = {task: AssignedTask(active=None, standbys=tuple(sorted(nodes))) for task, nodes in tasks.items()}
    return Assignment(
        application_id="flights", term=1, epoch=epoch, written_by="a", lineage="l1", partitions=4, tasks=assigned
    )


def report_of(
    node_id: str,
    assignments: list[Assignment],
    *,
    version: int | None,
    behind: str | None,
    held: list[str] | None,
    late: int,
    **_: bool,
) -> AgedHeartbeat:
    """The heartbeat of a node that is up to two assignments late, and may be behind with one task."""
    term, epoch = assignments[max(0, len(assignments) - 1 - late)].order
    exceptions = {} if behind is None else {behind: Applied(version=1)}
    return AgedHeartbeat(
        heartbeat(
            node_id,
            partitions=4,
            end_version=9,
            applied=Applied(version=version),
            exceptions=exceptions,
            held=held,
            term=term if epoch else 0,
            epoch=epoch,
        ),
        0,
    )
