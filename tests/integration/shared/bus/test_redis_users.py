"""The ACL users that are shipped: each role does its whole part, and nothing beyond it is let through."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from tests.support.bus.acl_users import ROLES, give_users, new_passwords, rules_of, users_text
from tests.support.bus.documents import APPLICATION as FLIGHTS
from tests.support.bus.documents import eventually, heartbeat, listening
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, LIMIT_S, VERSION, cluster, cluster_router
from tests.support.cluster.watch import reading
from tests.support.spark.queries import wait_until

from understudy.demo.local_redis import find_server
from understudy_shared.base.processes import tied_command
from understudy_shared.bus.base import Back, BusRefusedError
from understudy_shared.bus.gossip import Gossip, sealed
from understudy_shared.bus.messages import AnnouncedStore, Announcement
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.bus.redis_sync import SyncPublisher

ROOT = "us:{flights}:"
EVERYBODY = {"auth", "hello", "quit", "reset"}
"""Commands before the login: no rule forbids them."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def urls(server: RedisServer) -> dict[str, str]:
    """The URL of each role, at an empty server."""
    server.flush()
    return give_users(server, FLIGHTS)


@asynccontextmanager
async def gossip_of(url: str) -> AsyncIterator[Gossip]:
    bus = RedisBus(url, call_timeout_ms=10_000)
    try:
        yield Gossip(bus, FLIGHTS)
    finally:
        await bus.close()


def said(server: RedisServer, *words: object) -> Any:
    """The reply to a command as it came."""
    with redis_py.Redis.from_url(server.url, socket_timeout=10) as client:
        client.response_callbacks.clear()
        return client.execute_command(*words)


def test_a_server_takes_the_file_and_shuts_everybody_else_out(tmp_path: Path) -> None:
    passwords = new_passwords()
    (tmp_path / "users.acl").write_text(users_text(FLIGHTS, passwords))
    socket = tmp_path / "redis.sock"
    words = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--aclfile", str(tmp_path / "users.acl")]
    process = subprocess.Popen(
        tied_command(str(find_server()), *words),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: socket.exists() or process.poll() is not None, what="the server", limit_s=LIMIT_S)
        assert process.poll() is None, "it refused the file"
        for role, password in passwords.items():
            with (
                redis_py.Redis(unix_socket_path=str(socket), username=f"{FLIGHTS}-{role}", password=password) as client,
                pytest.raises(NoPermissionError),
            ):
                client.flushall()
        with redis_py.Redis(unix_socket_path=str(socket)) as nobody, pytest.raises(AuthenticationError):
            nobody.get("x")
    finally:
        process.kill()
        process.wait(LIMIT_S)


def test_a_whole_cluster_does_its_work_with_these_users_and_no_right_is_missed(
    server: RedisServer, checkpoint: HandmadeCheckpoint, tmp_path: Path
) -> None:
    server.flush()
    urls = give_users(server, APPLICATION)
    publisher = SyncPublisher(urls["pipeline"], APPLICATION)
    with (
        cluster(checkpoint.path, tmp_path, urls["node"], nodes=2, routers=0) as known,
        cluster_router(urls["router"]) as router,
    ):
        known.routers.append(router)
        known.wait_to_rest(copies=2, version=VERSION)
        with reading(router):
            before = router.order()
            known.stop("n2")  # a farewell, and the next assignment
            wait_until(lambda: router.order() > before, what="the next assignment", limit_s=LIMIT_S)
            known.start("n2")
            known.wait_to_rest(copies=2, version=VERSION)
        lineage = next(iter(known.nodes.values())).node.lineage
        store = AnnouncedStore(operator_id=0, key=["announced"])
        publisher.announce(Announcement(application_id=APPLICATION, query_id=str(lineage), stores=[store]))
        publisher.hint(VERSION)

        def is_named() -> bool:
            return router.router.stores().get("op0").codec.names == ("announced",)

        wait_until(is_named, what="the announced name", limit_s=LIMIT_S)
        assert publisher.failures == 0
        known.routers.clear()
    publisher.close()
    assert said(server, "ACL", "LOG") == [], "a right is missing"


@pytest.mark.parametrize("role", ROLES)
def test_every_command_beyond_a_role_is_refused(role: str, server: RedisServer, urls: dict[str, str]) -> None:
    granted = {rule[1:] for rule in rules_of(FLIGHTS, role) if rule.startswith("+")}
    all_names = [name.decode() for name in said(server, "COMMAND", "LIST")]
    containers = {name.partition("|")[0] for name in all_names if "|" in name}
    names = [name for name in all_names if name not in containers]
    assert granted < set(names)
    assert len(names) > 200
    arities = {name: info[1] for name, info in zip(names, said(server, "COMMAND", "INFO", *names), strict=True) if info}
    let_through = set()
    for name in names:
        count = abs(arities.get(name, 1)) - 1 - name.count("|")
        words = [*name.split("|"), *["1"] * max(0, count)]
        reply = said(server, "ACL", "DRYRUN", f"{FLIGHTS}-{role}", *words)
        if b"no permissions to run" not in reply:
            let_through.add(name)
    assert let_through - EVERYBODY == granted


BEYOND: dict[str, list[tuple[str, ...]]] = {
    "node": [
        ("SET", f"{ROOT}announcement", "x"),
        ("SET", "us:{trains}:node:n1", "x"),
        ("GET", "another's key"),
        ("DEL", "us:{trains}:lease"),
        ("PUBLISH", "us:{trains}:events", "x"),
        ("SUBSCRIBE", "us:{trains}:events"),
        ("EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", "us:{trains}:lease"),
        ("EVAL", "return redis.call('SET', 'us:{trains}:lease', 'x')", "0"),
        ("EVAL", "return redis.call('FLUSHALL')", "0"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("KEYS", "*"),
    ],
    "router": [
        ("SET", f"{ROOT}node:n1", "x"),
        ("DEL", f"{ROOT}assignment"),
        ("GETRANGE", f"{ROOT}lease", "0", "1"),
        ("GETRANGE", f"{ROOT}announcement", "0", "1"),
        ("GETRANGE", "us:{trains}:assignment", "0", "1"),
        ("EVAL", "return 1", "0"),
        ("PUBLISH", f"{ROOT}events", "x"),
        ("SUBSCRIBE", "us:{trains}:events"),
    ],
    "pipeline": [
        ("GET", f"{ROOT}announcement"),
        ("SET", f"{ROOT}announcement", "x", "GET"),
        ("SET", f"{ROOT}assignment", "x"),
        ("SET", f"{ROOT}node:n1", "x"),
        ("SET", "us:{trains}:announcement", "x"),
        ("PUBLISH", "us:{trains}:events", "x"),
        ("SUBSCRIBE", f"{ROOT}events"),
        ("SCAN", "0"),
    ],
}
BESIDE: dict[str, list[tuple[str, ...]]] = {
    "node": [("SET", f"{ROOT}{name}", "x") for name in ("node:n1", "assignment", "lease", "term", "catalogue:d")]
    + [("GETRANGE", f"{ROOT}announcement", "0", "1"), ("PUBLISH", f"{ROOT}events", "x"), ("SCAN", "0")],
    "router": [("GETRANGE", f"{ROOT}{name}", "0", "1") for name in ("node:n1", "assignment", "catalogue:d")]
    + [("STRLEN", f"{ROOT}node:n1"), ("PTTL", f"{ROOT}node:n1"), ("SUBSCRIBE", f"{ROOT}events"), ("SCAN", "0")],
    "pipeline": [("SET", f"{ROOT}announcement", "x"), ("PUBLISH", f"{ROOT}events", "x")],
}
"""What a role's own part looks like, so that no refusal is one of everything."""


@pytest.mark.parametrize("role", ROLES)
def test_keys_and_channels_beyond_a_role_are_refused_and_its_own_are_not(role: str, urls: dict[str, str]) -> None:
    with redis_py.Redis.from_url(urls[role], socket_timeout=10) as client:
        for words in BEYOND[role]:
            with pytest.raises(RedisError, match=r"(?i)permission|can't"):
                client.execute_command(*words)
        for words in BESIDE[role]:
            if words[0] != "SUBSCRIBE":
                client.execute_command(*words)


RIGHTS = {
    "scripts": (["-eval"], "+eval"),
    "publishing": (["-publish"], "+publish"),
    "its keys": (["resetkeys", f"~{ROOT}lease"], f"~{ROOT}node:*"),
    "its channel": (["resetchannels"], f"&{ROOT}events &{ROOT}heartbeats"),
}


@pytest.mark.parametrize(("taken", "named"), RIGHTS.values(), ids=RIGHTS)
async def test_a_right_that_is_missing_is_named_with_the_rule_that_gives_it(
    taken: list[str], named: str, server: RedisServer, urls: dict[str, str]
) -> None:
    server.command("ACL", "SETUSER", f"{FLIGHTS}-node", *taken)
    async with gossip_of(urls["node"]) as gossip:
        with pytest.raises(BusRefusedError, match="Redis refused writing") as caught:
            await gossip.beat(heartbeat())
    assert f"Give this user {named};" in caught.value.fix
    assert "deploy/redis/users.acl" in caught.value.fix


async def test_a_channel_that_is_refused_is_named_and_asked_for_again_while_others_are_heard(
    server: RedisServer, urls: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def is_said() -> bool:
        return "Give this user &us:{trains}:events &us:{trains}:heartbeats;" in caplog.text

    async with gossip_of(urls["router"]) as gossip, listening(gossip.listen()) as ear:
        bus = gossip._bus
        async with listening(bus.listen("us:{trains}:events"), stands=False) as refused:
            back = asyncio.ensure_future(refused.next())
            await eventually(is_said, what="the missing rule in the log")
            server.command("PUBLISH", f"{ROOT}events", sealed(gossip.auth, heartbeat()))
            assert await ear.next() == heartbeat()
            server.command("ACL", "SETUSER", f"{FLIGHTS}-router", "&us:{trains}:events")
            assert isinstance(await back, Back)
