"""Aggregations by windows of every form, side by side in one checkpoint: tumbling, sliding, with an offset, sessions.

Event time begins before 1970, moves on with each batch, and jumps to a night in which clocks change. The watermark
follows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

WINDOWED_SCHEMA = "site int, name string, n long, event timestamp"
DELAY = "20 minutes"
STARTS = (
    datetime(1969, 12, 31, 23, 10, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 50, tzinfo=UTC),
    datetime(2024, 3, 31, 0, 20, tzinfo=UTC),
    datetime(2024, 3, 31, 1, 0, tzinfo=UTC),
)
"""When the events of each batch begin; those of a batch are of an hour."""

WINDOWS: dict[str, Callable[[], Column]] = {
    "tumbling": lambda: F.window("event", "10 minutes"),
    "sliding": lambda: F.window("event", "20 minutes", "5 minutes"),
    "uneven": lambda: F.window("event", "10 minutes", "4 minutes"),
    "shifted": lambda: F.window("event", "1 hour", "30 minutes", "7 minutes"),
    "sessions": lambda: F.session_window("event", "4 minutes"),
}
"""The windows by the name of the branch, which is that of one of its key columns."""


def build_windowed(source: DataFrame) -> DataFrame:
    """The branches beside each other, each row of their output as one string."""
    source = source.withWatermark("event", DELAY)
    outputs = [_branch(source, name, window()) for name, window in WINDOWS.items()]
    rows = [output.select(F.to_json(F.struct(*output.columns)).alias("row")) for output in outputs]
    return reduce(DataFrame.unionAll, rows)


def _branch(source: DataFrame, name: str, window: Column) -> DataFrame:
    """Tumbling windows come first in their key, the others between two columns; sessions behind."""
    site = F.col(name)
    keys = [window, site, F.col("name")] if name == "tumbling" else [site, window, F.col("name")]
    if name == "sessions":
        keys = [site, window, F.col("below")]
    named = source.withColumnRenamed("site", name).withColumn("below", F.col("n") < 0)
    return named.groupBy(*keys).agg(F.count("*").alias("events"), F.max("n").alias("greatest"))


def windowed_batches() -> list[list[dict[str, object]]]:
    rng = random.Random(0)

    def row(begins: datetime) -> dict[str, object]:
        moment = begins + timedelta(microseconds=rng.choice([0, 60_000_000, rng.randrange(3_600_000_000)]))
        return {
            "site": rng.choice([None, -1, 0, 256]),
            "name": rng.choice(["a", "日本語é", ""]),
            "n": rng.choice([-1, 0, 2**60]),
            "event": moment,
        }

    return [[row(begins) for _ in range(60)] for begins in STARTS]
