"""Two sessions of one JVM, one after the other, each with a query by the accelerator jar. A planner waits after each.

Once the first session's planner has ended with its session, and the second one's waits, the job says the ids of that
planner and of the JVM, and waits to be killed.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.spark.accelerator import prepared_planners
from tests.support.spark.aligned_queries import QUICK, has_ended, load, run_to_end
from tests.support.spark.process import say
from tests.support.spark.queries import wait_until
from tests.support.spark.session import spark_session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for the sessions' files")
    parser.add_argument("--options", required=True, help="of the source, as JSON")
    parser.add_argument("--jar", required=True, help="the accelerator jar")
    arguments = parser.parse_args()
    with spark_session(arguments.folder, extra={**QUICK, "spark.jars": arguments.jar}) as first:
        waiting = waiting_after_a_query(first, json.loads(arguments.options), arguments.folder / "first")
        first.stop()
        wait_until(lambda: has_ended(waiting), what="the end of the planner of a session that has ended")
        second = SparkSession.builder.getOrCreate()  # in the same JVM, with the same settings
        waiting = waiting_after_a_query(second, json.loads(arguments.options), arguments.folder / "second")
        jvm = second.sparkContext._jvm
        assert jvm is not None
        say(f"{waiting} {jvm.java.lang.ProcessHandle.current().pid()}")
        threading.Event().wait()


def waiting_after_a_query(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> int:
    """The planner that waits since the end of a query that read everything."""
    assert len(run_to_end(load(spark, options), checkpoint).rows) == 52
    wait_until(lambda: len(prepared_planners(spark)) == 1, what="a planner without a query")
    (waiting,) = prepared_planners(spark)
    return waiting


if __name__ == "__main__":
    main()
