"""The least cost of planning by Kafka's time index: a source whose planner does nothing at all.

Executors read each range from the broker with the code of the aligned source. Where ranges end is arithmetic here; a
real planner would ask the broker (`TimeIndex`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from understudy_aligned.inputs.kafka_client import KafkaConfig
from understudy_aligned.inputs.protocol import Range
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.options import AlignedOptions
from understudy_aligned.reading import pack_tasks, planned_ranges, read_task
from understudy_aligned.rows import RowOptions, spark_schema

_ASK_S = 10


class RangesOnly(DataSource):
    """Options: kafka, topics, partitions, step and end: offsets per partition, of a batch and of all."""

    @classmethod
    def name(cls) -> str:
        return "ranges-only"

    def schema(self) -> str:
        return spark_schema(RowOptions())

    def streamReader(self, schema: StructType) -> RangesOnlyReader:  # noqa: N802  # Spark's signature
        return RangesOnlyReader(dict(self.options))


class RangesOnlyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Its offset is one number, the same for all partitions."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._step, self._end = int(options["step"]), int(options["end"])
        topics = tuple(options["topics"].split(","))
        self._partitions = [TopicPartition(topic, p) for topic in topics for p in range(int(options["partitions"]))]
        self._options = AlignedOptions(inputs=(KafkaConfig(options["kafka"], topics),), topics=topics)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"next": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: the end is an option."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"next": min(start["next"] + self._step, self._end)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        cursors = (_behind(start["next"]), _behind(end["next"]))
        spans = [Range(partition, *cursors) for partition in self._partitions] if cursors[0] != cursors[1] else []
        tasks = pack_tasks(planned_ranges(self._options, spans), self._options, batch=end["next"] // self._step)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition.value)


def _behind(following: int) -> Cursor:
    return Cursor(str(following - 1), following) if following else Cursor()


class TimeIndex:
    """The three questions that a plan by the time index asks a broker, each about all partitions at once."""

    def __init__(self, servers: str, partitions: Sequence[tuple[str, int]]) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers})
        self._partitions = partitions

    def plan_s(self, time_ms: int) -> float:
        """Measure how long it takes to learn ends, greatest times, and where `time_ms` begins."""
        began_s = time.perf_counter()
        latest, newest = OffsetSpec.latest(), OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        for spec in (latest, newest, OffsetSpec.for_timestamp(time_ms)):
            asked = {KafkaPartition(*partition): spec for partition in self._partitions}
            for answer in self._admin.list_offsets(asked, request_timeout=_ASK_S).values():
                answer.result(_ASK_S)
        return time.perf_counter() - began_s
