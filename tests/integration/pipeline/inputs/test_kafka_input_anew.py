"""A real broker whose topics are made anew, and that is dead for a while; and where queries begin to read it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import produce
from tests.support.spark.queries import wait_until

from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.kafka_input import KafkaInput
from understudy_aligned.inputs.protocol import DataLostError
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.offset import SourceOffset
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.planner import PlannedBatch, Planner
from understudy_aligned.reading import read_task
from understudy_aligned.stream import AlignedStream
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import SettingsError

pytestmark = pytest.mark.usefixtures("taking")

FIRST_TIME_MS = 1_700_000_000_000


FAILURES = 3
"""Failures of one server, one after another: with pauses of 100 and 200 ms."""


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


def test_a_topic_that_was_made_anew_has_another_id(broker: KafkaBroker) -> None:
    name, other = broker.make_topic(), broker.make_topic()
    reads = KafkaInput(KafkaConfig(broker.servers, (name, other)))
    try:
        before = reads.topic_ids((name, other), timeout_ms=20_000)
        assert before.keys() == {name, other}
        broker.delete_topic(name)
        broker.make_topic(name=name)
        found: dict[str, str] = {}

        def are_known() -> bool:
            found.update(reads.topic_ids((name, other), timeout_ms=20_000))
            return found.keys() == {name, other}

        wait_until(are_known, what="the ids")
        assert found[other] == before[other]
        assert found[name] != before[name]
    finally:
        reads.close()


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
def test_one_that_is_made_anew_while_a_query_runs_ends_it(broker: KafkaBroker) -> None:
    name = broker.make_topic()
    where = TopicPartition(name, 0)
    produce(broker.servers, where, [b"old"] * 3)
    with planning(broker, name) as planner:
        end = batch(planner, planner.initial(timeout_ms=5_000)).end
        broker.delete_topic(name)
        broker.make_topic(name=name)
        produce(broker.servers, where, [b"new"] * 10)

        def goes_on() -> bool:
            nonlocal end
            planned = planner.plan(end)
            end = end if planned is None else planned.end
            return False

        with pytest.raises(DataLostError, match=r"created again|the log ends"):
            wait_until(goes_on, what="the loss", limit_s=60)


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


def test_a_logged_batch_is_not_read_from_a_topic_that_was_made_anew(broker: KafkaBroker) -> None:
    name = broker.make_topic()
    where = TopicPartition(name, 0)
    produce(broker.servers, where, [b"old"] * 3)
    options = parse_options({"kafka": broker.servers, "topics": name})
    planned = AlignedStream(options)
    try:
        start = planned.initial_offset()
        end = start
        wait_until(lambda: bool((planned.latest_offset(start)) != start), what="a batch", limit_s=60)
        assert planned._last is not None
        end = planned._last.end
    finally:
        planned.stop()
    again = AlignedStream(options)
    assert again.tasks(start, end)
    broker.delete_topic(name)
    broker.make_topic(name=name)
    produce(broker.servers, where, [b"new"] * 10)
    with pytest.raises(DataLostError, match="created again"):
        again.tasks(start, end)


@pytest.mark.full
def test_a_dead_broker_is_reported_once_and_is_away_until_something_came_from_it(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="understudy_aligned")
    name = broker.make_topic()
    where = TopicPartition(name, 0)
    produce(broker.servers, where, [b"before"])
    with planning(broker, name) as planner:
        end = batch(planner, planner.initial(timeout_ms=5_000)).end
        failed = _Failures(planner)
        broker.kill()
        try:
            wait_until(lambda: planner.plan(end) is None and failed.count() >= FAILURES, what="failures", limit_s=60)
            assert actions(caplog) == ["away"]
            assert list(planner.snapshot().outages) == [broker.servers]
        finally:
            broker.start()
        produce(broker.servers, where, [b"after"])
        assert batch(planner, end).end.records == 1
        wait_until(lambda: not planner.snapshot().outages, what="its return")
        assert actions(caplog) == ["away", "back"]


class _Failures:
    """Counts how often the planner's server failed."""

    def __init__(self, planner: Planner) -> None:
        self._count = 0
        shared = planner._shared
        marked = shared.mark_unreachable

        def counting(index: int, error: object) -> None:
            self._count += 1
            marked(index, error)  # type: ignore[arg-type]

        shared.mark_unreachable = counting  # type: ignore[method-assign]

    def count(self) -> int:
        return self._count


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of servers."""
    found = [record.__dict__.get("action") for record in caplog.records]
    return [str(action) for action in found if action in ("away", "back")]


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": '{"%s":{"0":11,"1":0}}'}, "has offsets from 0 to 10, not 11"),
        ({"startingOffsets": '{"%s":{"0":1}}'}, "startingOffsets leaves out .*-1"),
        ({"startingOffsets": '{"%s":{"0":1,"1":0,"2":0}}'}, "partitions that do not exist: .*-2"),
        ({"startingTimestamp": str(FIRST_TIME_MS)}, "-1 has no record at 1700000000000 ms or later"),
    ],
    ids=["beyond the end", "one left out", "one too many", "no such time"],
)
def test_a_position_that_there_is_not_begins_no_query(
    broker: KafkaBroker, flights: str, options: Mapping[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        begins(broker, flights, **{name: value.replace("%s", flights) for name, value in options.items()})
