"""Topics of a real broker that a pattern finds, and single partitions of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import produce
from tests.support.spark.queries import wait_until

from understudy_pipeline.aligned import shared_read_ahead
from understudy_pipeline.aligned.offset import SourceOffset
from understudy_pipeline.aligned.option_parsing import parse_options
from understudy_pipeline.aligned.planner import Planner
from understudy_pipeline.inputs.records import TopicPartition
from understudy_shared.base.clock import SystemClock


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
