"""Topics that a regular expression names."""

from __future__ import annotations

import pytest

from understudy_aligned.inputs.kafka_topics import TopicsPattern
from understudy_shared.base.errors import SettingsError


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
