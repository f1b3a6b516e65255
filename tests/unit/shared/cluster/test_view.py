"""What nodes and routers know of their cluster alike, where one of them alone did not."""

from __future__ import annotations

from tests.support.router.tables import HEARTBEAT_MS, TASK, assigned, beat, farewell, task

from understudy_shared.bus.messages import Applied
from understudy_shared.cluster.view import ClusterView

SILENT_MS = 3 * HEARTBEAT_MS + 1


def knowing() -> ClusterView:
    """A view with an assignment that names a, which was heard at 0."""
    view = ClusterView(lambda kind, why: None, lambda: (None, 0))
    view.follow(assigned({TASK: task("a")}))
    view.heard(beat("a", sequence=5, held=[TASK], exceptions={TASK: Applied(version=1)}), age_ms=0, now_ms=0)
    return view


def test_a_node_that_was_silent_has_left_once_its_farewell_comes() -> None:
    view = knowing()
    view.expire(SILENT_MS)
    assert "a" in view.to_ask(SILENT_MS, heartbeat_ms=HEARTBEAT_MS)
    assert not view.is_gone("a")
    view.left(farewell("a", "i2"), SILENT_MS)
    assert not view.is_gone("a"), "another process said so"
    view.left(farewell("a"), SILENT_MS)
    assert view.is_gone("a")
    assert view.to_ask(1e9, heartbeat_ms=HEARTBEAT_MS) == {}, "it comes back itself"


def test_a_heartbeat_that_is_older_than_its_expiry_is_not_taken() -> None:
    view = knowing()
    assert not view.heard(beat("b"), age_ms=SILENT_MS, now_ms=0)
    assert "b" not in view.nodes
