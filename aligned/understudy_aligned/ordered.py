"""`OrderedProcessor`: a processor for `transformWithState` that gets the rows of a key in merge order.

The micro-batches of the aligned source are consecutive parts of the merge sequence. Within a batch a shuffle may
reorder rows, and Spark refuses to sort a streaming DataFrame. So rows are sorted here, per key, by the source's column
`merge_order`. This holds one key's rows of one batch in memory, bounded by `max_poll_records` and
`input_buffer_max_bytes`.

Rule: `merge_order` begins with the number of the batch, so it orders all rows of a query, in the order of delivery.
A record that arrived too late for its place in the merge order is late here, too: it comes with the batch that took it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from understudy_shared.base.errors import UnderstudyError

MERGE_ORDER = "merge_order"
"""The source's column: a struct of the fields below, compared in this order."""

_FIELDS = ("batch", "effective_ms", "topic_rank", "partition", "ordinal")


class NoMergeOrderError(UnderstudyError):
    """A row has no `merge_order`."""


class OrderedProcessor(StatefulProcessor):
    """Subclass it and implement `init` and `handle_ordered`. For `transformWithState` with rows, not with Pandas."""

    @abstractmethod
    def handle_ordered(self, key: tuple[Any, ...], rows: Iterator[Row], timer_values: TimerValues) -> Iterator[Row]:
        """Process the rows of `key` in this batch (at least one), in merge order, and return the output rows.

        Called once per key and batch. Every state access is a round trip: read state once, loop, write it once.
        """

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: tuple[Any, ...],
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        """Sort the rows. Spark calls it. Raises NoMergeOrderError."""
        return self.handle_ordered(key, iter(sorted(rows, key=merge_place)), timerValues)


def merge_place(row: Row) -> tuple[int, ...]:
    """Return the sort key that puts rows in merge order. Raises NoMergeOrderError."""
    if MERGE_ORDER not in row.__fields__ or row[MERGE_ORDER] is None:
        raise NoMergeOrderError(
            f"a row has no column '{MERGE_ORDER}', so its place in the order is unknown",
            where=f"columns {', '.join(row.__fields__)}",
            fix=f"Read with format('understudy') and keep the column '{MERGE_ORDER}' up to transformWithState",
        )
    # Spark's worker passes a struct as a dict, its test harness as a row.
    place = row[MERGE_ORDER]
    return tuple(place[field] for field in _FIELDS)
