"""A Kafka cluster of a controller and two brokers: a topic of replication 2 outlives either broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.support.kafka.broker import KafkaBroker, Place, jars, random_id
from tests.support.spark.queries import wait_until

from understudy_shared.base.sockets import free_port

BROKERS = (2, 3)
_COPIES_LIMIT_S, _ASK_LIMIT_S = 90, 30


class KafkaCluster:
    """Two brokers that a test kills and starts again, one at a time."""

    def __init__(self, folder: Path, class_path: Path) -> None:
        port, cluster_id = free_port(), random_id()
        self.controller = KafkaBroker(_made(folder / "1"), class_path, Place(port, cluster_id, 1, "controller"))
        self.brokers = [
            KafkaBroker(_made(folder / str(node)), class_path, Place(port, cluster_id, node, "broker"))
            for node in BROKERS
        ]
        self.servers = ",".join(broker.servers for broker in self.brokers)

    def make_topic(self, partitions: int) -> str:
        """Make a topic of which each broker has a copy; its name."""
        return self.brokers[0].make_topic(partitions, replication=len(BROKERS))

    def wait_for_copies(self) -> None:
        with self.brokers[0].admin() as admin:
            wait_until(lambda: _are_whole(admin), what="every copy of every partition", limit_s=_COPIES_LIMIT_S)


@contextmanager
def kafka_cluster(folder: Path) -> Iterator[KafkaCluster]:
    """A cluster until the end of the block; skips the test where there is no Maven."""
    found = jars()
    if isinstance(found, str):
        pytest.skip(found)
    cluster = KafkaCluster(folder, found)
    with ExitStack() as stack:
        for node in (cluster.controller, *cluster.brokers):
            stack.callback(node.kill)
            node.launch()
        for broker in cluster.brokers:
            broker.wait_until_it_answers(brokers=len(BROKERS))
        yield cluster


def _are_whole(admin: AdminClient) -> bool:
    topics = admin.list_topics(timeout=_ASK_LIMIT_S).topics.values()
    partitions = [partition for topic in topics for partition in topic.partitions.values()]
    return all(len(partition.isrs) == len(partition.replicas) for partition in partitions)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
