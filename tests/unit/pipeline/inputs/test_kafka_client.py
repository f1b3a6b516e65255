"""Kafka's configuration, checked where it is made and silent about secrets; calls to librdkafka, and when they happen;
where a reader begins; and topics that a regular expression names. Their effect is tested with brokers
(tests/integration).
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from hypothesis import given
from hypothesis import strategies as st

from understudy_aligned.inputs.kafka_client import KafkaClient, KafkaConfig, partition_fetch_bytes
from understudy_aligned.inputs.kafka_reader import (
    FetchPosition,
    describe_loss,
    end_cursor,
    next_offset,
    records_in_all,
    unknown_topic,
)
from understudy_aligned.inputs.kafka_topics import TopicsPattern
from understudy_aligned.inputs.records import ROW_SCHEMA, Chunk, TopicPartition
from understudy_aligned.open_inputs import open_input, open_reader
from understudy_shared.base.errors import SettingsError

MOST_AT_ONCE = 1_000
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


MIB = 1 << 20


class RecordingConsumer:
    """Holds so many messages, which are numbers, and keeps what it was asked."""

    def __init__(self, *_: object) -> None:
        self.asked: list[tuple[str, object]] = []
        self.buffered: list[int] = []
        self.is_away = False

    def list_topics(self, topic: str, *, timeout: float) -> None:
        assert 0 < timeout <= 1
        self.asked.append(("leaders", topic))
        if self.is_away:
            raise KafkaException("away")

    def assign(self, partitions: Sequence[KafkaPartition]) -> None:
        self.asked.append(("assign", {each.topic for each in partitions}))

    def poll(self, _: float) -> int | None:
        return self.buffered.pop(0) if self.buffered else None

    def consume(self, count: int, timeout: float) -> list[int]:
        assert timeout == 0, "only the first is waited for"
        self.asked.append(("consume", count))
        taken, self.buffered = self.buffered[:count], self.buffered[count:]
        return taken


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> RecordingConsumer:
    made = RecordingConsumer()
    monkeypatch.setattr("understudy_aligned.inputs.kafka_client.Consumer", lambda _: made)
    return made


def test_leaders_of_a_topic_are_asked_for_once_and_before_it_is_read(consumer: RecordingConsumer) -> None:
    client = KafkaClient("server", {})
    client.assign({A: 0})
    client.assign({A: 5})
    client.assign({A: 5, B: 0})
    assert consumer.asked == [
        ("leaders", "a"),
        ("assign", {"a"}),
        ("assign", {"a"}),
        ("leaders", "b"),
        ("assign", {"a", "b"}),
    ]


def test_leaders_that_are_not_found_hold_up_nothing_and_are_asked_for_again(consumer: RecordingConsumer) -> None:
    client = KafkaClient("server", {})
    consumer.is_away = True
    client.assign({A: 0})
    client.assign({A: 0})
    assert consumer.asked == [("leaders", "a"), ("assign", {"a"})] * 2


@pytest.mark.parametrize("held", [0, 1, 999, 1_000, 1_001, 2_500, 9_000])
@pytest.mark.parametrize("wanted", [1, 1_000, 1_001, 2_500])
def test_messages_come_in_order_and_no_more_of_them_than_wanted_and_few_in_one_call(
    consumer: RecordingConsumer, held: int, wanted: int
) -> None:
    consumer.buffered = list(range(held))
    messages: list[object] = list(KafkaClient("server", {}).messages(wanted, wait_s=0))
    assert messages == list(range(min(held, wanted)))
    assert all(isinstance(count, int) and 0 < count <= MOST_AT_ONCE for _, count in consumer.asked)


@pytest.mark.parametrize(
    ("memory", "partitions", "each"),
    [
        pytest.param(512 * MIB, 20, MIB, id="few partitions bring what Kafka brings by default"),
        pytest.param(512 * MIB, 512, MIB // 2, id="all together bring half of the memory"),
        pytest.param(64 * MIB, 5_000, MIB // 16, id="an answer is worth its cost"),
        pytest.param(64 * MIB, 0, MIB, id="no partition yet"),
    ],
)
def test_what_one_answer_brings_of_a_partition_leaves_memory_for_all_others(
    memory: int, partitions: int, each: int
) -> None:
    assert partition_fetch_bytes(memory, partitions) == each


@pytest.mark.parametrize(
    ("properties", "found"), [({}, f"{MIB // 2}"), ({"max.partition.fetch.bytes": "7000"}, "7000")]
)
def test_a_consumer_of_records_is_told_so_unless_its_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], found: str
) -> None:
    told: list[dict[str, object]] = []

    def make(given: dict[str, object]) -> RecordingConsumer:
        told.append(given)
        return RecordingConsumer()

    monkeypatch.setattr("understudy_aligned.inputs.kafka_client.Consumer", make)
    KafkaClient("server", properties, buffer_bytes=2 * MIB).assign({A: 0, B: 0})
    assert [given["max.partition.fetch.bytes"] for given in told] == [found]


def config(*properties: tuple[str, str]) -> KafkaConfig:
    return KafkaConfig("k1:9092,k2:9092", ("weather",), properties)


@pytest.mark.parametrize(
    "name",
    [
        "group.id",
        "enable.auto.commit",
        "auto.offset.reset",
        "enable.partition.eof",
        "bootstrap.servers",
        "allow.auto.create.topics",
        "Group.ID",
    ],
)
def test_properties_that_decide_positions_are_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match=f"'{name}' cannot be set"):
        config((name, "latest"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("key.deserializer", "x"), ("isolation.level", "sometimes"), ("ssl.ca.location", "/no/such/file")],
    ids=["the Java client's", "no such value", "no such file"],
)
def test_a_property_that_the_client_refuses_is_reported_before_anything_is_read(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match="client refuses"):
        config((name, value), ("security.protocol", "ssl"))


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"sasl.oauthbearer.method": "hunter2"}, 'Invalid value "***" for configuration'),
        ({"sasl.password": "a", "isolation.level": "sometimes"}, 'Invalid value "sometimes" for configuration'),
    ],
    ids=["the secret", "a secret that is a letter of other words"],
)
def test_what_the_client_says_of_a_property_hides_secrets_and_no_part_of_other_words(
    properties: dict[str, str], said: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        config(*properties.items())
    assert said in str(refused.value)


def test_secrets_are_in_no_repr_and_survive_pickling() -> None:
    made = config(
        ("sasl.password", "hunter2"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "me"),
        ("isolation.level", "read_uncommitted"),
    )
    assert "hunter2" not in repr(made)
    assert "sasl.password=..." in repr(made)
    assert "isolation.level=read_uncommitted" in repr(made)
    assert "hunter2" not in made.server
    assert pickle.loads(pickle.dumps(made)) == made


def test_given_properties_win_over_defaults_and_never_over_what_the_source_needs() -> None:
    made = config(("isolation.level", "read_uncommitted"), ("fetch.wait.max.ms", "7")).client_properties
    assert made["isolation.level"] == "read_uncommitted"
    assert made["fetch.wait.max.ms"] == "7"
    assert made["auto.offset.reset"] == "error"
    assert config().client_properties["isolation.level"] == "read_committed"


def test_only_what_is_always_polled_makes_statistics_and_their_interval_can_be_given() -> None:
    given = config(("statistics.interval.ms", "1000"))
    assert (config().statistics_interval_ms, given.statistics_interval_ms) == (5_000, 1_000)
    assert {each.client_properties["statistics.interval.ms"] for each in (config(), given)} == {"0"}


def test_opening_needs_no_broker() -> None:
    open_input(config()).close()
    open_reader(config()).close()


WHERE = TopicPartition("weather", 0)


def chunk(offsets: list[int]) -> Chunk:
    """Records with gaps between them; the size of each is its offset."""
    columns = [pa.array([str(offset) for offset in offsets]), pa.array(offsets, pa.int64())]
    columns += [pa.nulls(len(offsets), field.type) for field in list(ROW_SCHEMA)[2:]]
    return Chunk(WHERE, pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA), np.asarray(offsets))


def test_statement_44_a_lag_is_never_below_zero() -> None:
    assert FetchPosition(100).lag(end=90) == 0


def test_what_lies_between_the_last_record_and_an_end_that_was_reached_is_no_lag() -> None:
    place = FetchPosition(0)
    place.advance(chunk([0, 1, 2]))
    assert place.lag(5) == 2
    place.mark_end(5)  # two commit markers
    assert place.lag(5) == 0
    assert place.lag(9) == 4


@given(counts=st.lists(st.integers(1, 10_000), max_size=20))
def test_a_fetch_brings_about_the_sum_of_what_is_wanted_and_one_record_where_there_is_room_for_none(
    counts: list[int],
) -> None:
    assert sum(counts) - len(counts) < records_in_all(counts) <= max(1, sum(counts))
    assert records_in_all([1] * len(counts)) == 1


@given(end=st.integers(0, 2**40))
def test_a_reader_of_what_comes_next_begins_at_the_end(end: int) -> None:
    cursor = end_cursor(end)
    assert next_offset(cursor) == cursor.ordinal == end


@given(low=st.integers(0, 50), length=st.integers(0, 50), position=st.integers(0, 150))
def test_a_position_is_lost_exactly_outside_of_the_log(low: int, length: int, position: int) -> None:
    lost = describe_loss(position, low=low, end=low + length)
    assert (lost is None) == (low <= position <= low + length)
    assert lost is None or str(position) in lost


def test_an_unknown_topic_is_reported_with_names_like_it_or_all_there_are() -> None:
    assert "Did you mean weather?" in str(unknown_topic("wether", ["flights", "weather"], "k:9092"))
    assert "There are: flights, weather" in str(unknown_topic("trades", ["flights", "weather"], "k:9092"))
    assert "There are: none" in str(unknown_topic("trades", [], "k:9092"))


@pytest.mark.parametrize(
    ("text", "topic", "is_named"),
    [
        ("flights", "flights", True),
        ("flights", "old-flights-eu", True),
        ("^flights$", "old-flights-eu", False),
        ("flights-(eu|us)", "flights-us", True),
        ("(?i)FLIGHTS", "flights", True),
        ("flights", "Flights", False),
        (".*", "_schemas", True),
    ],
)
def test_a_pattern_is_looked_for_anywhere_in_a_name_as_spark_does(text: str, topic: str, *, is_named: bool) -> None:
    assert (topic in TopicsPattern(text)) is is_named


@pytest.mark.parametrize("text", ["a(", r"\p{Alpha}", "[a-z&&[^b]]", "[a-c[x-z]]", "a{99999999999}", "(" * 5_000])
def test_what_python_does_not_understand_of_javas_syntax_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"is not a regular expression.*option topics_pattern.*Python's re"):
        TopicsPattern(text)
