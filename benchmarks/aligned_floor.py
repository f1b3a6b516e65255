"""The least cost of a batch for any source in Python: a source that asks no server, plans by adding, and makes its rows
from constants.

The JVM's rate source starts no Python. No source in Python can save the difference between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

_VALUE_BYTES = 100


class ConstantRows(DataSource):
    """Options: rows and partitions of a batch."""

    @classmethod
    def name(cls) -> str:
        return "constant-rows"

    def schema(self) -> str:
        return "key binary, value binary, topic string, partition int, offset string, timestamp timestamp"

    def streamReader(self, schema: StructType) -> ConstantRowsReader:  # noqa: N802  # Spark's signature
        return ConstantRowsReader(dict(self.options))


class ConstantRowsReader(DataSourceStreamReader):
    """Its offset is the number of batches."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows, self._partitions = int(options["rows"]), int(options["partitions"])

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"next": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"next": start["next"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        count = self._rows // self._partitions
        columns = {
            "key": pa.array([b"key"] * count, pa.binary()),
            "value": pa.array([b"v" * _VALUE_BYTES] * count, pa.binary()),
            "topic": pa.array(["topic"] * count),
            "partition": pa.array([partition.value] * count, pa.int32()),
            "offset": pa.array(["0"] * count),
            "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
        }
        yield pa.RecordBatch.from_pydict(columns)
