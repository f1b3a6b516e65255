"""A node that follows a checkpoint in this process, without a port: for tests of what it holds and reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_node.cluster.context import MemberId
from understudy_node.cluster.heartbeat import MemberStatus, heartbeat_of
from understudy_node.node import Node
from understudy_node.replica.task import TaskReplica
from understudy_node.settings import NodeSettings
from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.words import HostInfo, Role
from understudy_shared.bus.messages import Heartbeat, Load

REFRESH_MS = 20
_WAIT_LIMIT_S = 20


@contextmanager
def followed_node(
    checkpoint: Path,
    data_dir: Path,
    *,
    files: CheckpointFiles | None = None,
    duties: Mapping[str, Role] | None = None,
    node_id: str | None = None,
    clock: Clock | None = None,
    **settings: object,
) -> Iterator[Node]:
    """Follow `checkpoint` with these duties until the block ends; at its end no background task may have died."""
    options: dict[str, object] = {"lag_refresh_ms": REFRESH_MS, **settings}
    node = Node(
        NodeSettings(checkpoint=str(checkpoint), data_dir=data_dir, **options),  # type: ignore[arg-type]  # pydantic
        files or LocalFiles(checkpoint),
        host=HostInfo("127.0.0.1", 7101),
        clock=clock or SystemClock(),
    )
    node.node_id = node_id
    node.assign(duties)
    node.start()
    try:
        yield node
        assert node.dead is None, node.dead
    finally:
        node.stop()


def held(node: Node) -> dict[str, TaskReplica]:
    """The replicas of what is served, by task key."""
    return {} if node.generation is None else node.generation.held


def wait_to_hold(node: Node, *tasks: str, version: int | None = None) -> None:
    """Return when exactly these tasks are held and can be answered from, at `version` if one is named."""

    def holds() -> bool:
        replicas = held(node)
        views = [replica.view for replica in replicas.values()]
        return (
            node.generation is not None
            and replicas.keys() == set(tasks)
            and all(view is not None and version in (None, view.version) for view in views)
        )

    try:
        wait_until(holds, what=f"tasks {tasks} at version {version}", limit_s=_WAIT_LIMIT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {list(held(node).values())}, {node.not_ready()}") from None


def heartbeat(node: Node, *, sequence: int = 1, term: int = 1, epoch: int = 1) -> Heartbeat:
    """The heartbeat that the node would send now."""
    return heartbeat_of(
        node,
        MemberId("n1", "life-1"),
        MemberStatus("serving", (term, epoch)),
        sequence=sequence,
        zone=None,
        heartbeat_ms=1000,
        catalogue=None,
        load=Load(),
        now_ms=SystemClock().monotonic_ms(),
    )
