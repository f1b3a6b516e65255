"""Fetches what tests need through Maven and pip, ahead of them: python -m tools.prefetch"""

from __future__ import annotations

from tests.support.kafka import broker
from tests.support.object_store import hdfs_server, s3_server
from tests.support.oracle.releases import BEFORE_METADATA, NoSparkError, environment
from tests.support.spark import golden_checkpoints

if __name__ == "__main__":
    fetched = (
        ("a Kafka broker", broker.jars),
        ("an S3 server", s3_server.jars),
        ("HDFS", hdfs_server.jars),
        ("Spark's own checkpoints", golden_checkpoints.jars),
    )
    for what, jars in fetched:
        if isinstance(found := jars(), str):
            print(f"== {found}: the tests that need {what} are skipped")
    try:
        environment(max(BEFORE_METADATA))
    except NoSparkError as error:
        print(f"== {error}: the tests of what Spark 3 writes are skipped")
