"""Kafka Streams as a peer: two instances of an application with an interactive query behind Vert.x.

Their table has the keys and values of `big_checkpoint`, in as many partitions; each instance is active for half of
them and has a standby of the rest. A key of the other instance is forwarded, with `java.net.http` as Kafka's own
examples do, or with Vert.x's client. Maven builds it from benchmarks/kafka_streams/ into `.cache`, once.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
from confluent_kafka import Producer
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.broker import jars as broker_jars

from benchmarks.big_checkpoint import PARTITIONS, BigCheckpoint
from benchmarks.servers import Server, fetch
from understudy_shared.base.processes import tied_command
from understudy_shared.base.sockets import free_port

PROJECT = Path(__file__).parent / "kafka_streams"
BUILT = Path(__file__).resolve().parents[1] / ".cache" / "kafka-streams-peer"
JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC")
"""The collector for one core."""

_BUILD_LIMIT_S = 300
_START_LIMIT_S = 120.0
_VALUE = struct.Struct(">qqdqqq")


@dataclass(frozen=True, slots=True)
class Peers:
    """The instance that is asked, the one behind it, and keys that each is active for."""

    asked: Server
    behind: Server
    local_keys: Sequence[str]
    remote_keys: Sequence[str]


def built() -> Path | str:
    """Return the folder of jars and classes, or what is missing for it."""
    if (BUILT / "classes").exists():
        return BUILT
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        return "no Maven" if maven is None else "no Java"
    building = BUILT.with_name(f"{BUILT.name}.building")
    with suppress(FileNotFoundError):
        shutil.rmtree(building)
    goals = ["compile", "dependency:copy-dependencies", f"-Dbuild.folder={building}", f"-DoutputDirectory={building}"]
    try:
        command = [maven, "-q", "-B", "-f", str(PROJECT / "pom.xml"), *goals]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no Kafka Streams: Maven took longer than {_BUILD_LIMIT_S} s"
    if done.returncode != 0:
        return f"no Kafka Streams: {(done.stdout + done.stderr).strip()[:200]}"
    building.rename(BUILT)
    return BUILT


@contextmanager
def kafka_streams(checkpoint: BigCheckpoint, folder: Path, numbers: Sequence[int]) -> Iterator[Peers | str]:
    """Run two instances, and yield them once their answers for these keys were checked; or the reason why that is
    impossible.
    """
    jars, found = broker_jars(), built()
    for each in (jars, found):
        if isinstance(each, str):
            yield each
            return
    assert isinstance(jars, Path)
    assert isinstance(found, Path)
    with ExitStack() as running:
        (folder / "kafka").mkdir()
        broker = KafkaBroker(folder / "kafka", jars)
        running.callback(broker.kill)
        broker.start()
        topic = broker.make_topic(PARTITIONS)
        _fill(broker.servers, topic, checkpoint)
        asked, behind = (
            running.enter_context(_instance(found, broker.servers, topic, folder / f"streams-{number}"))
            for number in range(2)
        )
        yield _checked(checkpoint, asked, behind, numbers)


def _fill(servers: str, topic: str, checkpoint: BigCheckpoint) -> None:
    # The partitioner of Java's producer: Kafka Streams finds a key's partition by it.
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "partitioner": "murmur2_random"})
    for number in range(checkpoint.keys):
        producer.produce(topic, _VALUE.pack(*checkpoint.value(number)), checkpoint.key(number))
        if number % 10_000 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0, "the broker did not take all keys"


@contextmanager
def _instance(found: Path, servers: str, topic: str, folder: Path) -> Iterator[Server]:
    port = free_port()
    java = shutil.which("java")
    assert java is not None, "found when it was built"
    command = [java, *JAVA_OPTIONS, "-cp", f"{found / 'classes'}:{found}/*", "understudy.Peer"]
    process = subprocess.Popen(tied_command(*command, servers, topic, str(port), str(folder)))
    try:
        yield Server(port, process.pid)
    finally:
        process.kill()
        process.wait(30)


def _checked(checkpoint: BigCheckpoint, asked: Server, behind: Server, numbers: Sequence[int]) -> Peers:
    """Check that both instances have all their keys, and that either way of forwarding gives every value as the
    checkpoint has it.
    """
    keys: dict[int, list[str]] = {asked.port: [], behind.port: []}
    _wait_until(lambda: all(fetch(each.port, "/ready")[0] == 200 for each in (asked, behind)), "both to run")
    for number in numbers:
        key = checkpoint.key(number)
        count, total, average_sum, average_count, least, most = checkpoint.value(number)
        average = {"sum": average_sum, "count": average_count}
        expected = {"count": count, "sum": total, "avg": average, "min": least, "max": most}
        for way in ("jdk", "vertx"):
            path = f"/{way}/{key}"
            _wait_until(lambda path=path: fetch(asked.port, path)[0] == 200, f"an answer to {path}")  # type: ignore[misc]
            answer = orjson.loads(fetch(asked.port, path)[1])
            if answer["value"] != expected:
                raise RuntimeError(f"{path} is answered with {answer}, not with {expected}")
        keys[int(fetch(asked.port, f"/host/{key}")[1])].append(key)
    if not all(keys.values()):
        raise RuntimeError("one instance is active for all keys")
    return Peers(asked, behind, keys[asked.port], keys[behind.port])


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    limit_s = time.monotonic() + _START_LIMIT_S
    while True:
        with suppress(OSError):
            if condition():
                return
        if time.monotonic() > limit_s:
            raise RuntimeError(f"the wait of {_START_LIMIT_S:.0f} s for {what} was in vain")
        time.sleep(0.05)
