"""What the pages of tutorials and how-tos tell a reader to type runs, in the order of the page, as a reader runs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.documents.blocks import RUNNABLE, blocks_of
from tests.support.documents.page_runner import PageRunner
from tests.support.repository import ROOT

from understudy_shared.base import sockets

PAGES = ROOT / "docs"
QUICK = ("how-to/many-rows.md", "how-to/sign-gossip.md")
"""These need no Spark and no cluster."""

LONG = (
    "how-to/alerts.md",
    "how-to/cluster.md",
    "how-to/drain.md",
    "how-to/keys-and-tls.md",
    "how-to/more-cores.md",
    "how-to/upgrade.md",
    "tutorials/aligned-source.md",
    "tutorials/lose-a-node.md",
    "tutorials/own-query.md",
    "tutorials/sql.md",
)
READ_ONLY = (
    "how-to/fleet.md",
    "how-to/kubernetes.md",
    "how-to/load-balancers.md",
    "how-to/redis.md",
    "how-to/sign-in.md",
)
"""They have no block that could run on one machine; each says why."""

ELSEWHERE = ("how-to/dashboards.md", "how-to/feature-stores.md")
"""Run by tests of their own in tests/integration/client, with packages that the project does not need."""


class Orders(HandmadeCheckpoint):
    """A checkpoint of 50 customers."""

    def counts(self, version: int) -> dict[str, int]:
        return {f"customer-{number:03}": version for number in range(50)}


@contextmanager
def free_ports(*documented: str) -> Iterator[dict[str, str]]:
    """Other ports for those of a page, which are free when the block begins."""
    yield dict(zip(documented, map(str, sockets.free_ports([0] * len(documented))), strict=True))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[PageRunner]:
    """A reader with a folder of his own, whose ports and paths are those of this test."""
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    checkpoint = Orders(tmp_path / "orders", key_columns=(("customer", "string"),)).create().add(1, 2, 3)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UNDERSTUDY_")}
    with free_ports("8080", "8081", "8082", "7101", "7102", "6379") as ports, redis_server(port=int(ports["6379"])):
        environment = kept | {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "UNDERSTUDY_PORT": ports["8080"],
            "UNDERSTUDY_URL": f"http://127.0.0.1:{ports['8080']}",
        }
        paths = {"/data/checkpoints/orders": str(checkpoint.path), "/data/node": str(tmp_path / "node")}
        running = PageRunner(folder, environment, ports | paths)
        try:
            yield running
        finally:
            running.stop()


@pytest.mark.parametrize("page", QUICK)
def test_every_block_of_a_page_runs(reader: PageRunner, page: str) -> None:
    assert reader.run_page(PAGES / page) > 0


@pytest.mark.full
@pytest.mark.parametrize("page", LONG)
def test_every_block_of_a_page_with_a_query_or_a_cluster_runs(reader: PageRunner, page: str) -> None:
    assert reader.run_page(PAGES / page) > 0


def test_every_page_is_run_or_has_only_blocks_that_say_why_not() -> None:
    there = {
        path.relative_to(PAGES).as_posix() for kind in ("tutorials", "how-to") for path in (PAGES / kind).glob("*.md")
    }
    assert there == {*QUICK, *LONG, *READ_ONLY, *ELSEWHERE}
    for page in READ_ONLY:
        blocks = blocks_of((PAGES / page).read_text())
        assert [block.text for block in blocks if block.language in RUNNABLE and block.mark("not run:") is None] == []
