"""`longs=string` reaches every whole number that an answer of any kind of store says of a key, and no other."""

from __future__ import annotations

import orjson
import pytest

from understudy_shared.http.lookup_requests import longs_as_text

LARGE = 2**63 - 1


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        ({"value": {"n": LARGE}}, {"value": {"n": str(LARGE)}}),
        ({"values": [{"value": {"n": LARGE}}]}, {"values": [{"value": {"n": str(LARGE)}}]}),
        (
            {"entries": [{"key": {"day": LARGE}, "value": {"n": 1.0}}]},
            {"entries": [{"key": {"day": str(LARGE)}, "value": {"n": 1.0}}]},
        ),
        ({"timers": ["2024-03-01T00:00:00.000000Z"]}, {"timers": ["2024-03-01T00:00:00.000000Z"]}),
    ],
    ids=["value", "list", "map", "timers"],
)
def test_whole_numbers_of_what_was_found_are_texts(said: dict[str, object], texts: dict[str, object]) -> None:
    answer = {"key": {"k": LARGE}, "found": True, "version": 7}
    expected = {**answer, "key": {"k": str(LARGE)}, **texts}
    assert orjson.loads(longs_as_text(orjson.dumps({**answer, **said}))) == expected
    batch = {"results": [{**answer, **said}]}
    assert orjson.loads(longs_as_text(orjson.dumps(batch))) == {"results": [expected]}
