"""An as-of join: every flight with the newest weather of its airport that is not later than it.

python docs/examples/asof_join.py CHECKPOINT redis://localhost:6379

Two topics of JSON, `weather` and `flights`, with an airport's records in the same partition of both. The tutorial of
the aligned source fills such streams.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

from understudy_aligned.ordered import OrderedProcessor
from understudy_aligned.source import register

FLIGHT = "event_time string, origin string, carrier string, flight int"
WEATHER = "weather_time string, temp double, wind_speed double, visib double"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
Joined = Row("event_time", "origin", "carrier", "flight", "weather_time", "temp", "wind_speed", "visib")


class LatestWeather(OrderedProcessor):
    """Keeps an airport's latest weather, and gives it to the flights that follow. Rows come in the order of time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._weather = handle.getValueState("weather", WEATHER)

    def handle_ordered(self, key: tuple[Any, ...], rows: Iterator[Row], timer_values: TimerValues) -> Iterator[Row]:
        before = weather = self._weather.get()
        for row in rows:
            if row.topic == "weather":
                weather = (row.event_time, row.temp, row.wind_speed, row.visib)
            else:
                yield Joined(row.event_time, row.origin, row.carrier, row.flight, *(weather or [None] * 4))
        if weather is not None and weather != before:
            self._weather.update(weather)


def read_topics(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Weather comes first in `topics`: of two records of one minute, the flight finds the weather."""
    register(spark)
    source = spark.readStream.format("understudy").option("topics", "weather,flights")
    return source.option("timestamp", "json:event_time").options(**options).load()


def join_weather(records: DataFrame) -> DataFrame:
    """Join. A flight before the first weather of its airport has none."""
    fields = F.from_json(F.col("value").cast("string"), f"{FLIGHT}, {WEATHER}").alias("fields")
    keyed = records.select("topic", "merge_order", fields).select("topic", "merge_order", "fields.*")
    return keyed.groupBy("origin").transformWithState(
        LatestWeather(), f"{FLIGHT}, {WEATHER}", outputMode="append", timeMode="none"
    )


if __name__ == "__main__":
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", 3)  # as many as airports
    session = builder.config("spark.sql.streaming.stateStore.providerClass", ROCKSDB).getOrCreate()
    joined = join_weather(read_topics(session, {"redis": sys.argv[2]}))
    query = joined.writeStream.format("console").outputMode("append").option("checkpointLocation", sys.argv[1])
    query.start().awaitTermination()
