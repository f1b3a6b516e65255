"""The example's operator, without Spark: whatever the batches are, each flight has the weather of the oracle."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from docs.examples import asof_join
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester
from tests.support.spark.asof_world import Joined, Records, as_of_join, flight_id
from tests.support.spark.weather import Weather

from understudy.demo.flights import Flight, utc_text

NOON = 1_357_041_600
hours = st.integers(0, 5)


def flight(number: int, event_time: int) -> Flight:
    return Flight(event_time, "UA", number, None, "EWR", "IAH", None, 2, None)


def weather(event_time: int, temp: float) -> Weather:
    return Weather(event_time, "EWR", temp, *[None] * 8)


def merged(records: Records) -> list[Row]:
    """Rows of one airport as the source gives them, in merge order."""
    rows = []
    topics: dict[str, Sequence[Flight | Weather]] = {"weather": records.weather, "flights": records.flights}
    for rank, (topic, found) in enumerate(topics.items()):
        for ordinal, record in enumerate(found):
            time = {"batch": 1, "effective_ms": record.event_time * 1000}
            place = {**time, "topic_rank": rank, "partition": 0, "ordinal": ordinal}
            fields = dict.fromkeys(("carrier", "flight", "temp", "wind_speed", "visib"))
            known = {name: value for name, value in record._asdict().items() if name in fields}
            event_time = utc_text(record.event_time)
            rows.append(
                Row(**{**fields, **known, "topic": topic, "origin": record.origin, "merge_order": place,
                       "event_time": event_time})
            )  # fmt: skip
    return sorted(rows, key=lambda row: tuple(row.merge_order.values()))


def joined(batches: Sequence[list[Row]]) -> Joined:
    """What the operator makes of the rows in these batches, each of them mixed up."""
    tester = TwsTester(asof_join.LatestWeather())
    out = [row for batch in batches if batch for row in tester.test("EWR", batch[::-1])]
    rows = {
        (row.carrier, row.flight, row.event_time): (row.weather_time, row.temp, row.wind_speed, row.visib)
        for row in out
    }
    return Joined(rows, len(out) - len(rows), len(batches))


@given(st.sets(hours), st.lists(st.integers(0, 5 * 60)), st.lists(st.integers(0, 100), max_size=4))
def test_however_the_merge_is_cut_into_batches_each_flight_has_the_oracles_weather(
    weather_hours: set[int], minutes: list[int], cuts: list[int]
) -> None:
    records = Records(
        [flight(number, NOON + 60 * minute) for number, minute in enumerate(sorted(minutes))],
        [weather(NOON + 3600 * hour, float(hour)) for hour in sorted(weather_hours)],
    )
    rows = merged(records)
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    found = joined([rows[start:end] for start, end in itertools.pairwise(bounds)])
    assert found.rows == as_of_join(records)
    assert found.duplicates == 0


def test_weather_of_the_same_minute_counts_and_later_weather_does_not() -> None:
    records = Records(
        [flight(1, NOON - 60), flight(2, NOON), flight(3, NOON + 3599), flight(4, NOON + 3600)],
        [weather(NOON, 50.0), weather(NOON + 3600, 60.0)],
    )
    oracle = as_of_join(records)
    assert [oracle[flight_id(one)][1] for one in records.flights] == [None, 50.0, 50.0, 60.0]
    assert joined([merged(records)]).rows == oracle
