"""Runs one query with Spark's own Kafka source and with ours, before and after a partition came that lost records.

Prints `read` when both have read what there is, and goes on when the folder has a file `lost`: each query is run with
failOnDataLoss, and once more without. Prints rows and errors as JSON.

Arguments: a folder, the jars of Spark's Kafka source separated by commas, and the options as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.support.spark.queries import wait_until
from tests.support.spark.session import spark_session

SOURCES = ("kafka", "understudy")


def run(spark: SparkSession, name: str, options: Mapping[str, str], checkpoint: Path) -> Mapping[str, Any]:
    """The rows up to the present ends, the error that ended the query, and the losses in the progress of ours."""
    rows: list[tuple[int, int]] = []

    def keep(batch: DataFrame, _: int) -> None:
        rows.extend((row.partition, row.offset) for row in batch.select("partition", "offset").collect())

    writer = spark.readStream.format(name).options(**options).load().writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    error = ""
    try:
        query.awaitTermination()
    except StreamingQueryException as failure:
        error = str(failure)
    progress = [json.loads(each.json)["sources"][0]["latestOffset"] for each in query.recentProgress]
    losses = [each["data-losses-total"] for each in progress if each and "data-losses-total" in each]
    return {"rows": sorted(rows), "error": error, "losses": losses[-1:]}


def main(folder: Path, jars: str, options: Mapping[str, str]) -> None:
    """Run both, three times."""
    with spark_session(folder / "spark", extra={"spark.jars": jars}) as spark:

        def run_both(fails: str) -> Mapping[str, Any]:
            return {name: run(spark, name, {**options, "failOnDataLoss": fails}, folder / name) for name in SOURCES}

        before = run_both("true")
        sys.stdout.write("read\n")
        wait_until((folder / "lost").exists, what="the loss")
        found = {"before": before, "true": run_both("true"), "false": run_both("false")}
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
