"""KIP-695, statement 34, where an input was passed over: the least *head timestamp* is next, and nobody starves.

The reference keeps logs and positions and compares the timestamps of heads, record by record, as `PartitionGroup` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.record_at_a_time_merge import TOPICS, pop_all, tp
from tests.support.spark.scripted_input import ScriptedRecord, chunk_of

from understudy_aligned.batch_plan import limit_counts
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.partition_buffer import Retained

A, B, C = (tp(topic) for topic in TOPICS)


class Inputs:
    """What is retained of three inputs, and the reference beside it. Every input may be passed over."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[int]] = {A: [], B: [], C: []}
        self.retained = {each: Retained(each, Cursor()) for each in self.logs}
        self.places = dict.fromkeys(self.logs, 0)

    def arrive(self, each: TopicPartition, *timestamps_ms: int) -> None:
        first = len(self.logs[each])
        self.retained[each].add(chunk_of(each, [ScriptedRecord(at) for at in timestamps_ms], first=first))
        self.logs[each] += timestamps_ms

    def batch(self, limit: int) -> list[tuple[TopicPartition, int]]:
        """The timestamps of the next records, at most `limit`, in the order in which the source gives them."""
        queues = [held.queue(TOPICS.index(each.topic)) for each, held in self.retained.items()]
        everything = {queue.partition: len(queue.times_ms) for queue in queues}
        counts = limit_counts(queues, everything, limit)
        heads = [queue._replace(times_ms=queue.times_ms[: counts[queue.partition]]) for queue in queues]
        order = pop_all(heads, may_pass=set(everything)).taken
        taken = [(each, self.logs[each][self.places[each] + index]) for each, index in order]
        for each, count in counts.items():
            if count:
                self.retained[each].take(count)
                self.places[each] += count
        return taken

    def by_kafka(self, limit: int) -> list[tuple[TopicPartition, int]]:
        """The same by the reference, which moves nothing."""
        places, taken = dict(self.places), list[tuple[TopicPartition, int]]()
        while len(taken) < limit:
            heads = [
                (log[places[each]], TOPICS.index(each.topic), each)
                for each, log in self.logs.items()
                if places[each] < len(log)
            ]
            if not heads:
                break
            timestamp_ms, _, each = min(heads)
            taken.append((each, timestamp_ms))
            places[each] += 1
        return taken


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([A, B, C]), st.lists(st.integers(0, 20), min_size=1, max_size=4)),
        st.tuples(st.none(), st.integers(1, 6)),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_statement_34_the_least_head_timestamp_is_next_also_where_inputs_were_passed_over(
    steps: Sequence[tuple[TopicPartition | None, object]],
) -> None:
    at = Inputs()
    for each, what in [*steps, (None, 10**6)]:
        if each is not None:
            assert isinstance(what, list)
            at.arrive(each, *what)
        else:
            assert isinstance(what, int)
            expected = at.by_kafka(what)
            assert at.batch(what) == expected
