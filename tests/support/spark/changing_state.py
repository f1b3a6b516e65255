"""A query of `transformWithState` that is started again with other columns in its state, which Avro allows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

CHANGING_SCHEMA: Final = "word string, n int"
CHANGING_VARIABLES: Final = MappingProxyType({"seen": "value", "log": "list", "places": "map"})
ADDED_VARIABLE: Final = "mood"
"""A value that the query keeps since its second start."""
BEFORE: Final = "n int, gone string, part struct<a: float, b: string>, few array<int>"
AFTER: Final = "added struct<x: string>, part struct<b: string, c: date, a: double>, n long, few array<long>"


def before(source: DataFrame) -> DataFrame:
    return _query(source, BEFORE, lambda n: (n, "gone", (n / 2, None if n % 2 else "b"), [n, -n]))


def after(source: DataFrame) -> DataFrame:
    """The same with a column less, one more, others in another order, and numbers that are wider."""
    return _query(source, AFTER, lambda n: (("new",), (None, None, n / 3), n << 40, None if n % 2 else [n << 40]))


def _query(source: DataFrame, columns: str, value: Callable[[int], tuple[object, ...]]) -> DataFrame:
    class Changing(StatefulProcessor):  # in here, so that Spark's worker gets it whole
        def init(self, handle: Any) -> None:
            self.seen = handle.getValueState("seen", columns)
            self.log = handle.getListState("log", columns)
            self.places = handle.getMapState("places", "place string", columns)
            self.mood = handle.getValueState(ADDED_VARIABLE, "s string") if columns == AFTER else None

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            for row in rows:
                self.seen.update(value(row["n"]))
                self.log.appendValue(value(row["n"]))
                self.places.updateValue((f"p{row['n'] % 3}",), value(row["n"]))
                if self.mood is not None and row["n"] >= 0:
                    self.mood.update((str(row["n"]),))
            yield Row(said="")

        def close(self) -> None:
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PySpark, about pandas 3
        return source.groupBy("word").transformWithState(Changing(), "said string", "append", "None")


def changing_batches() -> list[list[dict[str, object]]]:
    """Two batches: the second is of other words, but for some, whose lists have values of both."""
    return [
        [{"word": f"w{at % 8}", "n": at} for at in range(24)],
        [{"word": f"w{4 + at % 8}", "n": at} for at in range(16)],
    ]
