"""Ways in which a real server answers and refuses writes, and what undoes each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.bus.redis_server import RedisServer


@dataclass(frozen=True, slots=True)
class Refusing:
    """`refuse` makes a server refuse writes until `allow`."""

    refuse: Callable[[RedisServer], None]
    allow: Callable[[RedisServer], None]


def _commands(*lines: str) -> Callable[[RedisServer], None]:
    def run(redis: RedisServer) -> None:
        for line in lines:
            redis.command(*(word.strip("'") for word in line.split()))

    return run


def _fail_to_save(redis: RedisServer) -> None:
    """Its file cannot be replaced: a folder has the name."""
    (redis.folder / "dump.rdb").mkdir()
    redis.command("CONFIG", "SET", "save", "3600 1")
    redis.command("BGSAVE")
    while b"rdb_last_bgsave_status:err" not in redis.info("persistence"):
        pass


def _save_again(redis: RedisServer) -> None:
    (redis.folder / "dump.rdb").rmdir()
    redis.command("CONFIG", "SET", "save", "")


WAYS = {
    "no-scripts-no-publish": Refusing(
        _commands("ACL SETUSER default -@scripting -publish -set"), _commands("ACL SETUSER default +@all")
    ),
    "memory": Refusing(
        _commands("CONFIG SET maxmemory-policy noeviction", "CONFIG SET maxmemory 1"),
        _commands("CONFIG SET maxmemory 0"),
    ),
    "read-only-replica": Refusing(_commands("REPLICAOF 127.0.0.1 1"), _commands("REPLICAOF NO ONE")),
    "no-replicas": Refusing(
        _commands("CONFIG SET min-replicas-to-write 1"), _commands("CONFIG SET min-replicas-to-write 0")
    ),
    "failed-save": Refusing(_fail_to_save, _save_again),
    "no-scripts": Refusing(_commands("ACL SETUSER default -@scripting"), _commands("ACL SETUSER default +@all")),
}
"""The first forbids even PUBLISH: no message passes. With the others messages still pass."""
