"""Runs one script twice: with Spark's own Kafka source and with ours. Prints the columns and rows of both as JSON.

It runs with the trigger AvailableNow; with Once and by `processAllAvailable`, where batches are bounded. Then ours goes
on where Spark's source was, by the offsets in its checkpoint.

Arguments: a folder, the jars of Spark's Kafka source separated by commas, and the options as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from tests.support.spark.session import spark_session


def run(
    spark: SparkSession, name: str, options: Mapping[str, str], folder: Path, way: str = "availableNow"
) -> dict[str, object]:
    """The columns of a script that reads everything, its rows, and the sizes of its batches."""
    rows: list[str] = []
    batches: list[int] = []
    frame = spark.readStream.format(name).options(**options).load()

    def keep(batch: DataFrame, _: int) -> None:
        found = batch.drop("merge_order").toJSON().collect()
        rows.extend(map(str, found))
        batches.append(len(found))

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / way / name))
    if way == "processAllAvailable":
        query = writer.start()
        query.processAllAvailable()
        query.stop()
    else:
        writer.trigger(**{way: True}).start().awaitTermination()
    return {"columns": frame.schema.simpleString(), "rows": rows, "batches": batches}


def main(folder: Path, jars: str, options: Mapping[str, str]) -> None:
    with spark_session(folder / "spark", extra={"spark.jars": jars}) as spark:
        found = {name: run(spark, name, options, folder) for name in ("kafka", "understudy")}
        bounded = {**options, "maxOffsetsPerTrigger": "3"}
        for way in ("once", "processAllAvailable"):
            found[way] = {name: run(spark, name, bounded, folder, way) for name in ("kafka", "understudy")}
        (*_, last) = (folder / "availableNow" / "kafka" / "offsets" / "0").read_text().splitlines()
        found["continued"] = run(spark, "understudy", {**options, "startingOffsets": last}, folder / "continued")
        batch = spark.read.format("kafka").options(**options).load()
        found["batch"] = {"columns": batch.schema.simpleString(), "rows": batch.toJSON().collect()}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
