"""`spark.readStream.format("understudy")`: the aligned source behind Spark's API (`DataSource`, PySpark 4.2 and later).

Spark creates the source once, at `load()`, and pickles it: for the planner process of each run of a query, for a short
process that pickles `read`, and for the workers of executors. So constructors must not keep anything open.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, MutableMapping, Sequence
from typing import ClassVar

import pyspark

from understudy_aligned.refusals import OlderSparkError, fixed_columns, streams_only

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    if not (error.name or "").startswith("pyspark."):
        raise
    raise OlderSparkError(pyspark.__version__) from None

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from understudy_aligned.open_inputs import check_folders, check_inputs
from understudy_aligned.option_parsing import parse_options
from understudy_aligned.options import AlignedOptions
from understudy_aligned.reading import read_task
from understudy_aligned.rows import RowOptions, spark_schema
from understudy_aligned.stream import AlignedStream, Json, remove_spool_on_sigterm


class AlignedSource(DataSource):
    """Kafka topics and Redis streams as one stream in timestamp order. `option_parsing` lists the options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Parse and check the options at `load()`: their values, the folders, and the servers."""
        super().__init__(dict(options))
        self._schema_asked = False
        self._parsed = parse_options(options)
        check_folders(self._parsed)
        check_inputs(self._parsed)

    @classmethod
    def name(cls) -> str:
        return "understudy"

    def schema(self) -> str:
        self._schema_asked = True
        return spark_schema(RowOptions.of(self._parsed))

    def __getstate__(self) -> dict[str, object]:
        """Refuse a schema from the user. Without one, Spark asks for the schema before it pickles the source."""
        if not self._schema_asked:
            raise fixed_columns()
        return self.__dict__

    def reader(self, schema: StructType) -> DataSourceReader:
        """Refuse to read a batch: Spark's own source does that."""
        raise streams_only()

    def streamReader(self, schema: StructType) -> AlignedStreamReader:  # noqa: N802  # Spark's signature
        """Create a reader. It opens nothing before it is used."""
        return AlignedStreamReader(self._parsed)


def _unpickled(pickled: bytes) -> object:
    """Unpickle a reader on an executor. This function itself is pickled by value: the package may be missing there."""
    import pickle  # noqa: PLC0415  # globals of this module are not there
    import sys  # noqa: PLC0415

    try:
        kind, options = pickle.loads(pickled)  # noqa: S301  # made by the driver
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the executors' Python, {sys.executable}, lacks a package of the source 'understudy': {error}. Set "
            "PYSPARK_PYTHON or spark.pyspark.python to a Python in which understudy is installed",
            name=error.name,
        ) from None
    return kind(options)


_unpickled.__module__ = "__main__"  # the pickler takes functions of this module by value


class AlignedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in the planner process, where it opens an `AlignedStream`, and reads ranges in workers."""

    SPOOLS_AHEAD: ClassVar[bool] = True
    """Whether the next batch is written to the spool while Spark runs the current one. Benchmarks compare both."""

    def __init__(self, options: AlignedOptions) -> None:
        self._options = options
        self._stream: AlignedStream | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle for an executor, where the packages may be missing: then the error says what to do."""
        return _unpickled, (pickle.dumps((type(self), self._options)),)

    def initialOffset(self) -> Json:  # noqa: N802
        """Return where a new checkpoint begins. Spark does not ask for an existing one."""
        return self._get_stream().initial_offset()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the current ends of the inputs only."""
        self._get_stream().finish_at_current_ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Bound a batch by `max_poll_records`, else by memory. So only the trigger Once asks for everything."""
        kind, most = self._options.read_limit
        return ReadMaxRows(most) if kind == "rows" else ReadMaxBytes(most)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Plan the next batch and return its end. The options bound it, unless the trigger Once asks for everything."""
        if isinstance(limit, ReadAllAvailable):
            return self._get_stream().latest_offset_of_all(start)
        return self._get_stream().latest_offset(start)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """Return the metrics. Spark shows them in the query's progress as `sources[].latestOffset`."""
        return self._get_stream().metrics()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return what Spark tasks read: at most `reader_tasks` partitions, no partition for an empty batch."""
        return [InputPartition(task) for task in self._get_stream().tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one Spark task's ranges. Runs on an executor."""
        return read_task(partition.value)

    def stop(self) -> None:
        """Stop after an error, and when the driver is gone. The planner of a stopped query gets SIGTERM instead."""
        if self._stream is not None:
            self._stream.stop()

    def _get_stream(self) -> AlignedStream:
        if self._stream is None:
            self._stream = AlignedStream(self._options, spools_ahead=self.SPOOLS_AHEAD)
            remove_spool_on_sigterm(self._stream.remove_spool)
        return self._stream


def register(spark: SparkSession) -> None:
    """Register the format in a session whose Python path Spark cannot search, such as that of a zipped job.

    Executors then get the files of `--py-files`, too. They do not get them for a source that Spark found by itself.
    """
    spark.dataSource.register(AlignedSource)
