"""Topics of a real broker that a pattern finds, and single partitions of it."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import produce
from tests.support.spark.queries import wait_until

from understudy_aligned import shared_read_ahead
from understudy_aligned.inputs.protocol import DataLostError
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.offset import SourceOffset
from understudy_aligned.open_inputs import check_inputs
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.planner import Planner
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import SettingsError


@pytest.fixture
def prefix(monkeypatch: pytest.MonkeyPatch) -> str:
    """The beginning of the names of this test's topics; partitions are counted often."""
    monkeypatch.setattr(shared_read_ahead, "COUNT_INTERVAL_MS", 300)
    return f"p{uuid.uuid4().hex[:8]}"


@contextmanager
def planning(broker: KafkaBroker, **options: str) -> Iterator[Planner]:
    planner = Planner(parse_options({"kafka": broker.servers, **options}), SystemClock())
    try:
        yield planner
    finally:
        planner.stop()


class Query:
    """The batches of a planner, one after another, and the values that came."""

    def __init__(self, planner: Planner, offset: SourceOffset | None = None) -> None:
        self._planner = planner
        self.offset = offset or planner.initial(timeout_ms=10_000)
        self.values: list[bytes] = []

    def until(self, *values: bytes) -> None:
        """Go on until these have come since the last call, in any order."""
        self.values.clear()
        wait_until(lambda: self._goes_on() and len(self.values) >= len(values), what="records", limit_s=60)
        assert sorted(self.values) == sorted(values)

    def until_lost(self) -> None:
        """Go on until an error."""
        wait_until(lambda: self._goes_on() and False, what="an error", limit_s=60)

    def _goes_on(self) -> bool:
        batch = self._planner.plan(self.offset)
        if batch is not None:
            self.offset = batch.end
            self.values += [value for _, rows in batch.ranges for each in rows for value in each["value"].to_pylist()]
        return True


def put(broker: KafkaBroker, topic: str, *values: bytes, partition: int = 0) -> None:
    produce(broker.servers, TopicPartition(topic, partition), values)


def found(offset: SourceOffset) -> Sequence[str]:
    topics = offset.fingerprint["topics"]
    assert isinstance(topics, list)
    return [topic.rpartition("-")[2] for topic in topics]


def test_topics_that_appear_later_are_read_and_keep_their_places_when_the_query_is_started_again(
    broker: KafkaBroker, prefix: str
) -> None:
    options = {"topics_pattern": f"^{prefix}-"}
    with planning(broker, **options) as planner:
        query = Query(planner)
        broker.make_topic(name=f"{prefix}-b")
        put(broker, f"{prefix}-b", b"b0")
        broker.make_topic(name=f"other-{prefix}-x")
        query.until(b"b0")
        broker.make_topic(name=f"{prefix}-a")
        put(broker, f"{prefix}-a", b"a0", b"a1")
        query.until(b"a0", b"a1")
        assert found(query.offset) == ["b", "a"]
        assert query.offset.topic_ids.keys() == {f"{prefix}-b", f"{prefix}-a"}
    broker.make_topic(name=f"{prefix}-0")
    put(broker, f"{prefix}-0", b"new")
    with planning(broker, **options) as planner:
        again = Query(planner, query.offset)
        again.until(b"new")
        assert found(again.offset) == ["b", "a", "0"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_deleted_ends_the_query_or_is_left_out_where_data_may_be_lost(
    broker: KafkaBroker, prefix: str, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    caplog.set_level(logging.WARNING)
    for name in ("a", "b"):
        broker.make_topic(name=f"{prefix}-{name}")
        put(broker, f"{prefix}-{name}", name.encode())
    with planning(broker, topics_pattern=prefix, fail_on_data_loss=str(fails)) as planner:
        query = Query(planner)
        query.until(b"a", b"b")
        broker.delete_topic(f"{prefix}-a")
        if fails:
            with pytest.raises(DataLostError, match=f"do not exist any more: {prefix}-a-0"):
                query.until_lost()
        else:
            wait_until(lambda: planner.snapshot().losses == 1, what="the loss")
            put(broker, f"{prefix}-b", b"b1")
            query.until(b"b1")
            wait_until(lambda: not planner.snapshot().outages, what="an input that is well")
            assert found(query.offset) == ["a", "b"]


def test_only_assigned_partitions_are_read_and_one_that_does_not_exist_is_refused(broker: KafkaBroker) -> None:
    topic = broker.make_topic(3)
    for partition in range(3):
        put(broker, topic, b"%d" % partition, partition=partition)
    with planning(broker, assign=json.dumps({topic: [0, 2]}), starting="earliest") as planner:
        query = Query(planner)
        query.until(b"0", b"2")
        assert {tp.partition for tp in query.offset.cursors} == {0, 2}
    options = parse_options({"kafka": broker.servers, "assign": json.dumps({topic: [3]})})
    with pytest.raises(SettingsError, match=rf"do not exist: {topic}-3 .*{topic} has 3"):
        check_inputs(options)
