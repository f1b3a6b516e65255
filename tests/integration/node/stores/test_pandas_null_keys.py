"""A null in a key of `transformWithStateInPandas` is found, though pandas has Spark keep something else for it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.cluster.served_node import served_node
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V2
from tests.support.spark.queries import QueryOptions, run_query, wait_until

PARTITIONS = 3
ROWS = [
    *[(None, 1.0)] * 2,
    *[("NaN", 1.0)] * 3,
    *[("a", None)] * 4,
    *[("a", float("nan"))] * 5,
    *[(None, None)] * 6,
    *[("b", 2.0)] * 7,
    *[(None, 2.0)] * 8,
]


def _counted(source: DataFrame) -> DataFrame:
    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.seen = handle.getValueState("seen", "n long")
            self.places = handle.getMapState("places", "place string", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            import pandas  # type: ignore[import-untyped]  # in Spark's worker

            # pandas takes each NaN for a group of its own, so a key comes more than once.
            count = sum(map(len, rows)) + (self.seen.get()[0] if self.seen.exists() else 0)
            self.seen.update((count,))
            self.places.updateValue(("here",), (count,))
            yield pandas.DataFrame({"said": ["counted"]})

        def close(self) -> None:
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PySpark, about pandas 3
        return source.groupBy("name", "level").transformWithStateInPandas(
            Counting(), "said string", "append", "ProcessingTime"
        )


@pytest.mark.full
def test_every_key_with_a_null_is_found_or_said_not_to_be_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    run_query(
        spark,
        name="nulls",
        schema="name string, level double",
        batches=[[{"name": name, "level": level} for name, level in ROWS]],
        build=_counted,
        checkpoint=tmp_path / "nulls",
        state_format=ROCKSDB_CHANGELOG_V2,
        options=QueryOptions(partitions=PARTITIONS),
    )
    counts: Counter[tuple[object, ...]] = Counter((name, "NaN" if level != level else level) for name, level in ROWS)  # noqa: PLR0124
    keys = [list(key) for key in counts]
    with served_node(tmp_path / "nulls", tmp_path / "data") as served:
        wait_until(lambda: not served.not_ready(), what="the node is ready")
        answers: Any = served.look_up_all(keys, store="seen")
        told = {
            tuple(key): answer for key, answer in zip(keys, answers, strict=True) if "cannot be told" not in str(answer)
        }
        assert all(answer["found"] for answer in told.values())
        found = {key: answer["value"]["n"] for key, answer in told.items() if None in key}
        assert found, "some null is in another partition than NaN"
        assert found == {key: counts[key] for key in found}
        entries: Any = served.look_up_all([[*key, "here"] for key in found], store="places")
        assert [entry["value"]["n"] for entry in entries] == list(found.values())
