"""A query that is announced, with whichever Spark is on the path: a batch for each file that is put into its input."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V1
from tests.support.spark.process import say
from tests.support.spark.queries import stream_feeder
from tests.support.spark.session import spark_session

from understudy_pipeline import announce

ANNOUNCED = "announced"


def main() -> None:
    """Run until killed; the arguments are the checkpoint, a Redis and the application."""
    checkpoint, redis, application = sys.argv[1:]
    with (
        spark_session(Path(f"{checkpoint}.session")) as spark,
        stream_feeder(
            spark,
            name=application,
            schema="word string, number long",
            build=_build,
            checkpoint=Path(checkpoint),
            state_format=ROCKSDB_CHANGELOG_V1,
        ) as feeder,
        announce(feeder.query, application_id=application, redis=redis),
    ):
        say(ANNOUNCED)
        feeder.query.awaitTermination()


def _build(source: DataFrame) -> DataFrame:
    counted = source.groupBy(F.upper("word").alias("loud")).agg(F.count("*").alias("n"), F.avg("number").alias("mean"))
    return counted.alias("words")


if __name__ == "__main__":
    main()
