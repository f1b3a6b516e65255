"""Routers and nodes with certificates, over real sockets: who is let in, who is refused and how both sides say so."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import (
    TASKS,
    VERSION,
    Cluster,
    ClusterNode,
    ClusterRouter,
    cluster,
    cluster_router,
)
from tests.support.cluster.served_node import Served
from tests.support.cluster.watch import reading
from tests.support.services.certificates import Files, Signer, replace, uri
from tests.support.services.guarded import peer_key
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_shared.tls.service_tls import ServiceTls
from understudy_shared.tls.trouble import TlsReason, TlsSide

LIMIT_S = 20.0
HOP = "/internal/v1/lags"


@dataclass(frozen=True, slots=True)
class Pki:
    """What an operator has issued."""

    ours: Signer
    stranger: Signer
    node: Files
    router: Files

    def of(self, files: Files, prefix: str = "tls", *, ca: Signer | None = None) -> dict[str, Any]:
        """The settings of a service with these files."""
        return {**files.settings(prefix), "peer_ca_file": str((ca or self.ours).file)}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    folder = tmp_path_factory.mktemp("pki")
    ours, stranger = Signer(folder / "ours", "ours"), Signer(folder / "stranger", "stranger")
    return Pki(ours, stranger, ours.issue("node", uri("node")), ours.issue("router", uri("router")))


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = HandmadeCheckpoint(tmp_path_factory.mktemp("mtls") / "counts", partitions=TASKS).create()
    return made.add(*range(1, VERSION + 1)).path


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "cluster"
    path.write_text("c" * 40)
    return path


@pytest.fixture(scope="module")
def known(
    server: RedisServer, pki: Pki, checkpoint: Path, secret: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two nodes that ask for certificates and for the cluster's key, and a router that has both."""
    settings: dict[str, Any] = {**pki.of(pki.node), "cluster_secret_file": str(secret)}
    folder = tmp_path_factory.mktemp("nodes")
    with cluster(checkpoint, folder, server.url, nodes=0, routers=0, **settings) as running:
        router = running.start_router(**{**settings, **pki.of(pki.router)})
        router.tls = pki.ours.client()
        for node_id in ("n1", "n2"):
            running.start(node_id)
        running.wait_to_rest(copies=2, version=VERSION)
        yield running


def asked(port: int, target: str, context: ssl.SSLContext | None, *, body: bytes | None = None) -> tuple[int, Any]:
    """Status and JSON of an answer to a request of a stranger."""
    client = Served(port)
    client.tls = context
    reply = client.get(target) if body is None else client.post(target, body)
    return reply.status, reply.body


def counted(service: Any, side: TlsSide, reason: TlsReason) -> int:
    found: int = tls_of(service).refusals[side, reason]
    return found


def tls_of(service: ClusterNode | ClusterRouter) -> ServiceTls:
    """The certificates of a service that has some."""
    assert service.access.tls is not None
    return service.access.tls


def test_a_node_tells_strangers_nothing_and_says_which_certificate_it_wants(
    known: Cluster, pki: Pki, secret: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = known.nodes["n1"]
    role = pki.ours.issue("reader", uri("reader"))
    elsewhere = pki.ours.issue("elsewhere", uri("router", application="another"))
    domain = pki.ours.issue("domain", uri("router", domain="other.example"))
    nameless = pki.ours.issue("nameless")
    two = pki.ours.issue("two", uri("router"), uri("node"))
    for shown, reason, says in (
        (None, TlsReason.NO_CERTIFICATE, "it shows no certificate"),
        (role, TlsReason.ROLE, "of the role 'reader', not node or router"),
        (elsewhere, TlsReason.APPLICATION, "of the application 'another', not counting"),
        (domain, TlsReason.TRUST_DOMAIN, "of the trust domain 'other.example', not test.local"),
        (nameless, TlsReason.IDENTITY, "names no URI"),
        (two, TlsReason.IDENTITY, "not one spiffe://"),
    ):
        before = counted(node, TlsSide.ACCEPT, reason)
        for target, body in ((HOP, None), ("/internal/v1/lookup", b"x" * 20)):
            status, answer = asked(node.port, target, pki.ours.client(shown), body=body)
            assert (status, answer["type"]) == (403, "forbidden"), (shown, answer)
            assert says in answer["detail"]
        assert counted(node, TlsSide.ACCEPT, reason) == before + 2
        lines = [line for line in caplog.messages if says in line]
        assert len(lines) == 1, "one line of a peer in a minute"


def test_a_certificate_alone_is_no_key_and_a_key_alone_no_certificate(known: Cluster, pki: Pki) -> None:
    node = known.nodes["n1"]
    status, answer = asked(node.port, HOP, pki.ours.client(pki.router))
    assert (status, answer["type"]) == (401, "unauthenticated")
    client = Served(node.port)
    client.tls, client.key = pki.ours.client(), peer_key(known.router.access.identity)
    assert client.get(HOP).status == 403
    assert client.post("/admin/v1/drain", b'{"drain": true}').status == 403
    client.tls = pki.ours.client(pki.router)
    assert client.get(HOP).status == 200


@contextmanager
def refused_router(server: RedisServer, known: Cluster, settings: Mapping[str, Any]) -> Iterator[ClusterRouter]:
    """A router that knows the cluster by the bus, and cannot read from its nodes."""
    with cluster_router(server.url, **settings) as router:
        wait_until(lambda: len(router.living()) == 2, what="the nodes", limit_s=LIMIT_S)
        wait_until(lambda: "catalogue" not in refusal_of(router), what="the catalogue", limit_s=LIMIT_S)
        yield router


def refusal_of(router: ClusterRouter) -> str:
    """What a reader is told: that nobody could be asked, never that there is no such key."""
    reply = router.look_up([WORDS[0]])
    assert reply.status in (502, 503, 504), reply
    assert "found" not in reply.body
    return json.dumps(reply.body)


def test_what_a_node_refuses_fails_by_name_and_is_never_absent(
    server: RedisServer, known: Cluster, pki: Pki, secret: Path
) -> None:
    stranger = pki.stranger.issue("router", uri("router"))
    both = pki.ours.folder / "both.pem"
    both.write_bytes(pki.ours.file.read_bytes() + pki.stranger.file.read_bytes())
    shown = {**stranger.settings("peer"), "peer_ca_file": str(both), "cluster_secret_file": str(secret)}
    node = known.nodes["n1"]
    before = counted(node, TlsSide.ACCEPT, TlsReason.UNTRUSTED)
    with refused_router(server, known, shown) as router:
        refusal_of(router)
        assert counted(router, TlsSide.CONNECT, TlsReason.REFUSED_OURS) > 0
    assert counted(node, TlsSide.ACCEPT, TlsReason.UNTRUSTED) > before


def test_a_router_refuses_nodes_that_its_authority_has_not_signed(
    server: RedisServer, known: Cluster, pki: Pki, secret: Path
) -> None:
    shown = pki.stranger.issue("honest", uri("router"))
    settings = {**pki.of(shown, "peer", ca=pki.stranger), "cluster_secret_file": str(secret)}
    with refused_router(server, known, settings) as router:
        assert "not signed by an authority that this service trusts" in refusal_of(router)
        assert counted(router, TlsSide.CONNECT, TlsReason.UNTRUSTED) > 0


def test_certificates_are_exchanged_under_reads_and_broken_ones_change_nothing(
    pki: Pki, checkpoint: Path, tmp_path: Path
) -> None:
    node_files, router_files = pki.ours.issue("live-node", uri("node")), pki.ours.issue("live-router", uri("router"))
    authority = tmp_path / "ca.pem"
    authority.write_bytes(pki.ours.file.read_bytes())
    more = {"peer_ca_file": str(authority)}
    with (
        redis_server() as bus,
        cluster(checkpoint, tmp_path, bus.url, nodes=0, routers=0, **node_files.settings(), **more) as running,
    ):
        router = running.start_router(**router_files.settings(), **more)
        router.tls = pki.ours.client()
        for node_id in ("n1", "n2"):
            running.start(node_id)
        running.wait_to_rest(copies=2, version=VERSION)
        services: list[ClusterNode | ClusterRouter] = [router, *running.nodes.values()]
        with reading(router) as reader:
            reader.wait_for_answers(20)
            for files, role in ((node_files, "node"), (router_files, "router")):
                replace(files, pki.ours.issue(f"renewed-{role}", uri(role), lasts=timedelta(days=20)))
            wait_until(lambda: all(tls_of(each).reloads["used"] for each in services), what="reloads", limit_s=LIMIT_S)
            reader.wait_for_answers(20)
            router_files.key.write_bytes(node_files.key.read_bytes())
            node_files.certificate.write_text("no certificate\n")
            wait_until(
                lambda: all(tls_of(each).reloads["refused"] for each in services), what="refusals", limit_s=LIMIT_S
            )
            reader.wait_for_answers(20)
        assert "the key is not that of the certificate" in router.access.causes()["tls"]
        assert "certificates are as they were" in str(router.get("/readyz").body["degraded"])
        assert 'understudy_tls_reloads_total{outcome="refused"} 1.0' in router.text("/metrics")
