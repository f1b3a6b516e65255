"""`understudy node CHECKPOINT --redis URL`: one node of a cluster.

The command line calls this by its entry point.

Everything that can be refused is refused before the port opens: settings, the checkpoint, the port, and a node id
that another process of the cluster uses. An unreachable bus is not refused: the node waits for it, and reports that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Callable

from understudy_node.checkpoint.arrival import is_awaited, wait_for_checkpoint, what_is_there
from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.cluster.claim import claim
from understudy_node.cluster.heartbeat import MemberId
from understudy_node.cluster.member import ClusterMember
from understudy_node.cluster.routes import cluster_routes
from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_node.cluster.waiting import serve_until_it_arrives
from understudy_node.http.app import create_app
from understudy_node.node import Node
from understudy_node.serve import open_node, serve_app
from understudy_node.settings import NodeSettings
from understudy_shared.auth.access import Access
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import masked_location
from understudy_shared.base.private_files import keep_files_private
from understudy_shared.base.words import HostInfo, Lineage
from understudy_shared.bus.base import BusError
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.bus.messages import Applied, Endpoint, Heartbeat
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.cluster.remembered import Remembered
from understudy_shared.cluster.seeds import parse_seeds
from understudy_shared.server.service import Departure
from understudy_shared.telemetry.span_export import require_exporter

log = logging.getLogger(__name__)

ALL_INTERFACES = frozenset({"0.0.0.0", "::"})  # noqa: S104  # compared with, not bound to


def main(settings: dict[str, object], started: Callable[[Node], None] | None = None) -> None:
    """Serve as one node of a cluster, until interrupted.

    Raises UnderstudyError for what the caller can fix: settings, checkpoint, port, node id.
    """
    parsed = ClusterNodeSettings(**settings)  # type: ignore[arg-type]  # pydantic validates
    require_address(parsed)
    parse_seeds(parsed.seed)
    require_exporter()
    _serve(parsed, started)


def require_address(settings: ClusterNodeSettings) -> None:
    """Refuse an advertised host that is every interface. Raises SettingsError."""
    if settings.advertised_host in ALL_INTERFACES:
        raise SettingsError(
            f"{settings.advertised_host} is every interface, not an address that routers can connect to",
            where="advertise_host",
            fix="Say with --advertise-host by which name or address this node is reached",
        )


def access_to(settings: ClusterNodeSettings) -> Access:
    """Return the access control of this node. Raises SettingsError if routers could not authenticate."""
    require_peers(settings)
    return settings.access(settings.application, settings.host, is_node=True)


def require_peers(settings: ClusterNodeSettings) -> None:
    """Raise SettingsError if routers could not authenticate: a node that refuses its routers looks failed."""
    has_peers = settings.cluster_secret_file is not None or settings.peer_ca_file is not None
    if settings.credentials_file is not None and not has_peers:
        raise SettingsError(
            "there are credentials for readers, but routers have no credentials",
            where="cluster_secret_file",
            fix="Give all nodes and routers of the application the same --cluster-secret-file, or certificates",
        )
    if settings.tls_cert_file is not None and settings.peer_ca_file is None:
        raise SettingsError(
            "this port speaks TLS, but no authority signs for routers: they could not ask this node",
            where="peer_ca_file",
            fix="Give --peer-ca-file to the nodes and routers of the application, and each of them a certificate",
        )


def _serve(parsed: ClusterNodeSettings, started: Callable[[Node], None] | None) -> None:
    keep_files_private()
    access = access_to(parsed)

    def wait(files: CheckpointFiles, settings: NodeSettings, host: HostInfo, listener: socket.socket) -> None:
        _wait_in_the_open(parsed, files, host, listener)

    node, listener = open_node(
        parsed, advertised_host=parsed.advertised_host, advertised_port=parsed.advertise_port, wait=wait
    )
    try:
        node.assign({})
        member_id = new_member_id(parsed, node.host)
        auth = parsed.message_auth(parsed.application, sender=member_id.node_id)
        asyncio.run(_claim(parsed, node, member_id, auth=auth))
        bus = RedisBus(parsed.redis_url)
    except BaseException:
        listener.close()
        raise
    remembered = Remembered(node.settings.data_directory / "cluster", parsed.application, auth)
    member = ClusterMember(
        node,
        Gossip(bus, parsed.application, auth),
        parsed,
        member_id,
        clock=SystemClock(),
        remembered=remembered,
        identity=access.identity,
    )
    if started is not None:
        started(node)
    guard = parsed.connection_guard()
    app = create_app(node, member, cluster_routes(member), guard=guard, access=access)
    serve_app(app, listener, Departure(member.leave, parsed.shutdown_delay_ms), guard=guard)


def _wait_in_the_open(
    settings: ClusterNodeSettings, files: CheckpointFiles, host: HostInfo, listener: socket.socket
) -> None:
    """Wait for the checkpoint with the port open; heartbeats report to the cluster what this node waits for."""
    if settings.checkpoint_wait_ms == 0 or not is_awaited(files):
        return wait_for_checkpoint(files, SystemClock(), limit_ms=settings.checkpoint_wait_ms, sleep=time.sleep)
    member_id = new_member_id(settings, host)
    waits_for = f"a checkpoint at {masked_location(files.url)}: {what_is_there(files)}"
    return serve_until_it_arrives(
        files,
        listener,
        limit_ms=settings.checkpoint_wait_ms,
        say=lambda number: first_heartbeat(settings, host, member_id, sequence=number, waits_for=waits_for),
        open_bus=lambda: RedisBus(settings.redis_url),
        gossip=lambda bus: Gossip(
            bus, settings.application, settings.message_auth(settings.application, sender=member_id.node_id)
        ),
        access=access_to(settings),
        guard=settings.connection_guard(),
    )


def new_member_id(settings: ClusterNodeSettings, host: HostInfo) -> MemberId:
    return MemberId(settings.node_id or f"{host.host}-{host.port}", uuid.uuid4().hex)


def first_heartbeat(
    settings: ClusterNodeSettings,
    host: HostInfo,
    member_id: MemberId,
    *,
    sequence: int = 0,
    lineage: Lineage | None = None,
    waits_for: str | None = None,
) -> Heartbeat:
    """Return the heartbeat of a node that holds nothing yet."""
    return Heartbeat(
        application_id=settings.application,
        node_id=member_id.node_id,
        incarnation=member_id.incarnation,
        sequence=sequence,
        endpoint=Endpoint(host=host.host, port=host.port),
        zone=settings.zone or None,
        state="starting",
        heartbeat_ms=settings.lag_refresh_ms,
        lineage=lineage,
        end_version=0,
        end_age_ms=None,
        applied=Applied(version=None, state="CREATED"),
        term=0,
        epoch=0,
        checkpoint=masked_location(settings.checkpoint),
        waits_for=waits_for,
    )


async def _claim(settings: ClusterNodeSettings, node: Node, member_id: MemberId, *, auth: MessageAuth) -> None:
    """Claim the node id before anything is served. While the bus is away the claim is skipped."""
    first = first_heartbeat(settings, node.host, member_id, lineage=node.lineage)
    bus = RedisBus(settings.redis_url)
    try:
        await claim(Gossip(bus, settings.application, auth), first)
    except BusError as error:
        log.warning("%s; waiting for it", error, extra={"action": "bus-lost"})
    finally:
        await bus.close()
