"""Writes checkpoints in the state formats of Spark 2, which Spark 3 still writes where it is told to."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.oracle.releases import RELEASE
from tests.support.spark.formats import HDFS_V1
from tests.support.spark.kinds import KINDS_SCHEMA, WATERMARK_DELAY, build_kinds, kinds_batches
from tests.support.spark.queries import Build, QueryOptions, run_query
from tests.support.spark.session import spark_session


def main() -> None:
    """Write below the folder that is the only argument; `RELEASE` comes last."""
    (folder,) = map(Path, sys.argv[1:])
    groups = "flatMapGroupsWithState"
    queries: dict[str, Build] = {
        "join": _inner_join,
        "aggregation": lambda source: source.groupBy("k").agg(F.count("*"), F.max("n")),
        groups: lambda source: build_kinds(source, ["applyInPandasWithState"]),
    }
    with spark_session(folder / "session") as spark:
        for name, build in queries.items():
            run_query(
                spark,
                name=name,
                schema=KINDS_SCHEMA,
                batches=kinds_batches(),
                build=build,
                checkpoint=folder / name,
                state_format=HDFS_V1,
                options=QueryOptions(
                    partitions=2,
                    output_mode="update" if name == "aggregation" else "append",
                    extra_conf={f"spark.sql.streaming.{name}.stateFormatVersion": "1"},
                ),
            )
    (folder / RELEASE).write_text(pyspark.__version__)


def _inner_join(source: DataFrame) -> DataFrame:
    """Outer joins want format 2."""
    keyed = source.withWatermark("event", WATERMARK_DELAY).select("k", "d", "event", "n")
    left = keyed.where("n is null or n % 2 = 0").toDF("left_k", "left_d", "left_event", "left_n")
    right = keyed.where("n % 2 != 0").toDF("right_k", "right_d", "right_event", "right_n")
    return left.join(right, F.expr("left_k = right_k AND left_d = right_d AND right_event >= left_event"))


if __name__ == "__main__":
    main()
