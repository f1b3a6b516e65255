"""A query whose every answer can be checked by itself: at version V, every word has been counted V times.

Each batch has every word once, so a word's count *is* the version, a sum tells the inputs apart, and a word `born-<B>`
exists from batch B on. A mix of two versions, or of two histories, cannot pass.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.cluster.served_node import ServedNode
from tests.support.oracle.spark_reader import read_state
from tests.support.spark.formats import StateFormat
from tests.support.spark.queries import (
    QueryOptions,
    StreamFeeder,
    committed_batches,
    run_query,
    stream_feeder,
    wait_until,
)

from understudy_shared.reads.tokens import decode_position

SCHEMA = "word string, number long"
WORDS = tuple(f"word-{n}" for n in range(40))


def build(source: DataFrame) -> DataFrame:
    return source.groupBy("word").agg(F.count("*").alias("n"), F.sum("number").alias("total"))


def rows(batch: int, *, life: int = 1) -> list[dict[str, object]]:
    """The input of a batch; another `life` has other numbers."""
    words = [*WORDS, *(f"born-{born}" for born in range(batch + 1))]
    return [{"word": word, "number": life * 1_000_000 + batch} for word in words]


@contextmanager
def counting_feeder(
    spark: SparkSession, checkpoint: Path, state_format: StateFormat, options: QueryOptions | None = None
) -> Iterator[StreamFeeder]:
    with stream_feeder(
        spark,
        name="counting",
        schema=SCHEMA,
        build=build,
        checkpoint=checkpoint,
        state_format=state_format,
        options=options,
    ) as feeder:
        yield feeder


def run_counting(
    spark: SparkSession,
    checkpoint: Path,
    state_format: StateFormat,
    batches: int,
    *,
    life: int = 1,
    options: QueryOptions | None = None,
) -> None:
    """Run the query up to that many batches in all, and stop it."""
    run_query(
        spark,
        name="counting",
        schema=SCHEMA,
        batches=[rows(batch, life=life) for batch in range(batches)],
        build=build,
        checkpoint=checkpoint,
        state_format=state_format,
        options=options,
    )


def why_mixed(result: dict[str, object], *, inputless: frozenset[int] = frozenset()) -> str | None:
    """What is wrong with an answer of this query, by itself; None when it is of one version throughout.

    `inputless` are versions that counted nothing: an offline repartition's.
    """
    if "type" in result:
        return None
    key, version, value = result["key"], result["version"], result.get("value")
    assert isinstance(key, dict)
    assert isinstance(version, int)
    assert value is None or isinstance(value, dict)
    born = int(key["word"].removeprefix("born-")) if key["word"].startswith("born-") else 0
    expected = max(0, version - sum(1 for other in inputless if other <= version) - born)
    counted = 0 if value is None else value["count"]
    return None if counted == expected else f"{result} should be counted {expected} times"


def assert_as_spark_reads(served: ServedNode, spark: SparkSession, checkpoint: Path) -> None:
    """Every key, its partition and its value are what Spark's own reader finds at the last commit, and no key more."""
    batch_id = committed_batches(checkpoint)[-1]
    served.wait_for_version(batch_id + 1)
    expected = {row.key[0]: (row.partition, row.value) for row in read_state(spark, checkpoint, 0, batch_id)}
    assert len(expected) >= len(WORDS)
    answers = served.look_up_all([[word] for word in expected])
    found = {}
    for word, answer in zip(expected, answers, strict=True):
        assert answer["status"] == 200, answer
        assert answer["version"] == batch_id + 1
        assert isinstance(answer["value"], dict)
        found[word] = (answer["partition"], tuple(answer["value"].values()))
    assert found == expected
    generation = served.node.generation
    assert generation is not None
    (holding,) = generation.readers.values()
    views = [replica.view for replica in holding.replicas.values()]
    assert sum(1 for view in views if view is not None for _ in view.stores["default"].scan()) == len(expected)


class Watch:
    """Looks every word up, again and again, while something happens to the checkpoint."""

    def __init__(self, served: ServedNode, *, inputless: frozenset[int], rewound: bool) -> None:
        self._served = served
        self._inputless = inputless
        self._rewound = rewound
        self._seen: dict[tuple[str, str], int] = {}
        self.lineages: list[str] = []
        self._ended = threading.Event()
        self._body = json.dumps({"keys": [[word] for word in (*WORDS, "born-2", "born-5")]}).encode()
        self.wrong: list[str] = []
        self.answered = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="watch")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(30)

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.002):
                self._look()
        except BaseException as error:  # reported by `watched`: a thread of its own cannot fail the test
            self.failure = error

    def _look(self) -> None:
        reply = self._served.post("/v1/stores/op0/lookup", self._body)
        if reply.status != 200:
            assert reply.problem in {"not-initialised", "store-error"}
            return
        results = reply.body["results"]
        assert isinstance(results, list)
        self.answered += sum(1 for result in results if "type" not in result)
        wrong = (why_mixed(result, inputless=self._inputless) for result in results)
        self.wrong += [why for why in wrong if why is not None][:3]
        for result in results:
            self._note_history(result)

    def _note_history(self, result: dict[str, object]) -> None:
        """Note the version that a partition shows: within one history it may never go back."""
        if "type" in result:
            return
        position = decode_position(str(result["position"]))
        if position.lineage not in self.lineages:
            self.lineages.append(position.lineage)
        if position.lineage != self.lineages[-1]:
            self.wrong.append(f"{result} is of a history that had ended")
        partition = (position.lineage, str(result["partition"]))
        if not self._rewound and position.version < self._seen.get(partition, 0):
            self.wrong.append(f"{result} goes back from version {self._seen[partition]}")
        self._seen[partition] = position.version


@contextmanager
def watched(served: ServedNode, *, inputless: frozenset[int] = frozenset(), rewound: bool = False) -> Iterator[Watch]:
    """No answer given while the block runs may be a mix of versions, nor, unless `rewound`, older than one before."""
    watch = Watch(served, inputless=inputless, rewound=rewound)
    try:
        yield watch
        wait_until(lambda: watch.answered > 0 or watch.failure is not None, what="an answer meanwhile")
    finally:
        watch.end()
    assert watch.failure is None, repr(watch.failure)
    assert watch.wrong == [], watch.wrong[:3]
