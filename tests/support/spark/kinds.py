"""One query of every kind of state: a branch per stateful operator, side by side, in one checkpoint.

Rows are made from a seed. Event time moves half an hour with each batch, the watermark follows twenty minutes behind:
in four batches Spark evicts some of what expires, and leaves some that has expired already.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

if TYPE_CHECKING:  # PySpark 3.3 has none
    from pyspark.sql.streaming.state import GroupState

KINDS_SCHEMA = "k string, n long, d double, event timestamp"
FIRST_EVENT = datetime(2024, 3, 1, tzinfo=UTC)
BATCH_MINUTES = 30
WATERMARK_DELAY = "20 minutes"


def _seen(source: DataFrame) -> DataFrame:
    return source.select(F.col("k").alias("seen"), F.col("d").alias("seen_d")).dropDuplicates(["seen", "seen_d"])


def _seen_lately(source: DataFrame) -> DataFrame:
    """Names come up once, so that some have expired and some have not."""
    named = F.concat("k", F.date_format("event", "HH:mm"))
    return source.select(named.alias("lately"), "event").dropDuplicatesWithinWatermark(["lately"])


def _counted_by_hand(source: DataFrame) -> DataFrame:
    """State of a group: rows, and an even number of them or null. One that is not renewed for half an hour is gone."""

    def count(key: tuple[str, float], frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
        import pandas  # type: ignore[import-untyped]  # in Spark's worker, which gets this function alone

        if state.hasTimedOut:
            state.remove()
            yield pandas.DataFrame({"word": [key[0]], "seen": [-1]})
            return
        seen, latest = (state.get[0], state.get[1][0]) if state.exists else (0, None)
        for frame in frames:
            seen += len(frame)
            latest = None if len(frame) % 2 else len(frame)
        state.update((seen, (latest,)))
        if key[0] != "key-0":  # that one stays
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 1_800_000)
        yield pandas.DataFrame({"word": [key[0]], "seen": [seen]})

    grouped = source.where("k is not null").withColumnRenamed("k", "word").groupBy("word", "d")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PySpark, about pandas 3
        return grouped.applyInPandasWithState(
            count, "word string, seen long", "seen long, latest struct<n: long>", "append", "EventTimeTimeout"
        )


def _limited(source: DataFrame) -> DataFrame:
    return source.select("k").limit(70)


def _visits(source: DataFrame) -> DataFrame:
    keyed = source.select("event", "n", F.col("k").alias("visitor"), F.isnan("d").alias("odd"))
    grouped = keyed.groupBy("visitor", F.session_window("event", "3 minutes"), "odd")
    return grouped.agg(F.count("*").alias("visits"), F.max("n"))


def _counted_pairs(source: DataFrame, same: str = "left_k = right_k AND left_d = right_d") -> DataFrame:
    """A join, and an aggregation over what it gives: even rows wait for odd ones that come within ten minutes."""
    keyed = source.select("k", "d", "event", "n")
    left = keyed.where("n is null or n % 2 = 0").toDF("left_k", "left_d", "left_event", "left_n")
    right = keyed.where("n % 2 != 0").toDF("right_k", "right_d", "right_event", "right_n")
    together = F.expr(f"{same} AND right_event BETWEEN left_event AND left_event + interval 10 minutes")
    paired = left.join(right, together, "leftOuter").select("left_k", "left_event")
    return paired.groupBy(F.window("left_event", "30 minutes"), "left_k").agg(F.count("*").alias("pairs"))


def _pairs_where_they_are(source: DataFrame) -> DataFrame:
    """The same by `k` alone: without the strict distribution each group stays where the join put it."""
    return _counted_pairs(source, "left_k = right_k")


BRANCHES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "symmetricHashJoin": _counted_pairs,
    "dedupe": _seen,
    "dedupeWithinWatermark": _seen_lately,
    "applyInPandasWithState": _counted_by_hand,
    "globalLimit": _limited,
    "sessionWindowStateStoreSaveExec": _visits,
}
"""By Spark's name of the stateful operator. The join comes first: an operator with a lower number than a join's may be
fed by it, and then its watermark is not known.
"""


Placing = Literal["by-hash", "repartition", "static-join"]
"""What decides the partition of a row before the operators: nothing, or a part of their keys."""


def build_kinds(
    source: DataFrame, operators: Sequence[str] = tuple(BRANCHES), placing: Placing = "by-hash"
) -> DataFrame:
    """The branches of these operators beside each other, each row of their output as one string."""
    source = source.withWatermark("event", WATERMARK_DELAY)
    if placing == "repartition":
        source = source.repartition("k")
    elif placing == "static-join":
        static = source.sparkSession.createDataFrame([("a", "known"), ("key-0", "known")], "k string, note string")
        joined = source.join(static.hint("shuffle_hash"), "k", "left").where("note is null or note = 'known'")
        source = joined.select(source.columns)
    branches = BRANCHES if placing == "by-hash" else {**BRANCHES, "symmetricHashJoin": _pairs_where_they_are}
    outputs = [branches[name](source) for name in operators]
    rows = [output.select(F.to_json(F.struct(*output.columns)).alias("row")) for output in outputs]
    return reduce(DataFrame.unionAll, rows)


def kinds_batches(*, batches: int = 4, rows_per_batch: int = 60) -> list[list[dict[str, object]]]:
    rng = random.Random(0)
    keys = [None, "", "a", "日本語é", "x" * 40, *(f"key-{number}" for number in range(4))]
    doubles = [None, 0.0, -0.0, float("nan"), 1.5]

    def row(batch: int) -> dict[str, object]:
        minutes = BATCH_MINUTES * (batch + rng.random())
        return {
            "k": rng.choice(keys),
            "n": rng.choice([None, 0, -1, 2**63 - 1, 7]),
            "d": rng.choice(doubles),
            "event": FIRST_EVENT + timedelta(microseconds=round(minutes * 60_000_000)),
        }

    return [[row(batch) for _ in range(rows_per_batch)] for batch in range(batches)]


def operators_by_name(checkpoint: Path) -> dict[str, int]:
    """The operators of a checkpoint by Spark's names of them; it has one of each."""
    found: dict[str, int] = {}
    for folder in (checkpoint / "state").iterdir():
        if not folder.name.isdigit():
            continue
        metadata = folder / "_metadata"
        newest = metadata / "metadata"
        if not newest.exists():
            newest = max((metadata / "v2").glob("[0-9]*"), key=lambda path: int(path.name))
        operator = json.loads(newest.read_text().splitlines()[1])["operatorInfo"]
        assert operator["operatorName"] not in found
        found[operator["operatorName"]] = operator["operatorId"]
    return found
