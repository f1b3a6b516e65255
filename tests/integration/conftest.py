"""What several files of this folder share because it is dear to start, or because they mean the same."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import TASKS, VERSION
from tests.support.kafka.broker import KafkaBroker, kafka_broker
from tests.support.object_store.faulty_proxy import FaultyProxy, faulty_proxy

if TYPE_CHECKING:
    from tests.support.object_store.bucket import StoreServer
    from tests.support.object_store.hdfs_server import Door, HdfsServer
    from tests.support.object_store.s3_server import S3Server


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


def store_server(name: str) -> Any:
    """Make a fixture: the server that a module of `object_store` starts, for the whole run."""

    @pytest.fixture(scope="session")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
        module = import_module(f"tests.support.object_store.{name}")  # its library is an extra
        with getattr(module, name)(tmp_path_factory.mktemp(name)) as started:
            yield started

    return server


s3 = store_server("s3_server")
azure = store_server("azurite")
gcs = store_server("gcs_server")
minio = store_server("minio_server")
hdfs_server = store_server("hdfs_server")
"""A test that kills or freezes a process of HDFS sets it going again."""


@pytest.fixture(scope="session")
def hdfs(hdfs_server: HdfsServer) -> Door:
    """HDFS by Hadoop's own protocol."""
    from tests.support.object_store.hdfs_server import Door

    return Door(hdfs_server)


@pytest.fixture(scope="session", params=["s3", "azure", "gcs", pytest.param("minio", marks=pytest.mark.full)])
def store(request: pytest.FixtureRequest) -> StoreServer:
    """Each kind of object store in turn."""
    found: StoreServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def store_proxy(store: StoreServer) -> Iterator[FaultyProxy]:
    """What stands between a node and that object store: it counts, and fails on demand."""
    with faulty_proxy(store.port, depth=store.depth) as found:
        yield found


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    """What stands between a node and the S3 server: it counts, and fails on demand."""
    with faulty_proxy(s3.port) as found:
        yield found
