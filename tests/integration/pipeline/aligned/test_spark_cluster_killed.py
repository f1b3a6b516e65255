"""A Spark cluster and a Kafka cluster of which every part is killed while records come: each row once, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.cluster import KafkaCluster, kafka_cluster
from tests.support.spark.cluster_query import PARTITIONS, TOPICS, Output, Record, answers_of, records, run_in_local_mode
from tests.support.spark.process import JOBS, SparkJob
from tests.support.spark.standalone import StandaloneCluster, standalone_cluster

from understudy_aligned.inputs.records import TopicPartition

pytestmark = pytest.mark.timeout(900)

SHARES = 6
"""The records come in so many parts, each of which takes several batches."""

PER_PARTITION = 40 * SHARES
BATCH = 20
IDLE_MS = 20_000
"""Longer than the records of one part come apart: the order is then that of the whole logs."""


@pytest.mark.full
def test_each_row_comes_once_and_in_order_while_workers_the_driver_and_both_brokers_are_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    logs = records(PER_PARTITION)
    with kafka_cluster(tmp_path / "kafka") as kafka, standalone_cluster(tmp_path / "cluster") as cluster:
        names = {topic: kafka.make_topic(PARTITIONS) for topic in TOPICS}
        shares = _shares(kafka, names, logs)
        options = {
            "kafka": kafka.servers,
            "topics": ",".join(names.values()),
            "timestamp": "json:at",
            "max_poll_records": str(BATCH),
            "max_task_idle_ms": str(IDLE_MS),
        }
        folder = cluster.shared / "killed"
        folder.mkdir()
        output = Output(folder / "output")
        with _driver(cluster, folder, options) as job:
            next(shares)
            _wait_for_batches(job, output)
            cluster.kill_worker(1)
            next(shares)
            _wait_for_batches(job, output)
            with _killed(kafka, kafka.brokers[0]):
                next(shares)
                _wait_for_batches(job, output)
        with _driver(cluster, folder, options) as job:
            next(shares)
            _wait_for_batches(job, output)
            with _killed(kafka, kafka.brokers[1]):
                cluster.kill_worker(2)
                next(shares)
                _wait_for_batches(job, output)
            next(shares)
            job.wait_until(lambda: output.count() == len(TOPICS) * PARTITIONS * PER_PARTITION, what="every row")
        local = run_in_local_mode(spark, {**options, "max_task_idle_ms": "0"}, tmp_path / "local")
    assert output.order() == local.order()
    assert output.answers() == local.answers() == answers_of(logs)


def _shares(
    kafka: KafkaCluster, names: Mapping[str, str], logs: Mapping[TopicPartition, Sequence[Record]]
) -> Iterator[None]:
    """Write a part of the records at each step, to all brokers that live."""
    producer = Producer({"bootstrap.servers": kafka.servers, "acks": "all", "enable.idempotence": True})
    size = PER_PARTITION // SHARES
    for first in range(0, PER_PARTITION, size):
        for partition, log in logs.items():
            for record in log[first : first + size]:
                producer.produce(names[partition.topic], record.value, partition=partition.partition)
        assert producer.flush(120) == 0
        yield


@contextmanager
def _driver(cluster: StandaloneCluster, folder: Path, options: Mapping[str, str]) -> Iterator[SparkJob]:
    """A driver until the end of the block, which is a `kill -9`."""
    script = [str(JOBS / "cluster_job.py"), str(folder), "--options", json.dumps(options)]
    with cluster.submitted(*script, "--private", str(cluster.driver_folder)) as job:
        yield job


@contextmanager
def _killed(kafka: KafkaCluster, broker: KafkaBroker) -> Iterator[None]:
    """`kill -9` of a broker; it is back, with a copy of everything, at the end of the block."""
    broker.kill()
    yield
    broker.start()
    kafka.wait_for_copies()


def _wait_for_batches(job: SparkJob, output: Output) -> None:
    """Return when two more batches came out."""
    wanted = len(output.batches()) + 2
    job.wait_until(lambda: len(output.batches()) >= wanted, what="two more batches")
