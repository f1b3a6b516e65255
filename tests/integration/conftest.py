"""What several files of this folder share because it is dear to start, or because they mean the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import TASKS, VERSION
from tests.support.kafka.broker import KafkaBroker, kafka_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real Kafka broker. A test that kills or freezes it sets it going again."""
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@pytest.fixture(scope="module")
def module_redis() -> Iterator[RedisServer]:
    """A real Redis for all tests of a file."""
    with redis_server() as server:
        yield server


@pytest.fixture
def redis(module_redis: RedisServer) -> RedisServer:
    """A real Redis, empty before each test."""
    module_redis.flush()
    return module_redis


@pytest.fixture
def checkpoint(tmp_path: Path) -> HandmadeCheckpoint:
    """The checkpoint that most cluster tests follow: `TASKS` partitions, `VERSION` versions."""
    return HandmadeCheckpoint(tmp_path / "checkpoint", partitions=TASKS).create().add(*range(1, VERSION + 1))
