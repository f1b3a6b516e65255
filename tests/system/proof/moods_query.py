"""A query of `transformWithState` that keeps another state variable since a restart, and what Spark says of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.spark.formats import StateFormat
from tests.support.spark.queries import committed_batches
from tests.system.proof.kinds_truth import State, changes_of, state_of
from tests.system.proof.moods_keys import MOOD, SEEN, STORES, WORDS
from tests.system.proof.truth_of_state import Truth

BATCHES_AT_ONCE = 10


def build(rows: DataFrame) -> DataFrame:
    """The query as it is started first."""
    return _query(rows, has_mood=False)


def build_with_mood(rows: DataFrame) -> DataFrame:
    """The same with the variable that is added."""
    return _query(rows, has_mood=True)


def _query(rows: DataFrame, *, has_mood: bool) -> DataFrame:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # Spark 3 has none

    class Moods(StatefulProcessor):  # in here, so that Spark's worker gets it whole
        def init(self, handle: Any) -> None:
            self.seen = handle.getValueState(SEEN, "n long")
            self.mood = handle.getValueState(MOOD, "said string") if has_mood else None

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            seen = (self.seen.get()[0] if self.seen.exists() else 0) + sum(1 for _ in rows)
            self.seen.update((seen,))
            if self.mood is not None:
                self.mood.update((f"{key[0]} at {seen}",))
            yield Row(said=str(seen))

        def close(self) -> None:
            pass

    word = F.concat(F.lit("w"), F.pmod(F.hash("value"), F.lit(WORDS)).cast("string"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PySpark, about pandas 3
        named = rows.select(word.alias("word"), "value")
        return named.groupBy("word").transformWithState(Moods(), "said string", "append", "None")


def only_forced_snapshots(_: StateFormat) -> dict[str, str]:
    """Settings with which Spark writes no snapshot but those that a new table forces: no later one helps a replica."""
    return {"spark.sql.streaming.stateStore.minDeltasForSnapshot": "100000"}


def write_truth(spark: SparkSession, checkpoint: Path, state_format: StateFormat, path: Path) -> None:
    """Write the truth about a checkpoint at rest; the added variable is read where it is."""
    from tests.support.oracle.custom_state import VariableSource, read_variables  # Spark 3 cannot import it

    batches = committed_batches(checkpoint)
    found: dict[str, dict[int, State]] = {store: {} for store in STORES}
    for store, since in ((SEEN, batches[0]), (MOOD, first_batch_with_mood(checkpoint))):
        own = [batch for batch in batches if batch >= since]
        source = VariableSource(0, store, "value", store)
        for start in range(0, len(own), BATCHES_AT_ONCE):
            kept = read_variables(spark, checkpoint, [source], own[start : start + BATCHES_AT_ONCE])[source]
            found[store] |= {version: state_of(each) for version, each in kept.items()}
    changes = {store: changes_of(states) for store, states in found.items()}
    Truth(changes, first=batches[0] + 1, last=batches[-1] + 1).save(path)


def first_batch_with_mood(checkpoint: Path) -> int:
    """The batch in which Spark wrote down the variable for the first time; one far ahead where it never did."""
    named = f'\\"stateName\\":\\"{MOOD}\\"'  # in JSON within JSON; a path beside it may have the bare word
    written = (checkpoint / "state" / "0" / "_metadata" / "v2").glob("[0-9]*")
    return min((int(file.name) for file in written if named in file.read_text()), default=1 << 60)
