"""A processor for `transformWithState` that gets the rows of a key in merge order.

Each micro-batch of the aligned source is a stretch of the merge sequence, and the stretches follow each other. Inside a
batch a shuffle may mix rows, and Spark refuses to sort a streaming frame: they are sorted here, per key, by the
source's column `merge_order`. What one key has in one batch is held in memory for that; `max_poll_records` and
`input_buffer_max_bytes` bound it.

Rule: order holds over batches too, but for what the source counts as enforced processing (or with `max_task_idle_ms`
-1, which counts nothing): records that came after their turn come after it here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from understudy_shared.errors import UnderstudyError

MERGE_ORDER = "merge_order"
"""The source's column: a struct of these, in the order in which they count."""

_FIELDS = ("effective_ms", "topic_rank", "partition", "ordinal")


class NoMergeOrderError(UnderstudyError):
    """A row that does not say its place in the merge."""


class OrderedProcessor(StatefulProcessor):
    """Implement `init` and `handle_ordered`. For `transformWithState`, whose rows are rows and not Pandas frames."""

    @abstractmethod
    def handle_ordered(self, key: tuple[Any, ...], rows: Iterator[Row], timer_values: TimerValues) -> Iterator[Row]:
        """Rows to put out for those of `key` in this batch, at least one, which come in merge order.

        Called once per key and batch. Each call of a state is a round trip: read it once, loop, write it once.
        """

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: tuple[Any, ...],
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Called by Spark. Raises NoMergeOrderError."""
        return self.handle_ordered(key, iter(sorted(rows, key=merge_place)), timerValues)


def merge_place(row: Row) -> tuple[int, ...]:
    """Where a row is in the merge: rows sort by it. Raises NoMergeOrderError."""
    if MERGE_ORDER not in row.__fields__ or row[MERGE_ORDER] is None:
        raise NoMergeOrderError(
            f"a row does not say its place in the merge: it has no '{MERGE_ORDER}'",
            where=f"columns {', '.join(row.__fields__)}",
            fix=f"Read with format('understudy') and keep the column '{MERGE_ORDER}' up to transformWithState",
        )
    # Spark's worker gives a struct as a dict, its tester as a row.
    place = row[MERGE_ORDER]
    return tuple(place[field] for field in _FIELDS)
