"""Reads what librdkafka says of itself (pure). Its STATISTICS.md has the fields."""

from __future__ import annotations

import orjson

from understudy_pipeline.inputs.protocol import ClientQueue


def queue_of(statistics: str) -> ClientQueue:
    """Return the consumer's queue. Each partition that is read reports it whole: one queue has the records of all."""
    topics = orjson.loads(statistics)["topics"].values()
    queues = [
        ClientQueue(partition["fetchq_size"], partition["fetchq_cnt"])
        for topic in topics
        for partition in topic["partitions"].values()
    ]
    return max(queues, default=ClientQueue(0, 0))
