"""A job whose attempts at one batch differ, and that waits to be killed between a batch's state and its commit.

The files of every batch are on disk when the job says `state of batch <N> written`; in the batch named by `--hold` it
then waits for ever, so that the commit log never gets its entry. `--salt` is part of some keys and of all values
(the one that sorts last wins): an attempt with another salt makes other content of the same input.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.spark.formats import StateFormat
from tests.support.spark.process import say
from tests.support.spark.queries import InputFolder, QueryOptions, read_folder, settings
from tests.support.spark.session import spark_session


def main() -> None:
    arguments = _arguments()
    options = QueryOptions(
        partitions=2,
        min_deltas_for_snapshot=arguments.min_deltas_for_snapshot,
        maintenance_interval_ms=100,
    )

    def keep(frame: DataFrame, batch_id: int) -> None:
        frame.write.format("noop").mode("overwrite").save()
        say(f"state of batch {batch_id} written")
        if batch_id == arguments.hold:
            threading.Event().wait()

    feed = InputFolder(Path(f"{arguments.checkpoint}.input"))
    with spark_session(arguments.folder) as spark:
        with settings(spark, {**StateFormat(**json.loads(arguments.format)).conf(), **options.conf()}):
            frame = _build(read_folder(spark, feed, "word string, number long"), arguments.salt)
            writer = frame.writeStream.outputMode("update").foreachBatch(keep).queryName("aggregate")
            writer = writer.option("checkpointLocation", str(arguments.checkpoint)).trigger(availableNow=True)
            query = writer.start()
        query.awaitTermination()
    say("finished")


def _build(source: DataFrame, salt: str) -> DataFrame:
    salted = F.when(F.col("number") % 5 == 0, F.concat("word", F.lit(f"-{salt}"))).otherwise(F.col("word"))
    return source.groupBy(salted.alias("word")).agg(F.count("*"), F.sum("number"), F.max(F.lit(salt)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="for the session's own files")
    parser.add_argument("--format", required=True, help="a state format's fields as JSON")
    parser.add_argument("--salt", required=True)
    parser.add_argument("--hold", type=int, default=-1, metavar="BATCH", help="wait before the commit of this batch")
    parser.add_argument("--min-deltas-for-snapshot", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
