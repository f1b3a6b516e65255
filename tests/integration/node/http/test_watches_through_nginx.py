"""Watches through nginx at its default settings: it buffers replies, and gives up after 60 s without a byte."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import served_node
from tests.support.repository import ROOT
from tests.support.services.watches import Watcher
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_shared.base.ports import free_port
from understudy_shared.server.watch_streams import HEARTBEAT_S

GIVES_UP_AFTER_S = 60.0
CONF = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxied;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{behind}; }}
  }}
}}
"""


def program() -> str | None:
    unpacked = ROOT / ".cache/nginx/usr/sbin/nginx"
    return str(unpacked) if unpacked.exists() else shutil.which("nginx")


@contextmanager
def nginx(folder: Path, behind: int) -> Iterator[int]:
    """The port of an nginx before another one, until the block ends."""
    found = program()
    if found is None:
        pytest.skip("no nginx: make servers unpacks it")
    folder.mkdir()
    port, conf = free_port(), folder / "nginx.conf"
    conf.write_text(CONF.format(folder=folder, port=port, behind=behind))
    with subprocess.Popen([found, "-c", str(conf), "-p", str(folder), "-e", str(folder / "error.log")]) as process:
        try:
            wait_until((folder / "nginx.pid").exists, what="nginx")
            yield port
        finally:
            process.terminate()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_watch_begins_at_once_and_outlives_the_patience_of_nginx_without_a_change(tmp_path: Path) -> None:
    """Q31."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(2)
        with nginx(tmp_path / "nginx", node.port) as port, Watcher(port, f"op0/watch/{WORDS[0]}") as watcher:
            assert watcher.take().kind == "snapshot"
            signs = 0
            while signs <= GIVES_UP_AFTER_S / HEARTBEAT_S:
                line = watcher.response.readline()
                assert line, "nginx gave up"
                signs += line.startswith(b":")
            checkpoint.add(3)
            assert (watcher.take().kind, watcher.last_event_id) == ("value", node.look_up([WORDS[0]]).body["position"])
