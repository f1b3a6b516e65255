"""Spark's own Kafka source and ours through the same trouble with a real broker: lost records, and silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import produce
from tests.support.spark.spark_kafka import result_of, running_job

from understudy_aligned.inputs.records import TopicPartition

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

SOURCES = ("kafka", "understudy")
RECORDS, VALUE = 60_000, bytes(1_500)
"""Far more than clients read ahead."""


@pytest.mark.full
def test_both_sources_fail_on_what_a_partition_lost_before_they_saw_it_or_go_on_with_what_is_left(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = broker.make_topic(1)
    produce(broker.servers, TopicPartition(topic, 0), [b"v"] * 3)
    options = {"kafka.bootstrap.servers": broker.servers, "subscribe": topic, "startingOffsets": "earliest"}
    with running_job("kafka_lost", tmp_path, options) as job:
        job.wait_for_line("read")
        broker.grow_topic(topic, 2)
        produce(broker.servers, TopicPartition(topic, 1), [b"v"] * 10)
        broker.delete_records(TopicPartition(topic, 1), 4)
        (tmp_path / "lost").touch()
        found = result_of(job)
    for name in SOURCES:
        assert (found["before"][name]["rows"], found["before"][name]["error"]) == ([[0, 0], [0, 1], [0, 2]], "")
        assert found["true"][name]["rows"] == []
        assert f"{topic}-1" in found["true"][name]["error"]
        assert found["false"][name]["error"] == ""
        assert found["false"][name]["rows"] == [[1, offset] for offset in range(4, 10)]
    assert "records from offset 0 on are gone: the log now begins at offset 4" in found["true"]["understudy"]["error"]
    assert found["before"]["understudy"]["losses"] == [0]
    assert found["false"]["understudy"]["losses"] == [1]


@pytest.mark.full
def test_both_sources_outlast_a_broker_that_is_silent_while_executors_read_and_end_without_patience(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = broker.make_topic(1)
    produce(broker.servers, TopicPartition(topic, 0), [VALUE] * RECORDS)
    options = {"kafka.bootstrap.servers": broker.servers, "subscribe": topic, "startingOffsets": "earliest"}
    with running_job("kafka_silence", tmp_path, options) as job:
        job.wait_until(lambda: len(list(tmp_path.glob("*.reading"))) == 4, what="four queries that read")
        broker.pause()
        try:
            (tmp_path / "silent").touch()
            job.wait_for_line("impatient ended")
        finally:
            broker.resume()
        found = result_of(job)
    for name in SOURCES:
        assert found[name] == {"batches": [RECORDS], "has each once": True, "error": ""}
        assert found[f"{name}-impatient"]["batches"] == []
        assert "15000" in found[f"{name}-impatient"]["error"]
