"""A query of `transformWithState`: values, lists and maps, with TTL and without, and timers.

Two operators beside each other: one keeps processing time, so that it has TTL, one event time. What has a short TTL has
expired when it is read, and Spark removes it in the next batch; what has a long one has not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.spark.kinds import KINDS_SCHEMA, WATERMARK_DELAY, kinds_batches

CUSTOM_SCHEMA, custom_batches = KINDS_SCHEMA, kinds_batches

VARIABLES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "diary": {
            "weather": "value",
            "mood": "value",
            "trips": "list",
            "fading": "list",
            "places": "map",
            "rumours": "map",
            "promises": "map",
        },
        "alarms": {"weather": "value", "calls": "list"},
    }
)
"""The state variables of each operator, by kind; one name is of both."""
EXPIRED: Final = frozenset({"mood", "rumours"})
"""Those with a TTL of a millisecond. That of others is thirty days."""


def _diary(source: DataFrame) -> DataFrame:
    """Values, lists and maps of a key that may be null."""

    class Diary(StatefulProcessor):  # in here, so that Spark's worker gets it whole
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.weather = handle.getValueState("weather", "n long, sky struct<n: long, s: string>")
            self.mood = handle.getValueState("mood", "s string", 1)
            self.trips = handle.getListState("trips", "n long, s string")
            self.fading = handle.getListState("fading", "n long", 2_592_000_000)
            self.places = handle.getMapState("places", "place string, part double", "visits long, s string")
            self.rumours = handle.getMapState("rumours", "place string", "n long", 1)
            self.promises = handle.getMapState("promises", "day int", "n long", 2_592_000_000)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            numbers = [row["n"] for row in rows]
            seen = self.weather.get()[0] if self.weather.exists() else 0
            total = seen + len(numbers)
            self.weather.update((total, (total, "日本語é") if total % 2 else None))
            self.mood.update(("calm" if total % 2 else "",))
            if total > 3:
                self.trips.clear()
                self.places.removeKey(("p0", 0.5))
            if not self.trips.exists():
                self.trips.put([(-1, ""), (-2, None)])
            for number in numbers:
                self.trips.appendValue((number, "x" * (total % 3)))
            self.trips.appendList([(total, "last,"), (total, None)])
            self.fading.appendList([(number,) for number in numbers])
            for at in range(total % 5):
                self.places.updateValue((f"p{at}", at / 2), (total, None if at else "first"))
                self.rumours.updateValue((f"p{at}",), (total,))
                self.promises.updateValue((total * 10 + at,), (total,))
            now = timerValues.getCurrentProcessingTimeInMs()
            self.handle.registerTimer(now + 1)
            self.handle.registerTimer(now + 86_400_000 + total)
            yield Row(said=str(total))

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
            yield Row(said="expired")

        def close(self) -> None:
            pass

    keyed = source.select(F.col("k").alias("word"), "d", "n").groupBy("word", "d")
    return keyed.transformWithState(Diary(), "said string", "append", "ProcessingTime")


def _alarms(source: DataFrame) -> DataFrame:
    """Timers in event time, by pandas."""

    class Alarms(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.weather = handle.getValueState("weather", "n long")
            self.calls = handle.getListState("calls", "at timestamp, n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            import pandas  # type: ignore[import-untyped]  # in Spark's worker

            for frame in rows:
                seen = self.weather.get()[0] if self.weather.exists() else 0
                self.weather.update((seen + len(frame),))
                for at, count in zip(frame["event"], frame["n"], strict=True):
                    self.calls.appendValue((at.to_pydatetime(), None if pandas.isna(count) else int(count)))
                    self.handle.registerTimer(int(at.timestamp() * 1000) + 600_000)
            yield pandas.DataFrame({"said": [key[0]]})

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
            import pandas

            if key[0] == "key-0":
                self.calls.clear()
            yield pandas.DataFrame({"said": ["expired"]})

        def close(self) -> None:
            pass

    keyed = source.where("k is not null").select(F.col("k").alias("who"), "event", "n").groupBy("who")
    return keyed.transformWithStateInPandas(Alarms(), "said string", "append", "EventTime")


OPERATORS: Final[Mapping[str, Callable[[DataFrame], DataFrame]]] = MappingProxyType(
    {"diary": _diary, "alarms": _alarms}
)


def build_custom(source: DataFrame, operators: Sequence[str] = tuple(OPERATORS)) -> DataFrame:
    source = source.withWatermark("event", WATERMARK_DELAY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PySpark, about pandas 3
        return reduce(DataFrame.unionAll, [OPERATORS[name](source) for name in operators])
