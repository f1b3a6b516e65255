"""What the state reader of Spark 4 says of checkpoints that Spark 3 wrote, which have no operator metadata.

It does not read session windows in RocksDB without metadata: there the state of the same batches in the HDFS-backed
provider says what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession
from tests.support.oracle.kinds import KindsCheckpoint, read_kinds_checkpoint
from tests.support.oracle.releases import Written, formats_of
from tests.support.oracle.spark_reader import key_names, operator_ids
from tests.support.spark.formats import HDFS_V1, StateFormat
from tests.support.spark.queries import QueryRun

_SESSIONS: Final = "sessionWindowStateStoreSaveExec"
_FIRST_KEYS: Final = {
    "window": "stateStoreSave",
    "seen": "dedupe",
    "lately": "dedupeWithinWatermark",
    "word": "applyInPandasWithState",
    "key": "globalLimit",
    "visitor": _SESSIONS,
}
"""The operators by the first columns of their keys, which the query names; of a join its directories tell."""


def read_spark_3(spark: SparkSession, written: Written) -> Mapping[StateFormat, KindsCheckpoint]:
    found: dict[StateFormat, KindsCheckpoint] = {}
    for state_format in formats_of(written.line):
        checkpoint = written.folder / state_format.id / "checkpoint"
        if checkpoint.exists():
            found[state_format] = _read(spark, QueryRun(checkpoint, state_format), found.get(HDFS_V1))
    return found


def _read(spark: SparkSession, run: QueryRun, twin: KindsCheckpoint | None) -> KindsCheckpoint:
    ids = operator_ids(run.checkpoint)
    (join,) = (each for each in ids if (run.checkpoint / f"state/{each}/0/left-keyToNumValues").exists())
    names = {_FIRST_KEYS[key_names(spark, run.checkpoint, each)[0]]: each for each in ids if each != join} | {
        "symmetricHashJoin": join
    }
    if twin is None:
        return read_kinds_checkpoint(spark, run, names)
    (sessions,) = twin.of(_SESSIONS)
    assert names.pop(_SESSIONS) == int(sessions.name.removeprefix("op"))
    oracle = read_kinds_checkpoint(spark, run, names)
    oracle.stores[sessions.name] = sessions
    return oracle
