"""Watches through nginx at its default settings: it buffers replies, and gives up after 60 s without a byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import served_node
from tests.support.services.proxies import nginx
from tests.support.services.watches import Watcher
from tests.support.spark.counting_query import WORDS

from understudy_shared.questions.watch.streams import HEARTBEAT_S

GIVES_UP_AFTER_S = 60.0
SERVERS = "server { listen 8000; location / { proxy_pass http://router-1:8080; } }"


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_watch_begins_at_once_and_outlives_the_patience_of_nginx_without_a_change(tmp_path: Path) -> None:
    """Q31."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(2)
        with nginx(tmp_path / "nginx", SERVERS, node.port) as port, Watcher(port, f"op0/watch/{WORDS[0]}") as watcher:
            assert watcher.take().kind == "snapshot"
            signs = 0
            while signs <= GIVES_UP_AFTER_S / HEARTBEAT_S:
                line = watcher.response.readline()
                assert line, "nginx gave up"
                signs += line.startswith(b":")
            checkpoint.add(3)
            assert (watcher.take().kind, watcher.last_event_id) == ("value", node.look_up([WORDS[0]]).body["position"])
