"""The Kafka input against a real broker's logs: transactions, compaction, retention, growth, absent topics."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import Reading, begin_transaction, produce
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.kafka_input import KafkaInput
from understudy_aligned.inputs.protocol import DataLostError, Range
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.open_inputs import open_reader
from understudy_aligned.options import AlignedOptions
from understudy_aligned.reading import read_task
from understudy_aligned.stream import AlignedStream, Json

pytestmark = pytest.mark.usefixtures("taking")

END_S = 30


@contextmanager
def reading(config: KafkaConfig) -> Iterator[Reading]:
    reads = Reading(KafkaInput(config))
    try:
        yield reads
    finally:
        reads.input.close()


def config(
    broker: KafkaBroker, where: TopicPartition, *, isolation: str = "read_committed", fail: bool = True
) -> KafkaConfig:
    properties = (("isolation.level", isolation),)
    return KafkaConfig(broker.servers, (where.topic,), properties, fail_on_data_loss=fail)


def span(where: TopicPartition, start: int, end: int) -> Range:
    return Range(where, Cursor() if start < 0 else Cursor(str(start), start + 1), Cursor(str(end), end + 1))


def read_range(config: KafkaConfig, wanted: Range) -> list[int]:
    """The offsets that a fresh reader finds in the range."""
    reader = open_reader(config)
    try:
        return [offset for rows in reader.read(wanted) for offset in rows["ordinal"].to_pylist()]
    finally:
        reader.close()


def log_end(broker: KafkaBroker, where: TopicPartition) -> int:
    """The end of everything written, committed or not."""
    with reading(config(broker, where, isolation="read_uncommitted")) as reads:
        return reads.input.ends([where], timeout_ms=10_000)[where].ordinal


def test_statement_42_a_commit_marker_at_the_end_is_no_lag(broker: KafkaBroker) -> None:
    where = TopicPartition(broker.make_topic(), 0)
    begin_transaction(broker.servers, where.topic, where, [b"a", b"b"]).commit_transaction(END_S)
    wait_until(lambda: log_end(broker, where) == 3, what="the marker")
    for isolation in ("read_committed", "read_uncommitted"):
        with reading(config(broker, where, isolation=isolation)) as reads:
            reads.seek(where)
            reads.until_lag(where, 0)
            assert reads.values(where) == [b"a", b"b"]


def test_statement_53_a_turn_over_aborted_records_alone_is_empty_and_says_that_nothing_is_left(
    broker: KafkaBroker,
) -> None:
    where = TopicPartition(broker.make_topic(), 0)
    produce(broker.servers, where, [b"kept"])
    begin_transaction(broker.servers, where.topic, where, [b"dropped"] * 50).abort_transaction(END_S)
    wait_until(lambda: log_end(broker, where) == 52, what="the marker")
    with reading(config(broker, where)) as reads:
        reads.seek(where)
        reads.until_lag(where, 0)
        assert reads.values(where) == [b"kept"]
        reads.seek(where, cursor=Cursor("0", 1))
        reads.lags.clear()
        reads.until_lag(where, 0)
        assert reads.values(where) == [b"kept"]


def test_statement_42_an_open_transaction_is_neither_brought_nor_awaited(broker: KafkaBroker) -> None:
    """The end is the last stable offset; records written behind it by others wait with it, as in Kafka."""
    where = TopicPartition(broker.make_topic(), 0)
    produce(broker.servers, where, [b"before"])
    open_one = begin_transaction(broker.servers, where.topic, where, [b"within"])
    produce(broker.servers, where, [b"after"])
    with (
        reading(config(broker, where)) as reads,
        reading(config(broker, where, isolation="read_uncommitted")) as all_of,
    ):
        reads.seek(where)
        reads.until_lag(where, 0)
        assert reads.values(where) == [b"before"]
        assert reads.input.ends([where], timeout_ms=10_000)[where].ordinal == 1
        all_of.seek(where)
        all_of.until_lag(where, 0)
        assert all_of.values(where) == [b"before", b"within", b"after"]
        open_one.commit_transaction(END_S)
        while len(reads.values(where)) < 3:
            reads.turn({where: 9})
        reads.until_lag(where, 0)
        assert reads.values(where) == [b"before", b"within", b"after"]


def test_a_range_ends_behind_its_last_record_whatever_markers_and_aborted_records_lie_in_it(
    broker: KafkaBroker,
) -> None:
    where = TopicPartition(broker.make_topic(), 0)
    begin_transaction(broker.servers, where.topic, where, [b"a", b"b"]).commit_transaction(END_S)
    begin_transaction(broker.servers, where.topic, where, [b"x"] * 3).abort_transaction(END_S)
    begin_transaction(broker.servers, where.topic, where, [b"c"]).commit_transaction(END_S)
    reads = config(broker, where)
    assert read_range(reads, span(where, -1, 1)) == [0, 1]
    assert read_range(reads, span(where, 0, 7)) == [1, 7]
    assert read_range(reads, span(where, 1, 7)) == [7]


def test_records_that_compaction_took_are_no_loss(broker: KafkaBroker) -> None:
    compacting = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.01"}
    where = TopicPartition(broker.make_topic(config=compacting), 0)
    for _ in range(3):
        produce(broker.servers, where, [bytes(2_000)] * 300, key=b"same")
    produce(broker.servers, where, [b"last"], key=b"other")
    reads = config(broker, where)
    wait_until(lambda: len(read_range(reads, span(where, -1, 900))) < 900, what="compaction", limit_s=60)
    with reading(reads) as planner:
        planner.seek(where, cursor=Cursor("3", 4))
        planner.until_lag(where, 0)
        assert planner.values(where)[-1] == b"last"
    found = read_range(reads, span(where, 3, 100))
    assert found == [offset for offset in found if 3 < offset <= 100]
    assert len(found) < 97


def test_records_that_compaction_took_from_a_logged_batch_are_counted_and_markers_are_not(
    broker: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {"min.compaction.lag.ms": "3600000", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.01"}
    where = TopicPartition(broker.make_topic(config={"cleanup.policy": "compact", **kept}), 0)
    now_ms = int(time.time() * 1000)  # the lag begins with a record's timestamp
    produce(broker.servers, where, [bytes(2_000)] * 600, key=b"same", first_time_ms=now_ms)
    begin_transaction(broker.servers, "committed", where, [b"1", b"2"], key=b"x").commit_transaction()
    begin_transaction(broker.servers, "aborted", where, [b"3"], key=b"x").abort_transaction()
    produce(broker.servers, where, [bytes(2_000)] * 600, key=b"same", first_time_ms=now_ms)
    options = AlignedOptions(inputs=(config(broker, where),), topics=(where.topic,), spool=tmp_path)
    planner = AlignedStream(options)
    start = planner.initial_offset()
    end = planner.latest_offset_of_all(start)
    planner.stop()
    assert end["records"] == 1_202
    assert run_again(options, start, end) == (1_202, 0)

    alter_topic(broker, where.topic, "min.compaction.lag.ms", "0")
    produce(broker.servers, where, [b"another segment"], key=b"same")
    reads, whole = config(broker, where), span(where, -1, int(json.loads(json.dumps(end))["at"][where.topic]["0"][0]))
    wait_until(lambda: len(read_range(reads, whole)) < 1_202, what="compaction", limit_s=60)
    rows, counted = run_again(options, start, end)
    assert rows < 1_202
    assert counted == 1_202 - rows
    assert {vars(each)["records"] for each in caplog.records if vars(each).get("action") == "compacted"} == {counted}


def run_again(options: AlignedOptions, start: Json, end: Json) -> tuple[int, object]:
    """Run a logged batch in a new process of the query: its rows, and how many records the progress counts as gone."""
    again = AlignedStream(options)
    try:
        rows = sum(batch.num_rows for task in again.tasks(start, end) for batch in read_task(task))
        again.latest_offset(end)
        return rows, (again.metrics() or {})["compacted-records-total"]
    finally:
        again.stop()


def alter_topic(broker: KafkaBroker, topic: str, name: str, value: str) -> None:
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    with broker.admin() as admin:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(END_S)


def test_what_was_deleted_behind_a_position_is_reported_with_numbers_on_both_sides(broker: KafkaBroker) -> None:
    where = TopicPartition(broker.make_topic(), 0)
    produce(broker.servers, where, [b"%d" % number for number in range(100)])
    message = r"records from offset 10 on are gone: the log now begins at offset 60"
    with reading(config(broker, where)) as fetches, reading(config(broker, where)) as seeks:
        fetches.seek(where)
        while len(fetches.values(where)) < 10:
            fetches.turn({where: 10 - len(fetches.values(where))})
        fetches.seek(where, cursor=Cursor("9", 10))
        broker.delete_records(where, 60)
        with pytest.raises(DataLostError, match=message):
            wait_until(lambda: bool(fetches.turn({where: 9}) and False), what="the loss")
        with pytest.raises(DataLostError, match=message):
            seeks.seek(where, cursor=Cursor("9", 10))
    with pytest.raises(DataLostError, match=message):
        read_range(config(broker, where), span(where, 9, 80))
    beginning = "records from offset 0 on are gone"
    with pytest.raises(DataLostError, match=beginning):
        read_range(config(broker, where), span(where, -1, 61))
    with reading(config(broker, where)) as reads:
        with pytest.raises(DataLostError, match=beginning):
            reads.seek(where)
        reads.seek(where, cursor=reads.input.beginnings([where], timeout_ms=10_000)[where])
        reads.until_lag(where, 0)
        assert reads.column(where, "ordinal") == list(range(60, 100))


def test_what_was_lost_is_a_warning_where_that_is_wanted(broker: KafkaBroker, caplog: pytest.LogCaptureFixture) -> None:
    where = TopicPartition(broker.make_topic(), 0)
    produce(broker.servers, where, [b"%d" % number for number in range(100)])
    easy = config(broker, where, fail=False)
    with reading(easy) as reads, caplog.at_level(logging.WARNING):
        reads.seek(where, cursor=Cursor("9", 10))
        broker.delete_records(where, 60)
        reads.until_lag(where, 0)
        assert reads.column(where, "ordinal") == list(range(60, 100))
        assert read_range(easy, span(where, 9, 69)) == list(range(60, 70))
        assert read_range(easy, span(where, 9, 30)) == []
        reads.rows.clear()
        reads.seek(where, cursor=Cursor("19", 20))
        reads.until_lag(where, 0)
        assert reads.column(where, "ordinal") == list(range(60, 100))
        assert reads.input.losses == 2, "the others are of ranges"
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 4
    assert "begins at offset 60" in caplog.text


def test_new_partitions_are_seen_and_read_from_their_beginning(broker: KafkaBroker) -> None:
    topic = broker.make_topic(1)
    old, new = TopicPartition(topic, 0), TopicPartition(topic, 1)
    produce(broker.servers, old, [b"old"])
    with reading(KafkaConfig(broker.servers, (topic,))) as reads:
        assert reads.input.partitions(timeout_ms=10_000) == {topic: 1}
        reads.seek(old)
        reads.until_lag(old, 0)
        broker.grow_topic(topic, 2)
        wait_until(lambda: reads.input.partitions(timeout_ms=10_000) == {topic: 2}, what="the new partition")
        produce(broker.servers, new, [b"new"])
        reads.seek(new)
        reads.until_lag(new, 0)
        produce(broker.servers, old, [b"again"])
        while len(reads.values(old)) < 2:
            reads.turn({old: 9, new: 9})
        assert (reads.values(old), reads.values(new)) == ([b"old", b"again"], [b"new"])
