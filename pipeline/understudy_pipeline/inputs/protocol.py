"""What the aligned source asks of an input, on both sides: reading ahead in the planner, and ranges on executors.

An input is made from its frozen configuration, which is pickled to executors; what it opens stays where it was opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from understudy_pipeline.inputs.records import Chunk, Cursor, TopicPartition
from understudy_shared.errors import UnderstudyError


class InputError(UnderstudyError):
    """An input cannot be read now: its server is away, or hangs. Trying again later may help."""


class UnknownTopicError(UnderstudyError):
    """No such topic, stream or folder, or one without partitions; `fix` says what there is, or how to make it."""


class DataLostError(UnderstudyError):
    """Records between a position and what is left of a log are gone: removed by retention, trimmed, deleted."""


class Fetched(NamedTuple):
    """What one turn brought.

    `lags` are records that are known to lie behind what was fetched, by an answer of the server in this turn: 0 is
    "nothing there now". Never below 0; a partition without an entry is unknown. Where a server cannot count (Redis),
    any number above 0 says that there are some.
    """

    chunks: Sequence[Chunk]
    lags: Mapping[TopicPartition, int]


class Range(NamedTuple):
    """The records of a partition after `start` up to the one at `end`, which was there when it was planned."""

    partition: TopicPartition
    start: Cursor
    end: Cursor


class Input(Protocol):
    """Reads ahead on one server. One thread uses it at a time; no call takes much longer than its `timeout_ms`.

    Every method but `close` raises InputError when the server does not answer, and is then called again later.
    """

    def partitions(self, *, timeout_ms: int) -> Mapping[str, int]:
        """Partitions of each topic of this input, now. Raises UnknownTopicError."""

    def first_cursors(
        self, partitions: Sequence[TopicPartition], *, timeout_ms: int
    ) -> Mapping[TopicPartition, Cursor]:
        """Where a reader starts that wants only what comes from now on."""

    def seek(self, cursors: Mapping[TopicPartition, Cursor], *, timeout_ms: int) -> None:
        """Go on behind these; partitions that are not named keep their place, or are not fetched at all.

        Raises DataLostError where records behind a cursor are gone already; with `fail_on_data_loss` off in its
        configuration it logs a warning and goes on at what is left.
        """

    def fetch(self, wanted: Mapping[TopicPartition, int], *, timeout_ms: int) -> Fetched:
        """Up to so many records of each wanted partition; of others nothing is lost or fetched again.

        Waits up to `timeout_ms` for the first record, some 20 to 100 ms: another partition may be wanted by then. How
        long an answer may take is the configuration's to say. Raises DataLostError, as `seek`.
        """

    def close(self) -> None:
        """Let go of the server; does not wait for it."""


class RangeReader(Protocol):
    """Reads planned ranges on an executor; kept by the worker process for the ranges of later batches."""

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The range's records (`ROW_SCHEMA`) in log order, in batches of some 10,000, poison records included.

        Raises InputError, and DataLostError when a record of the range is gone (with `fail_on_data_loss` off: a
        warning). A record that compaction removed since the range was planned is no loss.
        """

    def close(self) -> None:
        """Let go of the server."""


class InputConfig(Protocol):
    """What is needed to open an input anywhere; frozen, picklable, and free of secrets in its `repr`."""

    @property
    def kind(self) -> str:
        """What kind of input it is: `kafka`, `redis` or `files` (see `opening`)."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Its topics, in the order of the source's option."""

    @property
    def server(self) -> str:
        """Names it in messages and metrics, without secrets."""
