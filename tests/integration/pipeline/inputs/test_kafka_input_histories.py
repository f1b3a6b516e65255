"""Random histories of a Kafka log that grows, shrinks and is compacted under a query that starts again and again.

Whatever happens, each record comes once, as it was written, in the order of its partition; and what does not come was
compacted, or is a loss that a warning names.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.support.kafka.broker import KafkaBroker
from tests.support.spark.planned_query import logged

from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.reading import read_task
from understudy_aligned.stream import AlignedStream, Json

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("taking")]

STEPS = 40
KEYS = 3
MOST_PARTITIONS = 4
COMPACTED = {"cleanup.policy": "compact,delete", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0.01"}
VALUE_BYTES = 3_000
"""So many that segments are rolled, and so can be compacted, within a history."""

END_S = 30

Written = tuple[bytes, bytes]
"""A record's key and value."""


class Story:
    """A history: what was written and deleted, and what a query took, batch by batch."""

    def __init__(self, broker: KafkaBroker, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = broker
        self.topics = (broker.make_topic(1), broker.make_topic(1, config=COMPACTED))
        self.partitions = 1
        self.written: dict[TopicPartition, list[Written]] = defaultdict(list)
        self.lows: dict[TopicPartition, int] = defaultdict(int)
        self.taken: dict[TopicPartition, list[int]] = defaultdict(list)
        self._producer = self._new_producer()
        given = {"kafka": broker.servers, "topics": ",".join(self.topics), "fail_on_data_loss": "false"}
        given |= {"max_task_idle_ms": "-1", "spool": str(folder / "spool"), "max_poll_records": "50"}
        self._options = parse_options(given)
        self._stream = AlignedStream(self._options)
        self._at: Json = logged(self._stream.initial_offset())

    def places(self) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for topic in self.topics for partition in range(self.partitions)]

    def write(self) -> None:
        """Append a few records to one partition, or many."""
        self.append(self.chance.choice(self.places()), self.chance.choice([1, 5, 60]))

    def append(self, place: TopicPartition, count: int) -> None:
        for _ in range(count):
            log = self.written[place]
            key = b"%d" % self.chance.randrange(KEYS)
            value = b"%s %d " % (key, len(log)) + bytes(VALUE_BYTES)
            self._producer.produce(place.topic, value, key, partition=place.partition, timestamp=1_000 + len(log))
            log.append((key, value))
        assert self._producer.flush(END_S) == 0

    def delete(self) -> None:
        """Let retention remove the beginning of a partition's log, perhaps all of it."""
        place = self.chance.choice(self.places())
        low = self.chance.randint(self.lows[place], len(self.written[place]))
        if low == self.lows[place]:
            return
        self.broker.delete_records(place, low)
        self.lows[place] = low

    def grow(self) -> None:
        """Give both topics another partition, which may have lost records before the query sees it."""
        if self.partitions < MOST_PARTITIONS:
            self.partitions += 1
            for topic in self.topics:
                self.broker.grow_topic(topic, self.partitions)
            self._producer = self._new_producer()  # one that knows the new partitions

    def run(self) -> None:
        """Run a batch, if there is one, and commit it."""
        self._commit(logged(self._stream.latest_offset(self._at)))

    def run_again(self) -> None:
        """Log a batch and end; another run of the query reads it again, from what is left."""
        end = logged(self._stream.latest_offset(self._at))
        self.start_again()
        self._commit(end)

    def start_again(self) -> None:
        """End the query, and start it from its checkpoint."""
        self._stream.stop()
        self._stream = AlignedStream(self._options)

    def finish(self) -> None:
        """Run the query until the last record of each partition came."""
        for place in self.places():
            self.append(place, 1)
        while any(self.taken[place][-1:] != [len(self.written[place]) - 1] for place in self.places()):
            self.run()
        self._stream.stop()

    def _new_producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.broker.servers, "linger.ms": 0})

    def _commit(self, end: Json) -> None:
        if end == self._at:
            return
        for task in self._stream.tasks(self._at, end):
            for batch in read_task(task):
                for row in batch.to_pylist():
                    place = TopicPartition(row["topic"], row["partition"])
                    assert (row["key"], row["value"]) == self.written[place][row["offset"]]
                    self.taken[place].append(row["offset"])
        self._at = end


SEEDS = [
    1,
    *(pytest.param(seed, marks=pytest.mark.full) for seed in (2, 3)),
    *(pytest.param(seed, marks=[pytest.mark.full, pytest.mark.nightly]) for seed in range(4, 13)),
]

STEP_WEIGHTS = {Story.write: 6, Story.run: 6, Story.delete: 2, Story.run_again: 2, Story.start_again: 1, Story.grow: 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_each_record_comes_once_in_order_or_was_compacted_or_is_a_loss_that_is_reported(
    broker: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    story = Story(broker, tmp_path, seed)
    with caplog.at_level(logging.WARNING):
        for step in story.chance.choices(list(STEP_WEIGHTS), list(STEP_WEIGHTS.values()), k=STEPS):
            step(story)
        story.finish()
    assert {place: sorted(set(taken)) for place, taken in story.taken.items()} == story.taken
    reported = {_place(vars(record)) for record in caplog.records if vars(record).get("action") == "data-lost"}
    counted = Counter[TopicPartition]()
    for each in (vars(record) for record in caplog.records if vars(record).get("action") == "compacted"):
        counted[_place(each)] += each["records"]
    for place in story.places():
        missing = set(range(len(story.written[place]))) - set(story.taken[place])
        deleted = {offset for offset in missing if offset < story.lows[place]}
        superseded = {
            offset for offset in missing if place.topic == story.topics[1] and _is_superseded(story, place, offset)
        }
        assert missing <= deleted | superseded
        assert counted[place] <= len(superseded), f"{place}: records count as compacted that are not"
        if deleted - superseded:
            assert place in reported, f"{place}: {sorted(deleted - superseded)} are lost in silence"
        if place in reported:
            assert deleted, f"{place}: a loss was reported that there was not"


def _is_superseded(story: Story, place: TopicPartition, offset: int) -> bool:
    """Whether a later record has the same key, so that compaction may have removed this one."""
    key, _ = story.written[place][offset]
    return any(later == key for later, _ in story.written[place][offset + 1 :])


def _place(fields: Mapping[str, object]) -> TopicPartition:
    return TopicPartition(str(fields["topic"]), int(str(fields["partition"])))
