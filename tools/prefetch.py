"""Fetches what tests need through Maven, ahead of them: python -m tools.prefetch"""

from __future__ import annotations

from tests.support.kafka import broker
from tests.support.object_store import hdfs_server, s3_server

if __name__ == "__main__":
    fetched = (("a Kafka broker", broker.jars), ("an S3 server", s3_server.jars), ("HDFS", hdfs_server.jars))
    for what, jars in fetched:
        if isinstance(found := jars(), str):
            print(f"== {found}: the tests that need {what} are skipped")
