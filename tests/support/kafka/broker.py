"""A real Kafka broker that a test stops, kills and freezes: it comes back at the same address.

Its jars come through Maven, once, into the checkout's `.cache`. Where there is no Maven, or it reaches nothing, tests
that ask for a broker are skipped. It checks retention and compacts several times a second.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from tests.support.kafka.maven import fetched_jars
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs.records import TopicPartition
from understudy_shared.base.processes import tied_command
from understudy_shared.base.sockets import free_port

POM = Path(__file__).parent / "jars" / "pom.xml"

_START_LIMIT_S = 90
_ADMIN_LIMIT_S = 90
"""A broker that was frozen is fenced for a while when it goes on."""
_JAVA_OPTIONS = ("-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_PROPERTIES = """
process.roles={roles}
node.id={node_id}
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners={listeners}
controller.listener.names=CONTROLLER
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.dirs={folder}/data
num.partitions=1
auto.create.topics.enable=true
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
log.initial.task.delay.ms=100
log.retention.check.interval.ms=200
log.cleaner.backoff.ms=100
log.cleaner.dedupe.buffer.size=2097152
file.delete.delay.ms=100
"""


def jars() -> Path | str:
    """Their folder, or why there is none."""
    return fetched_jars(POM, "kafka-broker-jars")


@dataclass(frozen=True, slots=True)
class Place:
    """A node's place in a Kafka cluster, whose controller is node 1."""

    controller_port: int
    cluster_id: str
    node_id: int = 1
    roles: str = "broker,controller"


class KafkaBroker:
    """One node that is broker and controller, on two ports of loopback; or a part of a cluster, by its `place`."""

    def __init__(self, folder: Path, class_path: Path, place: Place | None = None) -> None:
        self._folder = folder
        self._java = ["java", *_JAVA_OPTIONS, "-cp", f"{class_path}/*"]
        self._place = place or Place(free_port(), random_id())
        self._process: subprocess.Popen[bytes] | None = None
        self.servers = f"127.0.0.1:{free_port()}"
        listeners = {"broker": f"PLAINTEXT://{self.servers}"}
        listeners["controller"] = f"CONTROLLER://127.0.0.1:{self._place.controller_port}"
        self._settings = folder / "server.properties"
        self._settings.write_text(
            _PROPERTIES.format(
                roles=self._place.roles,
                node_id=self._place.node_id,
                controller_port=self._place.controller_port,
                listeners=",".join(listeners[role] for role in self._place.roles.split(",")),
                folder=folder,
            )
        )
        self._format()

    def start(self) -> None:
        """Start it and wait until it answers. It ends with this process, at the latest."""
        self.launch()
        self.wait_until_it_answers()

    def wait_until_it_answers(self, *, brokers: int = 1) -> None:
        """Return when it knows so many brokers of its cluster."""
        with self.admin() as admin:
            wait_until(lambda: self._answers(admin, brokers), what="the broker's answer", limit_s=_START_LIMIT_S)

    def launch(self) -> None:
        """Start it, and wait for nothing."""
        java = shutil.which(self._java[0])
        assert java is not None, "Maven without a Java"
        with (self._folder / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                tied_command(java, *self._java[1:], "kafka.Kafka", str(self._settings)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the broker at once, as a power cut would (what it wrote is in the page cache, and stays)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def pause(self) -> None:
        """Freeze it: connections stay and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    @contextmanager
    def admin(self) -> Iterator[AdminClient]:
        settings: dict[str, Any] = {"bootstrap.servers": self.servers, "logger": _Silence()}
        yield AdminClient(settings)

    def make_topic(
        self,
        partitions: int = 1,
        *,
        name: str | None = None,
        config: Mapping[str, str] | None = None,
        replication: int = 1,
    ) -> str:
        """A new topic's name. Records are kept at any age, unless `config` says otherwise."""
        name = name or f"t{uuid.uuid4().hex[:12]}"
        kept = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**62), **(config or {})}
        with self.admin() as admin:
            admin.create_topics([NewTopic(name, partitions, replication, config=kept)])[name].result(_ADMIN_LIMIT_S)
            wait_until(lambda: _partitions(admin, name) == partitions, what=f"topic {name}")
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until no client sees it any more."""
        with self.admin() as admin:
            admin.delete_topics([name])[name].result(_ADMIN_LIMIT_S)
            wait_until(lambda: _partitions(admin, name) == 0, what=f"the end of topic {name}")

    def grow_topic(self, name: str, partitions: int) -> None:
        with self.admin() as admin:
            admin.create_partitions([NewPartitions(name, partitions)])[name].result(_ADMIN_LIMIT_S)
            wait_until(lambda: _partitions(admin, name) == partitions, what=f"partitions of {name}")

    def delete_records(self, where: TopicPartition, before: int) -> None:
        """Remove the records before an offset, as retention does."""
        with self.admin() as admin:
            for done in admin.delete_records([KafkaPartition(where.topic, where.partition, before)]).values():
                done.result(_ADMIN_LIMIT_S)

    def _answers(self, admin: AdminClient, brokers: int) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "output.txt").read_text()[-2000:]
        try:
            return len(admin.list_topics(timeout=1).brokers) >= brokers
        except KafkaException:
            return False

    def _format(self) -> None:
        """What `StorageTool format` writes for a controller that is named in the settings, without its second."""
        data = self._folder / "data"
        data.mkdir()
        ids = {"cluster.id": self._place.cluster_id, "directory.id": random_id(), "version": "1"}
        ids["node.id"] = str(self._place.node_id)
        (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in ids.items()))

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


def random_id() -> str:
    """A random id in the text form of Kafka's `Uuid`."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _partitions(admin: AdminClient, topic: str) -> int:
    """0 when there is no such topic. All are asked about: asking about one could make it."""
    found = admin.list_topics(timeout=_ADMIN_LIMIT_S).topics.get(topic)
    return len(found.partitions) if found is not None else 0


class _Silence:
    """A logger for clients whose broker is not there yet: it drops what they log."""

    def log(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def kafka_broker(folder: Path) -> Iterator[KafkaBroker]:
    """A broker until the end of the block; skips the test where there is no Maven. `folder` is its own."""
    found = jars()
    if isinstance(found, str):
        pytest.skip(found)
    broker = KafkaBroker(folder, found)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
