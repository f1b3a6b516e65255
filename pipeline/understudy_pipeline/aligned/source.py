"""`spark.readStream.format("understudy")`: Spark's side of the aligned source (`DataSource`, PySpark 4.2 and later).

Spark makes the source once, at `load()`, and hands it around pickled: to one planner process per run of a query, to a
short one that pickles `read` for executors, and with it to their workers. So the constructors open nothing that stays.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, MutableMapping, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from understudy_pipeline.aligned.load_checks import check_folders, check_inputs
from understudy_pipeline.aligned.option_parsing import parse_options
from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.aligned.reading import read_task
from understudy_pipeline.aligned.rows import spark_schema
from understudy_pipeline.aligned.stream import AlignedStream, Json


class AlignedSource(DataSource):
    """Kafka topics, Redis streams and files as one stream in timestamp order; options are in `option_parsing`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """At `load()`: whatever is wrong with options, folders or servers is an error here."""
        super().__init__(dict(options))
        self._parsed = parse_options(options)
        check_folders(self._parsed)
        check_inputs(self._parsed)

    @classmethod
    def name(cls) -> str:
        """As in `format(...)`."""
        return "understudy"

    def schema(self) -> str:
        """The same for every input."""
        return spark_schema(include_headers=self._parsed.include_headers)

    def streamReader(self, schema: StructType) -> AlignedStreamReader:  # noqa: N802  # Spark's signature
        """Opens nothing."""
        return AlignedStreamReader(self._parsed)


class AlignedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the planner process, where it has an `AlignedStream`, and reads in workers, where it has none."""

    def __init__(self, options: AlignedOptions) -> None:
        self._options = options
        self._stream: AlignedStream | None = None

    def initialOffset(self) -> Json:  # noqa: N802
        """Only asked for a new checkpoint."""
        return self._get_stream().initial_offset()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query is to end with what there is now."""
        self._get_stream().finish_at_current_ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`max_poll_records`, for Spark's plans to show."""
        most = self._options.max_poll_records
        return ReadMaxRows(most) if most > 0 else ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """The options bound a batch, whatever `limit` says: without bounds it would be all that memory holds."""
        return self._get_stream().latest_offset(start)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """Metrics: they come out in `sources[].latestOffset` of the query's progress."""
        return self._get_stream().metrics()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """At most `reader_tasks`; none for an empty range."""
        return [InputPartition(task) for task in self._get_stream().tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        return read_task(partition.value)

    def stop(self) -> None:
        """When the driver is gone, and after an error. A stopped query's planner gets SIGTERM instead."""
        if self._stream is not None:
            self._stream.stop()

    def _get_stream(self) -> AlignedStream:
        if self._stream is None:
            self._stream = AlignedStream(self._options)
            _on_sigterm(self._stream.remove_spool)
        return self._stream


def _on_sigterm(remove_spool: Callable[[], None]) -> None:
    """As Spark ends planners (`PythonWorkerFactory.stopWorker`). Nobody listens then: Spark's own way out is not taken.

    A process that Spark did not start for this source has its own way to go, or does not run it in its main thread.
    """

    def end(number: int, _: object) -> None:
        try:
            remove_spool()
        finally:
            os._exit(128 + number)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


def register(spark: SparkSession) -> None:
    """Makes the format known to a session whose Python path Spark cannot search, like that of a zipped job."""
    spark.dataSource.register(AlignedSource)
