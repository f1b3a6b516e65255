"""The protocols of an input: `Input` reads ahead in the planner, `RangeReader` reads ranges on executors.

Both are opened from a frozen configuration (`open_inputs`), which is pickled to executors; connections are not.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from understudy_aligned.inputs.records import Chunk, Cursor, TopicPartition
from understudy_shared.base.errors import UnderstudyError


class InputError(UnderstudyError):
    """An input cannot be read now: its server is unreachable or hangs. A later retry may succeed."""


class UnknownTopicError(UnderstudyError):
    """A topic or stream does not exist or has no partitions. `fix` says which exist, or how to create it."""


class DataLostError(UnderstudyError):
    """Records after a position were removed unread: by retention, trimming or deletion."""


class Fetched(NamedTuple):
    """The result of one fetch.

    `lags` count the records that the server has after the fetched ones, by an answer during this fetch; 0 at the end of
    a partition. A lag is never negative. A partition without an entry has an unknown lag. Where Redis cannot
    count its records, 1 says that more are left.
    """

    chunks: Sequence[Chunk]
    lags: Mapping[TopicPartition, int]


class ClientQueue(NamedTuple):
    """The records that a client's library has read ahead and not handed out. `bytes` are those of their values."""

    bytes: int
    records: int


class Range(NamedTuple):
    """The records of a partition after `start` up to and including the one at `end`, which existed when planned."""

    partition: TopicPartition
    start: Cursor
    end: Cursor


class Input(Protocol):
    """An input that reads ahead on one server. Not thread-safe. No call takes much longer than its `timeout_ms`.

    Every method but `close` raises InputError if the server does not answer. The caller retries later.
    """

    @property
    def losses(self) -> int:
        """The number of times that it continued after lost records since it was opened (`fail_on_data_loss` off)."""

    @property
    def client_queue(self) -> ClientQueue | None:
        """The queue of its client's library by the last report. None: the library does not report it, or not yet."""

    def partitions(self, *, timeout_ms: int) -> Mapping[str, int]:
        """Return the partition count of each topic of this input, now. Raises UnknownTopicError.

        With a pattern, the topics are those that exist now.
        """

    def topic_ids(self, topics: Collection[str], *, timeout_ms: int) -> Mapping[str, str]:
        """Return the id of each of these topics, which differs between a deleted topic and a new one of the same name.

        Topics whose id is unknown are left out, as are all where topics have no ids. Raises nothing.
        """

    def ends(self, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
        """Return cursors at the current ends: the start of a reader that reads new records only."""

    def beginnings(self, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
        """Return cursors before the first records that exist now: the start of a reader that reads everything.

        A cursor that is left out is the default one, before the first record that a partition ever had.
        """

    def seek(self, cursors: Mapping[TopicPartition, Cursor], *, timeout_ms: int) -> None:
        """Continue after these cursors. Other partitions keep their positions, if they have any.

        Raises DataLostError if records after a cursor are already lost, also after the default one. With
        `fail_on_data_loss` off it logs a warning instead and continues at what is left.
        """

    def fetch(self, wanted: Mapping[TopicPartition, int], *, timeout_ms: int) -> Fetched:
        """Fetch as many records as are wanted of these partitions in all, at most. Others keep their positions.

        The input decides from which partitions: all may be of one partition, if its client has them ready.
        Waits up to `timeout_ms` for the first record. That is some 20 to 100 ms, as another partition may be wanted by
        then. How long the server may take to answer is set in the configuration. Raises DataLostError, like `seek`.
        """

    def close(self) -> None:
        """Close connections. Does not wait for the server."""


class RangeReader(Protocol):
    """A reader of planned ranges on an executor. The worker process keeps it for the ranges of later batches."""

    @property
    def losses(self) -> int:
        """The number of times that it continued after lost records since it was opened (`fail_on_data_loss` off)."""

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """Yield the range's records (`ROW_SCHEMA`) in log order, in batches of some 10,000, poison records included.

        Raises InputError, and DataLostError if a record of the range is lost (a warning with `fail_on_data_loss` off).
        A record that compaction removed since the range was planned is not a loss.
        """

    def close(self) -> None:
        """Close connections."""


class InputConfig(Protocol):
    """Everything that opening an input needs, in any process. Frozen, picklable, without secrets in `repr`."""

    @property
    def kind(self) -> str:
        """`kafka` or `redis`: the key in `open_inputs.OPENERS`."""

    @property
    def topics(self) -> Container[str]:
        """Its topics: names, or a pattern."""

    @property
    def server(self) -> str:
        """The server's name in messages and metrics, without secrets."""
