"""A real Prometheus watches a real cluster: each alert fires when its fault is caused, and clears after the repair.

The rules are those of deploy/prometheus, with every duration divided (tests/support/services/quick_rules.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.system.alerts.causes import CAUSES, Cause
from tests.system.alerts.watched_world import WatchedWorld, watched_world

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedWorld]:
    with watched_world(tmp_path_factory.mktemp("watched")) as made:
        yield made


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.fault.__name__)
def test_alerts_fire_while_their_fault_lasts_and_clear_after_the_repair(watched: WatchedWorld, cause: Cause) -> None:
    watched.wait_until_well()
    watched.wait_for(cause.alerts, what="nothing is broken", fire=False)
    with cause.fault(watched):
        watched.wait_for(cause.alerts, what=cause.fault.__name__, fire=True)
    watched.wait_for(cause.alerts, what=f"{cause.fault.__name__}: over", fire=False)
