"""The query of `cluster_query` on the master that `spark-submit` names. Announced, if there is a Redis to do it by.

It says `executors <JSON>`, what each executor sees of the driver's folder, and `batch <N> written` before the commit of
each batch. It ends when the file `end` is in the folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.spark.aligned_queries import load
from tests.support.spark.cluster_query import CONF, Output, build, what_executors_see

from understudy_pipeline import announce


def main() -> None:
    """Run until told to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the output, the checkpoint, and what is said to the job")
    parser.add_argument("--options", required=True, help="of the source, as JSON")
    parser.add_argument("--private", type=Path, required=True, help="the driver's own folder")
    parser.add_argument("--announce", metavar="URL", help="a Redis")
    parser.add_argument("--hold", type=int, metavar="BATCH", help="let one executor wait in this batch")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    hold = None if arguments.hold is None else folder / "hold"

    def written(batch_id: int) -> None:
        if hold is not None and batch_id + 1 == arguments.hold:
            hold.touch()
        _say(f"batch {batch_id} written")

    builder = SparkSession.builder.appName(folder.name)
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    executors = int(spark.sparkContext.getConf().get("spark.cores.max", "1"))
    _say(f"executors {json.dumps(what_executors_see(spark, arguments.private, executors))}")
    frame = build(load(spark, json.loads(arguments.options)), hold)
    query = Output(folder / "output").start(frame, folder / "checkpoint", available_now=False, written=written)
    announced = announce(query, application_id=folder.name, redis=arguments.announce) if arguments.announce else None
    with announced or nullcontext():
        while not (folder / "end").exists() and not query.awaitTermination(1):
            pass
        query.stop()
    spark.stop()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
