"""The Kafka input's configuration: checked where it is made, pickled as it is, and silent about secrets."""

from __future__ import annotations

import pickle

import pytest

from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.open_inputs import open_input, open_reader
from understudy_shared.base.errors import SettingsError


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
