"""The example's as-of join of all that is there, on the master that `spark-submit` names."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.spark.asof_world import SESSION_CONF, AsofRun


def main() -> None:
    """Run to the end of the logs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the run")
    parser.add_argument("--options", required=True, help="of the source, as JSON")
    arguments = parser.parse_args()
    builder = SparkSession.builder.appName("asof")
    for name, value in SESSION_CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    AsofRun(arguments.folder).start(spark, json.loads(arguments.options), available_now=True).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
