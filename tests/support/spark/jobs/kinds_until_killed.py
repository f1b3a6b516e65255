"""Sessions, a join and a list whose attempts at one batch differ, and that wait to be killed between state and commit.

As `aggregate_until_killed.py`: the files of a batch are on disk when the job says `state of batch <N> written`; in the
batch named by `--hold` it then waits for ever. `--life` is in all numbers: another one makes other content.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.spark.counting_kinds import LIFE, SCHEMA, builder, options
from tests.support.spark.formats import StateFormat
from tests.support.spark.process import say
from tests.support.spark.queries import InputFolder, read_folder, settings
from tests.support.spark.session import spark_session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="for the session's own files")
    parser.add_argument("--format", required=True, help="a state format's fields as JSON")
    parser.add_argument("--life", type=int, required=True)
    parser.add_argument("--hold", type=int, default=-1, metavar="BATCH", help="wait before the commit of this batch")
    arguments = parser.parse_args()
    state_format = StateFormat(**json.loads(arguments.format))

    def keep(frame: DataFrame, batch_id: int) -> None:
        frame.write.format("noop").mode("overwrite").save()
        say(f"state of batch {batch_id} written")
        if batch_id == arguments.hold:
            threading.Event().wait()

    feed = InputFolder(Path(f"{arguments.checkpoint}.input"))
    with spark_session(arguments.folder) as spark:
        with settings(spark, {**state_format.conf(), **options(state_format, maintenance_interval_ms=100).conf()}):
            source = read_folder(spark, feed, SCHEMA)
            frame = builder(state_format)(source.withColumn("number", F.col("number") + F.lit(arguments.life * LIFE)))
            writer = frame.writeStream.outputMode("append").foreachBatch(keep).queryName("kinds")
            writer = writer.option("checkpointLocation", str(arguments.checkpoint)).trigger(availableNow=True)
            query = writer.start()
        query.awaitTermination()
    say("finished")


if __name__ == "__main__":
    main()
