"""The Kafka input against a real broker's logs: transactions, compaction, retention, topics that are made anew, and
where queries begin to read.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import begin_transaction, produce, reading
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.kafka_input import KafkaInput
from understudy_aligned.inputs.protocol import DataLostError, Range
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.offset import SourceOffset
from understudy_aligned.open_inputs import open_reader
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import PlannedBatch, Planner
from understudy_aligned.reading import read_task
from understudy_aligned.stream import AlignedStream, Json
from understudy_shared.base.clock import SystemClock

pytestmark = pytest.mark.usefixtures("taking")

END_S = 30


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
    with reading(reads) as fetches:
        fetches.seek(where, cursor=Cursor("3", 4))
        fetches.until_lag(where, 0)
        assert fetches.values(where)[-1] == b"another segment", "what is gone is no loss"
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


FIRST_TIME_MS = 1_700_000_000_000


@contextmanager
def planning(broker: KafkaBroker, *topics: str, **more: str) -> Iterator[Planner]:
    options = {"kafka": broker.servers, "topics": ",".join(topics), "request_timeout_ms": "1500", **more}
    planner = Planner(parse_options(options), SystemClock())
    try:
        yield planner
    finally:
        planner.stop()


def batch(planner: Planner, start: SourceOffset) -> PlannedBatch:
    """The next batch, however long it takes."""
    found: list[PlannedBatch] = []

    def has_come() -> bool:
        planned = planner.plan(start)
        found.extend([planned] if planned is not None else [])
        return bool(found)

    wait_until(has_come, what="a batch", limit_s=60)
    return found[0]


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_was_made_anew_and_is_longer_than_the_position_is_not_taken_for_the_one_before(
    broker: KafkaBroker, *, fails: bool
) -> None:
    name = broker.make_topic()
    where = TopicPartition(name, 0)
    produce(broker.servers, where, [b"old"] * 3)
    with planning(broker, name) as planner:
        end = batch(planner, planner.initial(timeout_ms=5_000)).end
    assert end.cursors[where].ordinal == 3
    assert end.topic_ids.keys() == {name}
    broker.delete_topic(name)
    broker.make_topic(name=name)
    produce(broker.servers, where, [b"new"] * 10)
    with planning(broker, name, fail_on_data_loss=str(fails)) as planner:
        if fails:
            with pytest.raises(DataLostError, match=f"deleted and created again.*{name}"):
                batch(planner, end)
        else:
            ((span, rows),) = batch(planner, end).ranges
            assert [value for each in rows for value in each["value"].to_pylist()] == [b"new"] * 10
            assert span.start == Cursor(time_ms=end.cursors[where].time_ms)


@pytest.mark.full
def test_one_that_is_made_anew_and_is_shorter_is_read_once_and_from_its_beginning_where_lost_data_may_be(
    broker: KafkaBroker,
) -> None:
    name = broker.make_topic()
    where = TopicPartition(name, 0)
    produce(broker.servers, where, [b"old"] * 30)
    with planning(broker, name, fail_on_data_loss="false") as planner:
        start = planner.initial(timeout_ms=5_000)
        found = batch(planner, start)
        broker.delete_topic(name)
        broker.make_topic(name=name)
        produce(broker.servers, where, [b"new%d" % number for number in range(5)])
        again = batch(planner, found.end)
        values = [value for _, rows in again.ranges for each in rows for value in each["value"].to_pylist()]
        assert values == [b"new%d" % number for number in range(5)]
        assert again.end.topic_ids != found.end.topic_ids
        (tasks,) = AlignedStream(planner._options).tasks(found.end.to_json(), again.end.to_json())
        rows = [row for each in read_task(tasks) for row in each.to_pylist()]
        assert [row["value"] for row in rows] == values, "also when it runs again"


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_that_ends_by_itself_notices_that_a_log_is_shorter_than_its_position_also_without_ids(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """So does a log that an unclean election truncated: its topic keeps its id."""
    monkeypatch.setattr(KafkaInput, "topic_ids", lambda *_, **__: {})
    name = broker.make_topic()
    where = TopicPartition(name, 0)
    produce(broker.servers, where, [b"old"] * 30)
    with planning(broker, name) as planner:
        start = batch(planner, planner.initial(timeout_ms=5_000)).end
    broker.delete_topic(name)
    broker.make_topic(name=name)
    produce(broker.servers, where, [b"new"] * 5)
    with planning(broker, name, fail_on_data_loss=str(fails), spool="off") as planner:
        planner.finish_at_current_ends(timeout_ms=5_000)
        if fails:
            with pytest.raises(DataLostError, match="the log ends at offset 5, before offset 30"):
                planner.plan(start)
            return
        planned = planner.plan(start)
        assert planned is not None
        assert planner.plan(planned.end) is None
        (task,) = AlignedStream(planner._options).tasks(start.to_json(), planned.end.to_json())
    rows = [row for each in read_task(task) for row in each.to_pylist()]
    assert [row["value"] for row in rows] == [b"new"] * 5


@pytest.fixture(scope="module")
def flights(broker: KafkaBroker) -> str:
    """A topic of two partitions, with ten records a millisecond apart in the first."""
    name = broker.make_topic(2)
    produce(broker.servers, TopicPartition(name, 0), [b"%d" % number for number in range(10)])
    return name


def begins(broker: KafkaBroker, topic: str, **options: str) -> Mapping[int, str]:
    """The offset behind which each partition of the topic begins."""
    script = {"kafka.bootstrap.servers": broker.servers, "subscribe": topic, **options}
    planner = Planner(parse_options(script), SystemClock())
    cursors = planner.initial(timeout_ms=10_000).cursors
    return {tp.partition: cursor.offset for tp, cursor in cursors.items()}


def test_a_query_begins_where_the_options_of_sparks_kafka_source_say(broker: KafkaBroker, flights: str) -> None:
    assert begins(broker, flights) == {0: "9", 1: "-1"}, "at the ends, as in Spark"
    assert begins(broker, flights, startingOffsets="earliest") == {0: "-1", 1: "-1"}
    assert begins(broker, flights, startingOffsets=f'{{"{flights}":{{"0":4,"1":-2}}}}') == {0: "3", 1: "-1"}
    assert begins(broker, flights, startingOffsets=f'{{"{flights}":{{"0":-1,"1":-1}}}}') == {0: "9", 1: "-1"}
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert begins(broker, flights, startingTimestamp=str(FIRST_TIME_MS + 7), **latest) == {0: "6", 1: "-1"}
    times = f'{{"{flights}":{{"0":{FIRST_TIME_MS + 2},"1":{FIRST_TIME_MS}}}}}'
    assert begins(broker, flights, startingOffsetsByTimestamp=times, **latest) == {0: "1", 1: "-1"}
