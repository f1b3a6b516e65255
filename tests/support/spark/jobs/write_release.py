"""Writes checkpoints with whichever Spark is on the path, and beside each what that Spark itself says is in it.

A checkpoint of every kind of state in each format, with what its state reader returns, and one of every finished
aggregate, with the rows that the query put out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from tests.support.oracle.finished import announced, run_finished
from tests.support.oracle.kinds import write_kinds_checkpoint
from tests.support.oracle.releases import FINISHED, IMPATIENT, RELEASE, formats_of, keep
from tests.support.spark.formats import HDFS_V1
from tests.support.spark.session import SPARK_RELEASE, spark_session


def main() -> None:
    """Write below the folder that is the only argument; `RELEASE` comes last."""
    (folder,) = map(Path, sys.argv[1:])
    with spark_session(folder / "session", extra=IMPATIENT) as spark:
        write_finished(spark, folder / "finished")
        for state_format in formats_of(SPARK_RELEASE):
            keep(folder, "kinds", write_kinds_checkpoint(spark, folder / state_format.id, state_format))
    (folder / RELEASE).write_text(pyspark.__version__)


def write_finished(spark: SparkSession, folder: Path) -> None:
    """Write the checkpoint of the aggregates, with what the plan announces of them and the rows."""
    run = run_finished(spark, folder / "checkpoint", HDFS_V1)
    document = {"announced": announced(run).model_dump(mode="json"), "rows": run.rows}
    (folder / FINISHED).write_text(json.dumps(document))


if __name__ == "__main__":
    main()
