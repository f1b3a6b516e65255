"""What Spark's own state reader says of every kind of state at every version, read version by version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.oracle.kinds import Kept, KindStore, read_operator
from tests.support.oracle.spark_reader import reader_conf
from tests.support.spark.formats import StateFormat
from tests.support.spark.kinds import operators_by_name
from tests.support.spark.queries import committed_batches, settings
from tests.system.proof.kinds_keys import SCATTERED, STORES
from tests.system.proof.kinds_query import VARIABLES
from tests.system.proof.question import key_text, said_by
from tests.system.proof.truth_of_state import Truth, Value

LEDGER = "transformWithStateInPySparkExec"
BATCHES_AT_ONCE = 2
"""One Spark job reads so many versions. Each of its tasks unpacks the plan of them all, so more are slower."""
JOBS_AT_ONCE = 2

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Each job has a plan of its own: to compile it takes longer than to run it."""

State = dict[str, Value]
"""Each key of a store with what is said of it."""


def write_truth(
    spark: SparkSession, checkpoint: Path, state_format: StateFormat, path: Path, kinds: Mapping[str, str] = STORES
) -> None:
    """Write the truth about a checkpoint at rest, which has stores of these kinds."""
    batches = committed_batches(checkpoint)
    found: dict[str, dict[int, State]] = {store: {} for store in kinds}
    parts = [batches[start : start + BATCHES_AT_ONCE] for start in range(0, len(batches), BATCHES_AT_ONCE)]
    conf = {**reader_conf(checkpoint), **INTERPRETED}
    with settings(spark, conf), ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
        for stores in pool.map(lambda part: [*read_stores(spark, checkpoint, part)], parts):
            for store in stores:
                assert kinds[store.name] in {store.kind, SCATTERED}, f"{store.name} is of kind {store.kind}"
                found[store.name].update((version, state_of(kept)) for version, kept in store.kept.items())
    changes = {store: changes_of(states) for store, states in found.items()}
    Truth(changes, first=batches[0] + 1, last=batches[-1] + 1).save(path)


def read_stores(spark: SparkSession, checkpoint: Path, batches: Sequence[int]) -> Iterator[KindStore]:
    """Every store at each of these batches."""
    from tests.support.oracle.custom_state import VariableSource, read_variables  # Spark 3 cannot import it

    for operator, operator_id in operators_by_name(checkpoint).items():
        if operator != LEDGER:
            yield from read_operator(spark, checkpoint, operator, operator_id, batches)
            continue
        sources = [
            VariableSource(operator_id, name, kind, f"op{operator_id}.timers" if kind == "timers" else name)
            for name, kind in VARIABLES.items()
        ]
        for source, kept in read_variables(spark, checkpoint, sources, batches).items():
            yield KindStore(source.name, operator, source.kind, kept)


def state_of(kept: Sequence[Kept]) -> State:
    """What is said of each key, and of each entry of a map by itself."""
    state: State = {}
    for each in kept:
        said = said_by(each.said)
        assert key_text(*each.key) not in state, f"{each.key} is in two partitions"
        state[key_text(*each.key)] = said
        for entry in said.get("entries", ()):
            state[key_text(*each.key, *entry["key"].values())] = entry["value"]
    return state


def changes_of(states: Mapping[int, State]) -> dict[str, list[tuple[int, Value | None]]]:
    """Each key's changes in the order of versions."""
    changes: dict[str, list[tuple[int, Value | None]]] = {}
    before: State = {}
    for version in sorted(states):
        now = states[version]
        for key in before.keys() - now.keys():
            changes[key].append((version, None))
        for key, value in now.items():
            if before.get(key) != value:
                changes.setdefault(key, []).append((version, value))
        before = now
    return changes
