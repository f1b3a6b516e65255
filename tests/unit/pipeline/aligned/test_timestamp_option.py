"""The option `timestamp`: how rules are written, for all topics and for one."""

from __future__ import annotations

import pytest

from understudy_aligned.inputs.timestamps import TimestampRule, TimestampRules
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.options import parse_timestamps
from understudy_shared.base.errors import SettingsError

RECORD, AT = TimestampRule(), TimestampRule("json", "at")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("record", TimestampRules()),
        ("json:at", TimestampRules(AT)),
        ("json:a,b", TimestampRules(TimestampRule("json", "a,b"))),
        ("json:/a/b", TimestampRules(TimestampRule("json", "/a/b"))),
        ("header:event-time", TimestampRules(TimestampRule("header", "event-time"))),
        ("weather:json:at", TimestampRules(RECORD, (("weather", AT),))),
        ("json:at, weather:record", TimestampRules(AT, (("weather", RECORD),))),
        ("record,b:json:at,a:header:h", TimestampRules(RECORD, (("a", TimestampRule("header", "h")), ("b", AT)))),
        ("record,site:a:json:at", TimestampRules(RECORD, (("site:a", AT),))),
    ],
)
def test_a_rule_is_of_all_topics_or_of_the_topic_before_it(text: str, expected: TimestampRules) -> None:
    assert parse_timestamps(text) == expected
    assert parse_timestamps(expected.text) == expected, "the fingerprint says the same"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jsn:at", "'jsn:at' is not a rule"),
        ("json:", "'json:' is not a rule"),
        ("records", "'records' is not a rule"),
        ("confluent-json:at", "is not a rule"),
        ("record,weather:json:at,weather:record", "'weather' has two rules"),
        ("avro:no-such.avsc#/at", "no-such.avsc cannot be read: No such file"),
        ("avro:all.avsc", "is not a rule"),
        ("avro:all.avsc#at", "does not look like <file>#/<field>"),
        ("protobuf:all.desc#/at", "does not look like <file>#<message>/<field>"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_form_of_one(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse_timestamps(text)


def test_what_has_no_usable_timestamp_is_kept_where_records_have_their_own_and_else_ends_the_query() -> None:
    given = {"kafka": "localhost:9092", "topics": "a,b", "timestamp": "record,b:json:at"}
    usual, refused, chosen = (
        parse_options({**given, **more}) for more in ({}, {"undecodable": "skip"}, {"undecodable": "a:skip"})
    )
    assert [usual.undecodable_of(topic) for topic in "ab"] == ["keep", "fail"]
    assert [refused.undecodable_of(topic) for topic in "ab"] == ["skip", "skip"]
    assert [chosen.undecodable_of(topic) for topic in "ab"] == ["skip", "fail"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"redis": "redis://localhost", "topics": "a", "timestamp": "header:at"}, "'a' come from redis"),
        (
            {"kafka": "localhost:9092", "topics": "a", "timestamp": "b:json:at"},
            "'b', which this query does not read",
        ),
    ],
)
def test_a_rule_that_can_hold_for_no_record_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse_options(options)
