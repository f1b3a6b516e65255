"""The aligned source and `announce` on a Spark standalone cluster: a master, two workers, a driver by `spark-submit`.

Executors cannot see the driver's temporary files, so the spool is of no use to them: they read the inputs. The rows,
their order and the answers are those of local mode, which runs in this process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession
from tests.support.bus.ear import Ear
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.cluster.in_process import ClusterNode, cluster_node
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import produce
from tests.support.spark.accelerator import Way, released_jar
from tests.support.spark.cluster_query import (
    PARTITIONS,
    SENSORS,
    STORE,
    TOPICS,
    Answer,
    Output,
    Record,
    answers_of,
    records,
    run_in_local_mode,
)
from tests.support.spark.hidden_folder import hide
from tests.support.spark.process import JOBS, SparkJob
from tests.support.spark.queries import wait_until
from tests.support.spark.standalone import StandaloneCluster, standalone_cluster

from understudy_aligned.inputs.records import TopicPartition

pytestmark = pytest.mark.timeout(900)

Logs = Mapping[TopicPartition, Sequence[Record]]

OPTIONS = {"topics": ",".join(TOPICS), "timestamp": "json:at", "max_poll_records": "40"}
PER_PARTITION = 40
ROWS = PER_PARTITION * PARTITIONS * len(TOPICS)


def hiding(folder: Path) -> Sequence[str]:
    """What hides the driver's folder from workers, if anything does here."""
    found = hide(folder)
    if isinstance(found, str):
        pytest.skip(f"nothing hides a folder here: {found}")
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), hiding=hiding) as running:
        yield running


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """On a port, as one that other machines reach."""
    with redis_server(port=0) as running:
        yield running


def fill_redis(url: str, logs: Logs) -> dict[str, str]:
    """Append to streams; the source's options for them."""
    with redis.Redis.from_url(url, socket_timeout=60) as client:
        for partition, log in logs.items():
            for record in log:
                client.xadd(f"{partition.topic}:{partition.partition}", {"value": record.value})
    return {**OPTIONS, "redis": url}


def fill_kafka(broker: KafkaBroker, logs: Logs) -> dict[str, str]:
    """New topics; the source's options for them."""
    names = {topic: broker.make_topic(PARTITIONS) for topic in TOPICS}
    for partition, log in logs.items():
        where = TopicPartition(names[partition.topic], partition.partition)
        produce(broker.servers, where, [record.value for record in log])
    return {**OPTIONS, "kafka": broker.servers, "topics": ",".join(names.values())}


@contextmanager
def submitted(
    cluster: StandaloneCluster, name: str, options: Mapping[str, str], *more: str, way: Way = "python"
) -> Iterator[tuple[SparkJob, Path]]:
    """The query as a job, and its folder; it ends at the end of the block, and well."""
    folder = cluster.shared / name
    folder.mkdir()
    script = ["--jars", str(released_jar())] if way == "jar" else []
    script += [str(JOBS / "cluster_job.py"), str(folder), "--options", json.dumps(options)]
    with cluster.submitted(*script, "--private", str(cluster.driver_folder), *more) as job:
        yield job, folder
        (folder / "end").touch()
        assert job.wait_for_end() == 0, job.lines()[-40:]


def assert_executors_see_nothing(job: SparkJob, cluster: StandaloneCluster) -> None:
    """There is an executor on each of two workers, and none sees what the planner wrote into the driver's folder."""
    (line,) = [line for line in job.lines() if line.startswith("executors ")]
    seen = json.loads(line.removeprefix("executors "))
    assert len({each["work"] for each in seen}) == 2
    assert {each["found"] for each in seen} <= {"", "Permission denied"}
    assert list((cluster.driver_folder / "tmp").glob("understudy-spool-*/planner-*/*.arrow")), "the spool was written"


def assert_node_answers(node: ClusterNode, expected: Mapping[str, Answer]) -> None:
    """Return when a node gives these results by the names that were announced."""

    def answer(sensor: str) -> Answer | None:
        result: Any = node.look_up([sensor], store=STORE).body.get("result")
        return None if result is None else Answer(**result)

    wait_until(lambda: {sensor: answer(sensor) for sensor in SENSORS} == expected, what="the answers at the node")


@pytest.mark.full
def test_a_cluster_gives_the_rows_order_and_answers_of_local_mode_and_its_names_and_commits_reach_a_node(
    spark: SparkSession, cluster: StandaloneCluster, server: RedisServer, tmp_path: Path
) -> None:
    logs = records(PER_PARTITION)
    options = fill_redis(server.url, logs)
    ears = closing(Ear(server.url, "sensors"))
    with ears as ear, submitted(cluster, "sensors", options, "--announce", server.url) as (job, folder):
        output = Output(folder / "output")
        job.wait_until(lambda: output.count() == ROWS, what="every row")
        assert_executors_see_nothing(job, cluster)
        checkpoint = folder / "checkpoint"
        with cluster_node(checkpoint, tmp_path / "node", server.url, node_id="n1", application_id="sensors") as node:
            assert_node_answers(node, answers_of(logs))
            later = {partition: [Record(10_000_000, SENSORS[0])] for partition in logs}
            fill_redis(server.url, later)
            job.wait_until(lambda: output.count() == ROWS + len(later), what="the later rows")
            everything = {partition: [*logs[partition], *later[partition]] for partition in logs}
            assert_node_answers(node, answers_of(everything))
        wait_until(lambda: ear.hints()[-1:] == [output.batches()[-1] + 1], what="the hint of the last commit")
    local = run_in_local_mode(spark, options, tmp_path / "local")
    assert output.order() == local.order()
    assert output.answers() == local.answers() == answers_of(everything)


@pytest.mark.full
def test_kafka_and_the_jar_give_the_rows_order_and_answers_of_local_mode_too(
    spark: SparkSession, broker: KafkaBroker, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    logs = records(PER_PARTITION)
    options = fill_kafka(broker, logs)
    with submitted(cluster, "kafka-jar", options, way="jar") as (job, folder):
        output = Output(folder / "output")
        job.wait_until(lambda: output.count() == ROWS, what="every row")
        assert_executors_see_nothing(job, cluster)
    local = run_in_local_mode(spark, options, tmp_path / "local")
    assert output.order() == local.order()
    assert output.answers() == local.answers() == answers_of(logs)


@pytest.mark.full
@pytest.mark.parametrize(("is_shared", "way"), [(False, "python"), (True, "jar")], ids=["python", "shared-jar"])
def test_poison_records_are_set_aside_where_all_machines_see_them_or_the_query_ends(
    cluster: StandaloneCluster, server: RedisServer, way: Way, *, is_shared: bool
) -> None:
    """With the jar the planner writes them first. An executor that reads the batch writes them, too, or fails."""
    options = fill_redis(server.url, records(5))
    with redis.Redis.from_url(server.url) as client:
        client.xadd("weather:0", {"value": b"no time"})
    aside = (cluster.shared if is_shared else cluster.driver_folder) / f"aside-{way}"
    folder = cluster.shared / f"poison-{is_shared}-{way}"
    folder.mkdir()
    given = json.dumps({**options, "undecodable": "aside", "undecodable_path": str(aside)})
    script = ["--jars", str(released_jar())] if way == "jar" else []
    script += [str(JOBS / "cluster_job.py"), str(folder), "--options", given]
    with cluster.submitted(*script, "--private", str(cluster.driver_folder)) as job:
        if is_shared:
            job.wait_until(lambda: bool(list(aside.glob("*.jsonl"))), what="the poison record")
        else:
            assert job.wait_for_end() != 0
            assert "1 records without a usable timestamp cannot be written aside" in "\n".join(job.lines())
            assert [path.suffix for path in aside.iterdir()] == ([".jsonl"] if way == "jar" else [])
