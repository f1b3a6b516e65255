"""Writes checkpoints with whichever Spark 3 is on the path: the kinds of state that it has, in each of its formats, and
unless formats are named every finished aggregate.

Of what is in them another Spark tells: Spark 3 has no reader of its own state.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyspark
from tests.support.oracle.kinds import BATCHES, run_kinds
from tests.support.oracle.releases import RELEASE, formats_of, kinds_of
from tests.support.spark.jobs.write_release import write_finished
from tests.support.spark.session import SPARK_RELEASE, spark_session

ANY_PLAN = {"spark.sql.streaming.unsupportedOperationCheck": "false"}
"""Spark 3.3 refuses several stateful operators one after another: their state is written as that of one alone."""


def main() -> None:
    """Write below the folder that is the first argument; `RELEASE` comes last. Further ones name formats. With more
    batches than were written, the queries go on.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("formats", nargs="*")
    parser.add_argument("--batches", type=int, default=BATCHES)
    asked = parser.parse_args()
    folder, wanted = asked.folder, asked.formats
    with spark_session(Path(folder) / "session") as spark:
        if not wanted and SPARK_RELEASE >= (3, 5):
            write_finished(spark, Path(folder) / "finished")
        for state_format in formats_of(SPARK_RELEASE):
            if not wanted or state_format.id in wanted:
                operators = kinds_of(SPARK_RELEASE)
                run_kinds(
                    spark,
                    Path(folder) / state_format.id,
                    state_format,
                    operators=operators,
                    conf=ANY_PLAN,
                    batches=asked.batches,
                )
    (Path(folder) / RELEASE).write_text(pyspark.__version__)


if __name__ == "__main__":
    main()
