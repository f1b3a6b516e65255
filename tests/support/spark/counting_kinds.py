"""Sessions, a join and a list whose every answer can be checked by itself: at version V each is of V batches.

Each batch has every word once for each of its sessions, and so one row more for the side of a join, and one number more
for the list. Numbers tell which life of a batch they are of. A mix of two versions, or of two attempts, cannot pass.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.support.cluster.served_node import ServedNode
from tests.support.spark.formats import StateFormat
from tests.support.spark.queries import Build, QueryOptions, wait_until

SCHEMA = "word string, session long, number long"
WORDS = tuple(f"word-{number}" for number in range(12))
SESSIONS = 3
LIFE = 1_000_000
"""The numbers of a life of the query begin at so many of it."""
REWRITE_EVERY = 4
"""After so many numbers a list is written anew; else they are appended, which RocksDB merges."""
_FIRST_S, _DAY_S = 1_700_000_000, 86_400

LifeOf = Callable[[int], int]
"""In which life a batch was committed."""


def rows(batch: int, *, life: int = 1) -> list[dict[str, object]]:
    return [
        {"word": word, "session": session, "number": life * LIFE + batch}
        for word in WORDS
        for session in range(SESSIONS)
    ]


def builder(state_format: StateFormat) -> Build:
    """The query: sessions, a join whose left side waits for what never comes, and a list where Spark can keep one."""
    return _with_list if has_list(state_format) else _build


def has_list(state_format: StateFormat) -> bool:
    """Whether the query keeps a list: `transformWithState` wants RocksDB."""
    return state_format.provider == "rocksdb"


def _with_list(source: DataFrame) -> DataFrame:
    return _build(source).unionAll(_listed(source))


def _build(source: DataFrame) -> DataFrame:
    event = F.timestamp_seconds(F.lit(_FIRST_S) + F.col("session") * _DAY_S + F.col("number") % LIFE)
    timed = source.withColumn("event", event).withWatermark("event", "30 days")
    sessions = timed.groupBy("word", F.session_window("event", "1 hour")).agg(
        F.count("*").alias("n"), F.sum("number").alias("total")
    )
    left = timed.where("session = 0").select("word", "number")
    right = timed.where("number < 0").select(F.col("word").alias("other"), "event")
    joined = left.join(right, F.expr("word = other"))
    return joined.select(F.to_json(F.struct("word", "number")).alias("row")).unionAll(
        sessions.select(F.to_json(F.struct("word", "session_window", "n", "total")).alias("row"))
    )


def _listed(source: DataFrame) -> DataFrame:
    """The numbers of each word."""

    class Numbers(StatefulProcessor):  # in here, so that Spark's worker gets it whole
        def init(self, handle: Any) -> None:
            self.numbers = handle.getListState("numbers", "number long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            for row in rows:
                if row["number"] % LIFE % REWRITE_EVERY == 0:
                    self.numbers.put([*self.numbers.get(), (row["number"],)])
                else:
                    self.numbers.appendValue((row["number"],))
            yield Row(row=key[0])

        def close(self) -> None:
            pass

    keyed = source.where("session = 0").select("word", "number").groupBy("word")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PySpark, about pandas 3
        return keyed.transformWithState(Numbers(), "row string", "append", "None")


def options(state_format: StateFormat, **more: Any) -> QueryOptions:
    """How the query keeps its state: joins as column families where the format has them."""
    join_format = "3" if state_format.format_version == 2 else "2"
    return QueryOptions(
        partitions=2,
        output_mode="append",
        extra_conf={"spark.sql.streaming.join.stateFormatVersion": join_format},
        **more,
    )


def why_wrong(
    store: str,
    result: dict[str, Any],
    life_of: LifeOf,
    loses_watermarks: bool = False,
) -> str | None:
    """What is wrong with an answer, by itself; None when it is of one version, and of committed batches only.

    Where the logs of a version may be purged before they are read (`loses_watermarks`), its watermark is unknown, and
    so is whether a session has expired.
    """
    if "type" in result:
        return None
    numbers = [life_of(batch) * LIFE + batch for batch in range(result["version"])]
    if not result["found"]:
        return f"{result}: the key is gone"
    member = "rows" if store.endswith(".left") else "values"
    if member in result:
        found: object = [each["value"]["number"] for each in result[member]]
        expected: object = numbers
    else:
        found = [
            (each["value"]["count"], each["value"]["sum"], False if loses_watermarks else each["expired"])
            for each in result["sessions"]
        ]
        if any(each["expired"] for each in result["sessions"]):
            return f"{result}: a session that has not expired is called so"
        expected = [(len(numbers), sum(numbers), False)] * SESSIONS
    return None if found == expected else f"{store} at version {result['version']}: {found}, not {expected}"


class KindsWatch:
    """Looks every word up in every store, again and again, page by page and in batches."""

    def __init__(self, served: ServedNode, life_of: LifeOf, *, loses_watermarks: bool) -> None:
        self.wrong: list[str] = []
        self.versions: set[int] = set()
        self.failure: BaseException | None = None
        self._served = served
        self._life_of = life_of
        self._loses_watermarks = loses_watermarks
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kinds-watch")
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.005):
                for store, results in answers(self._served):
                    self.versions.update(each["version"] for each in results if "type" not in each)
                    wrong = (why_wrong(store, each, self._life_of, self._loses_watermarks) for each in results)
                    self.wrong += [why for why in wrong if why is not None][:3]
        except BaseException as error:  # reported by `kinds_watched`: a thread cannot fail a test
            self.failure = error


def answers(served: ServedNode) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What each store says of every word now; nothing of a store that is not there yet."""
    body = json.dumps({"keys": [[word] for word in WORDS]}).encode()
    for store in stores_of(served):
        reply = served.post(f"/v1/stores/{store}/lookup", body)
        if reply.status == 200:
            results: Any = reply.body["results"]
            yield store, results


def stores_of(served: ServedNode) -> Sequence[str]:
    reply = served.get("/v1/stores")
    described: Any = reply.body["stores"] if reply.status == 200 else []
    return [
        each["store"] for each in described if each["kind"] in {"session", "list"} or each["store"].endswith(".left")
    ]


@contextmanager
def kinds_watched(served: ServedNode, life_of: LifeOf, *, loses_watermarks: bool = False) -> Iterator[KindsWatch]:
    """No answer given while the block runs may be wrong."""
    watch = KindsWatch(served, life_of, loses_watermarks=loses_watermarks)
    try:
        yield watch
        wait_until(lambda: bool(watch.versions) or watch.failure is not None, what="an answer meanwhile")
    finally:
        watch.end()
    assert watch.failure is None, repr(watch.failure)
    assert watch.wrong == [], watch.wrong[:3]


def assert_all_right(served: ServedNode, state_format: StateFormat, version: int, life_of: LifeOf) -> None:
    """Every word in every kind of store is answered at a version, and right."""
    count = 3 if has_list(state_format) else 2
    wait_until(lambda: len(stores_of(served)) == count, what="every store")
    for store in stores_of(served):
        wait_until(partial(_shows, served, store, version), what=f"version {version} of {store}")
    for store, results in answers(served):
        assert [each["status"] for each in results] == [200] * len(WORDS), (store, results)
        assert {each["version"] for each in results} == {version}
        assert [why for each in results if (why := why_wrong(store, each, life_of))] == []


def _shows(served: ServedNode, store: str, version: int) -> bool:
    parts = served.partitions(store)
    return bool(parts) and all(part["current_offset_position"] == version for part in parts)


def checkpoint_state(checkpoint: Path, version: int) -> dict[str, bytes]:
    """The state files of a version, of every operator, by their path."""
    return {
        str(path.relative_to(checkpoint)): path.read_bytes()
        for path in sorted((checkpoint / "state").rglob("*"))
        if path.is_file() and path.name.split(".")[0].split("_")[0] == str(version) and path.suffix in _STATE_FILES
    }


_STATE_FILES = frozenset({".delta", ".changelog", ".snapshot", ".zip"})
