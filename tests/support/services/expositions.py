"""What `/metrics` of a router and of a node of a cluster says, made without a port or a bus between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.support.bus.local_bus import LocalBus
from tests.support.cluster.followed_node import wait_to_hold

from understudy_node.checkpoint.files import LocalFiles
from understudy_node.cluster.context import MemberId
from understudy_node.cluster.member import ClusterMember
from understudy_node.http.app import create_app as create_node_app
from understudy_node.node import Node
from understudy_node.settings import ClusterNodeSettings
from understudy_router.http.app import create_app as create_router_app
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.gossip import Gossip
from understudy_shared.http.edge import App
from understudy_shared.http.problems import ProblemType
from understudy_shared.questions.lookup.hop import FOUND, HopOutcome
from understudy_shared.reads.bounds import NO_BOUND

HOST = HostInfo("127.0.0.1", 7101)
_PARTS = re.compile(r"_(bucket|sum|count)$")


async def router_exposition() -> str:
    """The metrics of a router that has heard nothing yet and answered one read."""
    settings = RouterSettings(redis="redis://unused", application_id="counting")
    router = Router(settings, LocalBus(), host=HOST, clock=SystemClock())
    app = create_router_app(router)
    counts = app.requests.of("lookup", "op0")
    counts.outcomes["found"] += 1
    counts.duration_ms.observe(1)
    counts.count(ProblemType.DEADLINE.slug)
    router.served.answered(HopOutcome(FOUND, b"", b'"lag":{}'), NO_BOUND)
    return await metrics_of(app)


@contextmanager
def cluster_node(checkpoint: Path, data_dir: Path) -> Iterator[tuple[Node, App]]:
    """A node of a cluster that holds every task, and its metrics."""
    settings = ClusterNodeSettings(
        checkpoint=str(checkpoint), data_dir=data_dir, redis="redis://unused", node_id="n1", application_id="counting"
    )
    node = Node(settings, LocalFiles(checkpoint), host=HOST, clock=SystemClock())
    member = ClusterMember(
        node, Gossip(LocalBus(), settings.application), settings, MemberId("n1", "i1"), clock=SystemClock()
    )
    app = create_node_app(node, member)
    node.start()
    try:
        wait_to_hold(node, "0_0", "0_1")
        yield node, app
    finally:
        node.stop()


async def metrics_of(app: App) -> str:
    """Return the exposition that an application sends to a scraper."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as http:
        return (await http.get("/metrics")).text


def names_in(exposition: str) -> set[str]:
    """The names of its families, as Prometheus has them: counters with `_total`."""
    return set(re.findall(r"(?m)^# TYPE (\w+) ", exposition))


def labels_in(exposition: str) -> dict[str, set[str]]:
    """The labels of each family that has series, but for those of buckets."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            name = _PARTS.sub("", sample.name) if family.type == "histogram" else sample.name
            found.setdefault(name, set()).update(sample.labels.keys() - {"le"})
    return found
