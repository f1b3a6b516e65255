"""A script that reads `format("kafka")` in a real Spark, unchanged but for the name: the same columns and rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import produce
from tests.support.spark.accelerator import FORMATS, Way, released_jar
from tests.support.spark.aligned_queries import QUICK, load, started
from tests.support.spark.queries import settings
from tests.support.spark.spark_kafka import run_job

from understudy_aligned.inputs.records import TopicPartition

FIRST_TIME_MS = 1_700_000_000_000
SPARKS_COLUMNS = (
    "key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
    "headers:array<struct<key:string,value:binary>>"
)
"""The columns of Spark's Kafka source with `includeHeaders`; `test_both_sources_...` asks Spark itself."""

OURS = "merge_order:struct<batch:bigint,effective_ms:bigint,topic_rank:int,partition:int,ordinal:bigint>"
STREAMS_ONLY = r"reads streams only.*spark\.read\.format\('kafka'\)"


@pytest.fixture(autouse=True, scope="module")
def _quick_session(spark: SparkSession) -> Iterator[None]:
    with settings(spark, QUICK):
        yield


@pytest.fixture(scope="module")
def script(broker: KafkaBroker) -> Mapping[str, str]:
    """Ten usual options, and two topics with records in them."""
    weather, flights = broker.make_topic(2), broker.make_topic(2, config={"message.timestamp.type": "LogAppendTime"})
    produce(broker.servers, TopicPartition(weather, 0), [b"w0", None, b"w2"], key=b"k")
    produce(broker.servers, TopicPartition(flights, 1), [b"f0", b"f1"], headers=[("a", b"1"), ("b", None)])
    begin = json.dumps({weather: {"0": 1, "1": -2}, flights: {"0": -2, "1": 0}})
    return {
        "kafka.bootstrap.servers": broker.servers,
        "subscribe": f"{weather},{flights}",
        "startingOffsets": begin,
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": "1000",
        "minPartitions": "2",
        "kafka.client.id": "script",
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": "100",
    }


def rows_of(frame: DataFrame, checkpoint: Path) -> list[dict[str, Any]]:
    """All rows up to the present ends."""
    rows: list[dict[str, Any]] = []
    query = started(frame, checkpoint, lambda batch, _: rows.extend(batch.toArrow().to_pylist()), available_now=True)
    query.awaitTermination()
    return rows


def test_a_script_runs_unchanged_but_for_the_name(
    spark: SparkSession, way: Way, script: Mapping[str, str], tmp_path: Path
) -> None:
    weather, flights = script["subscribe"].split(",")
    frame = load(spark, script, way)
    assert frame.schema.simpleString() == f"struct<{SPARKS_COLUMNS},{OURS}>"
    found = rows_of(frame, tmp_path / "checkpoint")
    found.sort(key=lambda row: (row["topic"] != weather, row["partition"], row["offset"]))
    assert [(row["topic"], row["partition"], row["offset"], row["value"]) for row in found] == [
        (weather, 0, 1, None),
        (weather, 0, 2, b"w2"),
        (flights, 1, 0, b"f0"),
        (flights, 1, 1, b"f1"),
    ]
    assert [row["timestampType"] for row in found] == [0, 0, 1, 1]
    assert [row["key"] for row in found] == [b"k", b"k", None, None]
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert [row["headers"] for row in found] == [None, None, headers, headers]
    assert found[0]["timestamp"].timestamp() * 1000 == FIRST_TIME_MS + 1


@pytest.mark.parametrize("trigger", ["once", "processAllAvailable"])
def test_each_way_to_process_what_there_is_processes_all_of_it(
    spark: SparkSession, way: Way, broker: KafkaBroker, tmp_path: Path, trigger: str
) -> None:
    topic = broker.make_topic(1)
    produce(broker.servers, TopicPartition(topic, 0), [b"%d" % number for number in range(1_000)])
    frame = load(spark, {"kafka": broker.servers, "topics": topic, "max_poll_records": "300"}, way)
    batches: list[int] = []
    query = started(
        frame,
        tmp_path / "checkpoint",
        lambda batch, _: batches.append(batch.count()),
        available_now=False,
        once=trigger == "once",
    )
    if trigger == "once":
        query.awaitTermination()
        assert batches == [1_000], "whatever bounds a batch"
    else:
        query.processAllAvailable()
        assert sum(batches) == 1_000
        query.stop()


def test_what_cannot_be_is_told_before_anything_is_read(
    spark: SparkSession, script: Mapping[str, str], tmp_path: Path
) -> None:
    # With a schema that the user gives, Spark makes the source only when the query starts.
    of_ones_own = spark.readStream.format("understudy").schema("value string").options(**script).load()
    query = started(of_ones_own, tmp_path / "checkpoint", lambda *_: None, available_now=True)
    with pytest.raises(StreamingQueryException, match=r"columns of this source are fixed.*Leave it out"):
        query.awaitTermination()
    assert "columns of this source are fixed" in str(query.exception())
    assert not (tmp_path / "checkpoint" / "offsets" / "0").exists()
    with pytest.raises(AnalysisException, match=r"(?s)ssl\.truststore\.location.*kafka\.ssl\.ca\.location"):
        load(spark, {**script, "kafka.ssl.truststore.location": "/etc/truststore.jks"})
    with pytest.raises(PySparkException, match=STREAMS_ONLY):
        spark.read.format("understudy").options(**script).load().collect()


def test_the_jar_refuses_the_same_in_the_same_words_and_a_schema_already_at_load(
    spark: SparkSession, script: Mapping[str, str]
) -> None:
    released_jar()
    of_ones_own = spark.readStream.format(FORMATS["jar"]).schema("value string").options(**script)
    with pytest.raises(AnalysisException, match=r"columns of this source are fixed.*Leave it out"):
        of_ones_own.load()
    with pytest.raises(AnalysisException, match=r"(?s)ssl\.truststore\.location.*kafka\.ssl\.ca\.location"):
        load(spark, {**script, "kafka.ssl.truststore.location": "/etc/truststore.jks"}, "jar")
    with pytest.raises(PySparkException, match=STREAMS_ONLY):
        spark.read.format(FORMATS["jar"]).options(**script).load().collect()


@pytest.mark.full
def test_a_checkpoint_keeps_the_isolation_level_that_it_was_begun_with(
    spark: SparkSession, script: Mapping[str, str], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    rows_of(load(spark, script), checkpoint)
    changed = load(spark, {**script, "kafka.isolation.level": "read_uncommitted"})
    with pytest.raises(StreamingQueryException, match=r"kafka\.isolation\.level was 'read_committed'"):
        rows_of(changed, checkpoint)


def subscribed(script: Mapping[str, str], way: str) -> Mapping[str, str]:
    """The script with another option that says what is read, of which the same records come."""
    weather, flights = script["subscribe"].split(",")
    rest = {name: value for name, value in script.items() if name != "subscribe"}
    if way == "subscribePattern":
        return {**rest, "subscribePattern": f"{weather[3:]}|{flights[3:-1]}"}
    if way == "assign":
        begin = json.dumps({weather: {"0": 1}, flights: {"1": 0}})
        return {**rest, "assign": json.dumps({weather: [0], flights: [1]}), "startingOffsets": begin}
    return script


@pytest.mark.full
@pytest.mark.parametrize("way", ["subscribe", "subscribePattern", "assign"])
def test_both_sources_give_the_same_columns_and_rows_and_so_does_a_batch_of_sparks(
    script: Mapping[str, str], tmp_path: Path, way: str
) -> None:
    found = run_job("kafka_twice", tmp_path, subscribed(script, way))
    assert found["kafka"]["columns"] == found["batch"]["columns"] == f"struct<{SPARKS_COLUMNS}>"
    assert found["understudy"]["columns"] == f"struct<{SPARKS_COLUMNS},{OURS}>"
    assert len(found["kafka"]["rows"]) == 4
    assert found["continued"]["rows"] == []
    assert sorted(found["understudy"]["rows"]) == sorted(found["kafka"]["rows"]) == sorted(found["batch"]["rows"])
    for name in ("kafka", "understudy"):
        assert found["once"][name]["batches"] == [4]
        for trigger in ("once", "processAllAvailable"):
            assert sorted(found[trigger][name]["rows"]) == sorted(found["batch"]["rows"])
