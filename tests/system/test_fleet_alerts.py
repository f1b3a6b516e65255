"""A real Prometheus watches a fleet: the alert about an application that is not served fires, and clears."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.services.command_line import serving
from tests.support.services.prometheus import program, prometheus
from tests.support.spark.queries import wait_until
from tests.system.alerts.causes import OF_FLEETS
from tests.system.alerts.watched_world import EVERY_MS, LIMIT_S, LOOK_EVERY_S, RULES, quick_rules

pytestmark = [pytest.mark.full, pytest.mark.timeout(720)]


def test_an_application_whose_checkpoint_cannot_be_opened_fires_its_alert_until_it_can(tmp_path: Path) -> None:
    program("prometheus")
    orders, clicks = (
        HandmadeCheckpoint(tmp_path / name, partitions=2).create().add(1) for name in ("orders", "clicks")
    )
    whole = tmp_path / "whole" / "clicks"
    shutil.copytree(clicks.path, whole)
    (clicks.path / "metadata").write_text("no metadata")
    with serving([str(orders.path), str(clicks.path)], tmp_path / "fleet") as fleet:
        port = urlsplit(fleet.url).port
        assert port is not None
        with prometheus(
            tmp_path / "prometheus", {"fleet": [port]}, quick_rules(RULES.read_text()), every_ms=EVERY_MS
        ) as seen:
            wait_until(lambda: seen.firing() >= OF_FLEETS, what="it", limit_s=LIMIT_S, every_s=LOOK_EVERY_S)
            shutil.copy(whole / "metadata", clicks.path / "metadata")
            wait_until(lambda: not seen.firing() & OF_FLEETS, what="its end", limit_s=LIMIT_S, every_s=LOOK_EVERY_S)
            assert fleet.ask("stores", "--application", "clicks").returncode == 0
