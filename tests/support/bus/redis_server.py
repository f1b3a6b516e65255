"""A real server that a test stops, kills, freezes and empties: it comes back at the same address."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from understudy.demo.local_redis import LocalRedis
from understudy_shared.base.sockets import private_socket_dir


class RedisServer(LocalRedis):
    """A server, and a client of it for what the bus does not do."""

    @property
    def folder(self) -> Path:
        """The folder in which the server would save."""
        return self._folder

    def info(self, section: str) -> bytes:
        """The reply to `INFO`, as text."""
        with redis.Redis.from_url(self.url, socket_timeout=10) as client:
            client.response_callbacks.clear()
            info = client.execute_command("INFO", section)
        assert isinstance(info, bytes)
        return info

    def pause(self) -> None:
        """Freeze it: connections stay and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def flush(self) -> None:
        self.command("FLUSHALL")

    def command(self, *words: bytes | str | int) -> object:
        """Run any command, as another client of the same server would."""
        with redis.Redis.from_url(self.url, socket_timeout=10) as client:
            return client.execute_command(*words)


@contextmanager
def redis_server(*, port: int | None = None, running: bool = True) -> Iterator[RedisServer]:
    """A server until the end of the block."""
    with private_socket_dir("redis.sock") as folder:
        server = RedisServer(folder, port=port)
        if running:
            server.start()
        try:
            yield server
        finally:
            server.kill()
