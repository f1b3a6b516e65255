"""Real sentinels, and a primary with a replica under three of them: a test kills or freezes it and sees the failover.

They take a server for down after a second, and agree by two of three.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.spark.queries import wait_until

from understudy.demo.local_redis import find_server
from understudy_shared.base.processes import tied_command
from understudy_shared.base.sockets import free_port

SERVICE = "us"
COUNT, QUORUM = 3, 2
LIMIT_S = 30.0
"""A failover takes about three seconds; a loaded machine gets its time."""

_CONFIG = f"""
port {{port}}
bind 127.0.0.1
dir {{folder}}
sentinel monitor {SERVICE} 127.0.0.1 {{primary}} {QUORUM}
sentinel down-after-milliseconds {SERVICE} 1000
sentinel failover-timeout {SERVICE} 4000
"""


class SentinelProcess:
    """One sentinel. It keeps its notes in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.known_as = f"127.0.0.1 {self.port} {secrets.token_hex(20)}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, primary: RedisServer, *, notes: list[str]) -> None:
        """Start it with what it would find out by itself in some seconds: `notes` are lines of its configuration."""
        config = self._folder / "sentinel.conf"
        lines = [f"sentinel myid {self.known_as.split()[-1]}", *notes]
        text = _CONFIG.format(port=self.port, folder=self._folder, primary=primary.port)
        config.write_text(text + "\n".join(lines) + "\n")
        server = [str(find_server()), str(config), "--sentinel"]
        with (self._folder / "output.txt").open("wb") as output:
            self._process = subprocess.Popen(
                tied_command(*server),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def pause(self) -> None:
        """Freeze it: connections stay and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(LIMIT_S)

    def sees(self) -> dict[str, Any]:
        """What it knows of the primary; nothing while it does not answer."""
        try:
            with redis.Redis(port=self.port, socket_timeout=5) as client:
                known: dict[str, Any] = client.sentinel_master(SERVICE)
                return known
        except redis.RedisError:
            return {}

    def name(self, primary: RedisServer) -> None:
        """Name another primary from now on, as after a failover that the old one knows nothing of."""
        self.command("SENTINEL", "REMOVE", SERVICE)
        self.command("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", str(primary.port), str(QUORUM))

    def command(self, *words: str) -> object:
        with redis.Redis(port=self.port, socket_timeout=5) as client:
            return client.execute_command(*words)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was not started"
        self._process.send_signal(number)


class SentinelTrio:
    """Two servers, and the sentinels that say which of them is the primary."""

    def __init__(self, servers: list[RedisServer], sentinels: list[SentinelProcess]) -> None:
        self.servers = servers
        self.sentinels = sentinels
        self.url = sentinel_url(sentinels)

    @property
    def primary(self) -> RedisServer:
        """The primary that most sentinels name."""
        ports = [sentinel.sees().get("port") for sentinel in self.sentinels]
        return next(server for server in self.servers if ports.count(server.port) >= QUORUM)

    def other(self, server: RedisServer) -> RedisServer:
        """The one that is not this one."""
        return next(other for other in self.servers if other is not server)

    def unlink_replica(self) -> RedisServer:
        """Cut the replica off and return it: it misses what is written from now on."""
        primary = self.primary
        replica = self.other(primary)
        replica.command("CONFIG", "SET", "masterauth", "wrong")
        primary.command("CLIENT", "KILL", "TYPE", "replica")
        wait_until(lambda: not _follows(replica), what="a replica out of step", limit_s=LIMIT_S)
        return replica

    def wait_for_new_primary(self, old: RedisServer) -> RedisServer:
        """Return when every sentinel names the other server, and that says so itself."""
        new = self.other(old)
        wait_until(
            lambda: all(sentinel.sees().get("port") == new.port for sentinel in self.sentinels) and _leads(new),
            what="a new primary",
            limit_s=LIMIT_S,
        )
        return new


def sentinel_url(sentinels: list[SentinelProcess]) -> str:
    """The URL with which a bus finds the sentinels."""
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    return f"redis+sentinel://{hosts}/{SERVICE}/0"


@contextmanager
def sentinels_of(
    primary: RedisServer, *, count: int = 1, replicas: Sequence[RedisServer] = ()
) -> Iterator[list[SentinelProcess]]:
    """Sentinels that name this server and know each other, until the end of the block."""
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(TemporaryDirectory(prefix="sentinel-"))) for _ in range(count)]
        sentinels = [SentinelProcess(folder) for folder in folders]
        of_replicas = [f"sentinel known-replica {SERVICE} 127.0.0.1 {replica.port}" for replica in replicas]
        for sentinel in sentinels:
            others = [f"sentinel known-sentinel {SERVICE} {each.known_as}" for each in sentinels if each != sentinel]
            sentinel.start(primary, notes=of_replicas + others)
            stack.callback(sentinel.kill)
        wait_until(
            lambda: all(_knows(each, count - 1, len(replicas)) for each in sentinels),
            what="sentinels in accord",
            limit_s=LIMIT_S,
        )
        yield sentinels


@contextmanager
def sentinel_trio() -> Iterator[SentinelTrio]:
    """All of them in accord, until the end of the block."""
    with redis_server(port=0) as primary, redis_server(port=0) as replica:
        for server in (primary, replica):
            server.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
        wait_until(partial(_follows, replica), what="a replica in step", limit_s=LIMIT_S)
        with sentinels_of(primary, count=COUNT, replicas=[replica]) as sentinels:
            yield SentinelTrio([primary, replica], sentinels)


def _knows(sentinel: SentinelProcess, others: int, replicas: int) -> bool:
    known = sentinel.sees()
    return (known.get("num-other-sentinels"), known.get("num-slaves")) == (others, replicas)


def _leads(server: RedisServer) -> bool:
    return _replication(server).get("role") == "master"


def _follows(server: RedisServer) -> bool:
    info = _replication(server)
    return (info.get("role"), info.get("master_link_status")) == ("slave", "up")


def _replication(server: RedisServer) -> dict[str, Any]:
    """What it says of its part; nothing when it ends connections, as it does when its part changes."""
    try:
        info: Any = server.command("INFO", "replication")
    except redis.ConnectionError:
        return {}
    return dict(info)
