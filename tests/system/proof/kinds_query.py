"""The query of every kind of state: a join, a set, sessions, and a value, a list, a map and timers, side by side.

The join comes first: what stands behind a join may get another watermark, and Spark numbers operators in this order.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.system.proof.keys import START
from tests.system.proof.kinds_keys import PLACES, SLICE_S, SLOT_S, TIMER_S, WATERMARK_S, WORDS

MAX_RECENT, KEPT_RECENT = 12, 7
VARIABLES = {"total": "value", "recent": "list", "places": "map", "timers": "timers"}
"""What the ledger keeps, by kind."""


def build(rows: DataFrame) -> DataFrame:
    """The branches beside each other, each row of their output as one string."""
    since_s = F.unix_timestamp("timestamp") - int(START.timestamp())
    source = rows.select(
        _word(since_s).alias("word"), F.col("timestamp").alias("event"), F.col("value").alias("number")
    )
    source = source.withWatermark("event", f"{WATERMARK_S} seconds")
    outputs = [branch(source) for branch in (_joined, _seen, _visits, _ledger)]
    told = [output.select(F.to_json(F.struct(*output.columns)).alias("row")) for output in outputs]
    return reduce(DataFrame.unionAll, told)


def build_scattered(rows: DataFrame) -> DataFrame:
    """The same, and a count whose rows are placed by a part of its key, as a query that an early Spark began may do."""
    since_s = F.unix_timestamp("timestamp") - int(START.timestamp())
    slice_ = F.timestamp_seconds(F.floor(F.unix_timestamp("timestamp") / SLICE_S) * SLICE_S)
    sliced = rows.select(_word(since_s).alias("word"), slice_.alias("slice"), F.col("value").alias("number"))
    sliced = sliced.withWatermark("slice", "0 seconds").repartition("word")  # the others' is the older one, and counts
    counted = sliced.groupBy("slice", "word").agg(F.count("*").alias("n"), F.max("number").alias("last"))
    return build(rows).unionAll(counted.select(F.to_json(F.struct(*counted.columns)).alias("row")))


def _word(since_s: Column) -> Column:
    slot = F.floor(since_s / SLOT_S).cast("string")
    return F.concat(F.lit("s"), slot, F.lit("w"), F.pmod(F.hash("value"), F.lit(WORDS)).cast("string"))


def _joined(source: DataFrame) -> DataFrame:
    """Rows with even numbers wait for those of their word whose number is a multiple of three."""
    left = source.where("number % 2 = 0").toDF("left_word", "left_event", "left_number")
    right = source.where("number % 3 = 0").toDF("right_word", "right_event", "right_number")
    together = "left_word = right_word AND right_event BETWEEN left_event AND left_event + interval 4 seconds"
    return left.join(right, F.expr(together), "leftOuter").select("left_word", "left_number", "right_number")


def _seen(source: DataFrame) -> DataFrame:
    return source.select(F.col("word").alias("seen"), "event").dropDuplicatesWithinWatermark(["seen"])


def _visits(source: DataFrame) -> DataFrame:
    visits = source.withColumnRenamed("word", "visitor").groupBy(
        "visitor", F.session_window("event", "1500 milliseconds")
    )
    return visits.agg(F.count("*").alias("visits"), F.max("number"))


def _ledger(source: DataFrame) -> DataFrame:
    """All that `transformWithState` has. Lists grow, are shortened and begin anew; after the last timer all is gone."""

    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # Spark 3 has none

    class Ledger(StatefulProcessor):  # in here, so that Spark's worker gets it whole
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n long, latest_ms long")
            self.recent = handle.getListState("recent", "number long, note string")
            self.places = handle.getMapState("places", "place string", "visits long, number long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            found = [(row["number"], int(row["event"].timestamp() * 1000)) for row in rows]
            seen = (self.total.get()[0] if self.total.exists() else 0) + len(found)
            latest_ms = max(at_ms for _, at_ms in found) + TIMER_S * 1000
            self.total.update((seen, latest_ms))
            self.recent.appendList([(number, None if number % 5 else f"{key[0]} at {seen}") for number, _ in found])
            if seen % 3 == 0:
                listed = list(self.recent.get())
                if len(listed) > MAX_RECENT:
                    self.recent.put(listed[-KEPT_RECENT:])
                self.places.removeKey((f"p{seen % PLACES}",))
            for number, _ in found:
                self.places.updateValue((f"p{number % PLACES}",), (seen, number))
            self.handle.registerTimer(latest_ms)
            yield Row(said=str(seen))

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
            if self.total.exists() and expiredTimerInfo.getExpiryTimeInMs() >= self.total.get()[1]:
                self.total.clear()
                self.recent.clear()
                self.places.clear()
            yield Row(said="expired")

        def close(self) -> None:
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PySpark, about pandas 3
        return source.groupBy("word").transformWithState(Ledger(), "said string", "append", "EventTime")
