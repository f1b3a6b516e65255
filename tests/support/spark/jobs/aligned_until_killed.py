"""A query over the aligned source that writes every batch to a file and waits to be killed in one of them.

The rows of batch N are in `<folder>/<N>.json` when the job says `batch <N> written`; in the batch named by `--hold` it
then waits for ever, so that the commit log never gets its entry.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path

from pyspark.sql import DataFrame
from tests.support.spark.aligned_queries import QUICK, load, rows_of, started
from tests.support.spark.process import say
from tests.support.spark.session import spark_session

from understudy_aligned.source import register


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="for the session's own files and the rows")
    parser.add_argument("--options", required=True, help="of the source, as JSON")
    parser.add_argument("--hold", type=int, required=True, metavar="BATCH", help="wait before the commit of this batch")
    parser.add_argument("--jar", help="the accelerator jar, which Spark is to take")
    arguments = parser.parse_args()

    def keep(frame: DataFrame, batch_id: int) -> None:
        rows = [[*row[:-1], row.value.decode()] for row in rows_of(frame)]
        (arguments.folder / f"{batch_id}.json").write_text(json.dumps(rows))
        say(f"batch {batch_id} written")
        if batch_id == arguments.hold:
            threading.Event().wait()

    extra = {**QUICK, "spark.jars": arguments.jar} if arguments.jar else QUICK
    with spark_session(arguments.folder, extra=extra) as spark:
        register(spark)  # without the jar Spark would find it, too
        frame = load(spark, json.loads(arguments.options))
        started(frame, arguments.checkpoint, keep, available_now=False).awaitTermination()


if __name__ == "__main__":
    main()
