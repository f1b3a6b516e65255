"""Topics whose numbers of partitions change while a query runs, or changed while it was stopped."""

from __future__ import annotations

import pytest
from tests.support.spark.prefetch_bench import Bench

from understudy_aligned.inputs.protocol import DataLostError
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.options import AlignedOptions
from understudy_aligned.shared_read_ahead import COUNT_INTERVAL_MS

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def test_partitions_are_asked_for_again_and_new_ones_are_read_from_their_beginning() -> None:
    bench = Bench("a", "b").ready()
    bench.turns(1)
    for topic in ("a", "b"):
        bench.server.grow(topic, 2)
        bench.server.put(topic, 1, 5, 6)
    bench.clock.advance(COUNT_INTERVAL_MS)
    bench.turns(3)
    assert bench.server.seeks[-1] == {TopicPartition("a", 1): Cursor(), TopicPartition("b", 1): Cursor()}
    assert bench.buffered(TopicPartition("a", 1)) == 2
    assert bench.lag(A) is not None, "the others were not disturbed"


def test_a_partition_that_only_one_topic_has_yet_waits_for_the_other(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("a", "b").ready()
    bench.server.grow("a", 2)
    for _ in range(2):
        bench.clock.advance(COUNT_INTERVAL_MS)
        bench.turns(2)
    assert bench.shared.ahead.tasks == {0: (A, B)}
    assert [record.__dict__["action"] for record in caplog.records] == ["uneven-partitions"], "said once"
    bench.server.grow("b", 2)
    bench.clock.advance(COUNT_INTERVAL_MS)
    bench.turns(1)
    assert list(bench.shared.ahead.tasks) == [0, 1]


def test_a_query_over_topics_of_which_one_grew_is_started_again_and_reads_what_it_read() -> None:
    bench = Bench("a", "b")
    bench.server.grow("b", 3)
    bench.shared.ahead.seek_to({A: Cursor("3", 4, 9)})
    bench.turns(1)
    assert bench.shared.ahead.tasks == {0: (A, B)}
    assert bench.shared.ahead.unread == (TopicPartition("b", 1), TopicPartition("b", 2))


def test_a_topic_that_lost_partitions_does_not_end_a_query_that_may_lose_data() -> None:
    bench = Bench("a", "b", options=AlignedOptions(inputs=(), topics=(), fail_on_data_loss=False))
    bench.server.grow("a", 2)
    last = {TopicPartition(topic, 1): Cursor("3", 4, 9) for topic in ("a", "b")}
    bench.shared.ahead.seek_to({A: Cursor("3", 4, 9), B: Cursor("3", 4, 9), **last})
    bench.turns(1)
    assert bench.shared.ahead.tasks == {0: (A, B)}
    assert bench.shared.ahead.unread == (TopicPartition("a", 1),)


@pytest.mark.parametrize("fails", [True, False])
def test_a_partition_that_vanished_is_lost_data(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("a", options=AlignedOptions(inputs=(), topics=(), fail_on_data_loss=fails))
    bench.shared.ahead.seek_to({TopicPartition("a", 1): Cursor("3", 4, 9)})
    if fails:
        with pytest.raises(DataLostError, match="a-1"):
            bench.turns(1)
    else:
        bench.turns(1)
        assert [record.__dict__["action"] for record in caplog.records] == ["data-lost"]
        assert list(bench.shared.ahead.retained) == [A]
