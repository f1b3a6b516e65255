"""A service of every kind that asks for credentials: `understudy serve`, a node and a router of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import ClusterNode, ClusterRouter, cluster_node, cluster_router
from tests.support.cluster.served_node import Served, ServedNode, served_node
from tests.support.services.guarded import Keys
from tests.support.services.issuer import TokenIssuer, token_issuer
from tests.support.services.raw_http import RawClient
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.http.app import create_app as node_app
from understudy_router.http.app import create_app as router_app

WORD, ABSENT, VERSION = WORDS[0], "nobody", 2
LIMIT_S = 20.0
EXPORTER = "exporter"
"""A reader who may ask once in two seconds."""

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


@dataclass(frozen=True, slots=True)
class World:
    """Every kind of service, with the same credentials."""

    keys: Keys
    ports: Mapping[str, int]
    apps: Mapping[str, Any]
    documents: Mapping[str, Any]
    node: ClusterNode
    router: ClusterRouter
    issuer: TokenIssuer
    """It issues tokens that every service accepts."""
    secrets: Mapping[str, Path]
    """The secret files by service, node and router: two files that say the same."""

    def ask(self, service: str, method: str, target: str, key: str | None, *, more: str = "", body: str = "") -> Answer:
        """Send a request as it is, on a connection of its own."""
        shown = "" if key is None else f"authorization: Bearer {key}\r\n"
        sized = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if method == "POST" else ""
        with RawClient(self.ports[service]) as client:
            client.send(f"{method} {target} HTTP/1.1\r\nhost: x\r\n{shown}{sized}{more}\r\n{body}".encode())
            if method == "HEAD":
                return _head(client), {}, b""
            return client.reply()


def _head(client: RawClient) -> int:
    return int(client.socket.recv(65_536).split()[1])


@contextmanager
def guarded_world(folder: Path, server: RedisServer, **settings: Any) -> Iterator[World]:
    """Start them, with an empty Redis, and wait until each answers. `settings` are of all of them."""
    checkpoint = HandmadeCheckpoint(folder / "counts").create().add(*range(1, VERSION + 1))
    keys = Keys(folder / "credentials.toml")
    secrets = {name: folder / f"secret-{name}" for name in ("node", "router")}
    for path in secrets.values():
        path.write_text("s" * 32)
    keys.path.write_text(f"[limits]\nprincipals = {{{EXPORTER} = 0.5}}\n")
    keys.add(EXPORTER, "reader")
    keys.role("of-elsewhere", '{stores = ["elsewhere"], actions = ["point", "scan", "export", "watch"]}')
    keys.role("watcher", '{stores = ["op0"], actions = ["watch"]}')
    keys.role("of-one-word", f'{{stores = ["op0"], actions = ["point", "watch"], key_prefix = ["{WORD}"]}}')
    for role in ("reader", "monitor", "admin", "of-elsewhere", "watcher", "of-one-word"):
        keys.add(role, role)
    keys.add("chief", "reader", "admin")
    keys.add("expired", "reader", "admin", expires_at=datetime(2020, 1, 1, tzinfo=UTC))
    guarded: dict[str, dict[str, Any]] = {
        name: {"credentials_file": keys.path, "cluster_secret_file": path, **settings} for name, path in secrets.items()
    }
    server.flush()
    with (
        token_issuer(keys) as issuer,
        served_node(checkpoint.path, folder / "serve", credentials_file=keys.path, **settings) as serve,
        cluster_router(server.url, **guarded["router"]) as router,
        cluster_node(checkpoint.path, folder / "n1", server.url, node_id="n1", **guarded["node"]) as node,
    ):
        every: tuple[Served, ...] = (serve, router, node)
        for client in every:
            client.key = keys["monitor"]
            wait_until(partial(is_ready, client), what="a service is ready", limit_s=LIMIT_S)
        wait_until(lambda: shows(serve, keys) and shows(router, keys), what="answers", limit_s=LIMIT_S)
        yield World(
            keys,
            {"serve": serve.node.host.port, "node": node.port, "router": router.port},
            {
                "serve": node_app(serve.node),
                "node": node_app(node.node, node.member),
                "router": router_app(router.router),
            },
            {name: client.get("/openapi.json").body for name, client in named(serve, node, router).items()},
            node,
            router,
            issuer,
            secrets,
        )


def is_ready(client: Served) -> bool:
    return not client.not_ready()


def named(serve: ServedNode, node: ClusterNode, router: ClusterRouter) -> dict[str, Any]:
    return {"serve": serve, "node": node, "router": router}


def shows(client: Any, keys: Keys) -> bool:
    """Whether a reader is answered at the newest version."""
    client.key = keys["reader"]
    reply = client.get(f"/v1/stores/op0/keys/{WORD}")
    client.key = keys["monitor"]
    return bool(reply.status == 200 and reply.body["version"] == VERSION)
