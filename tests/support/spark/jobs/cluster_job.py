"""The query of `cluster_query` on the master that `spark-submit` names. Announced, if there is a Redis to do it by.

It says `executors <JSON>`, what each executor sees of the driver's folder, and ends when the file `end` is there.
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.spark.aligned_queries import load
from tests.support.spark.cluster_query import CONF, Output, build, what_executors_see
from tests.support.spark.process import say

from understudy_pipeline import announce


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the output, the checkpoint, and what is said to the job")
    parser.add_argument("--options", required=True, help="of the source, as JSON")
    parser.add_argument("--private", type=Path, required=True, help="the driver's own folder")
    parser.add_argument("--announce", metavar="URL", help="a Redis")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    builder = SparkSession.builder.appName(folder.name)
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    executors = int(spark.sparkContext.getConf().get("spark.cores.max", "1"))
    say(f"executors {json.dumps(what_executors_see(spark, arguments.private, executors))}")
    frame = build(load(spark, json.loads(arguments.options)))
    query = Output(folder / "output").start(frame, folder / "checkpoint", available_now=False)
    announced = announce(query, application_id=folder.name, redis=arguments.announce) if arguments.announce else None
    with announced or nullcontext():
        while not (folder / "end").exists() and not query.awaitTermination(1):
            pass
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
