"""The windows of a key are those that Spark's own state reader has, in order, told apart by the watermark (Q18-Q20)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.types import StructType, TimestampType
from tests.support.bus.redis_server import RedisServer
from tests.support.cluster.in_process import cluster
from tests.support.cluster.served_node import Served, ServedNode, served_node
from tests.support.matrix import in_full
from tests.support.oracle.json import as_text, json_object, json_value
from tests.support.oracle.scanned import pages
from tests.support.oracle.spark_reader import operator_ids, read_versions, row_types
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import QueryOptions, run_query, wait_until
from tests.support.spark.windowed import DELAY, STARTS, WINDOWED_SCHEMA, WINDOWS, build_windowed, windowed_batches

PARTITIONS = 2
MINUTE_US = 60_000_000
Windows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Window:
    """A window that Spark's reader has: its key without it, and what an answer says of it."""

    key: tuple[object, ...]
    start: int
    end: int
    said: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Windowed:
    """A checkpoint with the windows of each store at each version. `watermarks` are, of each version in microseconds,
    that of its batch and the one that it left to the next.
    """

    path: Path
    stores: dict[str, str]
    windows: dict[str, dict[int, list[Window]]]
    watermarks: dict[int, tuple[int, int]]

    @property
    def last(self) -> int:
        return max(self.watermarks)

    def expected(  # a range of a version
        self, windows: list[Window], version: int, low: int, high: int, by: str
    ) -> Windows:
        """Return the windows that an answer for a key must have."""
        _, closed_us = self.watermarks[version]
        return [
            {"start": each.said["start"], "end": each.said["end"], "state": state, "value": each.said["value"]}
            for each in sorted(windows, key=lambda window: window.start)
            if (low <= each.start < high if by == "start" else each.start < high and low < each.end)
            for state in ("closed" if each.end <= closed_us else "open",)
        ]


FORMATS = (HDFS_V1, ROCKSDB_CHANGELOG_V2)


@pytest.fixture(
    scope="module", params=in_full(FORMATS, if_in=(ROCKSDB_CHANGELOG_V2.id,), names=[each.id for each in FORMATS])
)
def windowed(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Windowed:
    state_format: StateFormat = request.param
    run = run_query(
        spark,
        name="windowed",
        schema=WINDOWED_SCHEMA,
        batches=windowed_batches(),
        build=build_windowed,
        checkpoint=tmp_path_factory.mktemp(state_format.id) / "checkpoint",
        state_format=state_format,
        options=QueryOptions(partitions=PARTITIONS, min_deltas_for_snapshot=2, output_mode="append"),
    )
    stores, windows = {}, {}
    for operator in operator_ids(run.checkpoint):
        key_type, value_type = row_types(spark, run.checkpoint, operator)
        (name,) = WINDOWS.keys() & set(key_type.fieldNames())
        stores[name] = f"op{operator}"
        read = read_versions(spark, run.checkpoint, operator, run.batch_ids)
        windows[name] = {
            batch + 1: [_window(row.key, row.value, key_type, value_type) for row in read[batch]] for batch in read
        }
    return Windowed(run.checkpoint, stores, windows, {batch + 1: _watermarks(run.checkpoint, batch) for batch in read})


def _window(key: tuple[Any, ...], value: tuple[Any, ...], key_type: StructType, value_type: StructType) -> Window:
    of_sessions = "session_window" in value_type.fieldNames()
    if of_sessions:
        at, row = len(key) - 1, value[value_type.fieldNames().index("session_window")]
    else:
        at = next(at for at, field in enumerate(key_type.fields) if isinstance(field.dataType, StructType))
        row = key[at]
    start, end = row
    moments = {"start": json_value(start, TimestampType()), "end": json_value(end, TimestampType())}
    return Window((*key[:at], *key[at + 1 :]), start, end, {**moments, "value": json_object(value, value_type)})


def _watermarks(checkpoint: Path, batch: int) -> tuple[int, int]:
    offsets = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[1])
    commit = json.loads((checkpoint / "commits" / str(batch)).read_text().splitlines()[1])
    return offsets["batchWatermarkMs"] * 1000, commit["nextBatchWatermarkMs"] * 1000


def wait_for_all(served: ServedNode, windowed: Windowed) -> None:
    """Return when every store shows the last version."""
    for store in windowed.stores.values():
        served.wait_for_version(windowed.last, partitions=PARTITIONS, store=store)


def target(windowed: Windowed, name: str, key: tuple[object, ...], **asked: object) -> str:
    query = "".join(f"&{member}={quote(str(value))}" for member, value in asked.items())
    return f"/v1/stores/{windowed.stores[name]}/windows?key={quote(json.dumps(list(key)))}{query}"


def found(served: Served, windowed: Windowed, name: str, key: tuple[object, ...], **asked: object) -> Windows:
    """The windows on all pages of a question."""
    windows: Windows = []
    cursor = None
    while True:
        page: Any = served.get(target(windowed, name, key, **asked, **({"cursor": cursor} if cursor else {})))
        assert page.status == 200, page
        windows += page.body["windows"]
        cursor = page.body["next_cursor"]
        if cursor is None:
            return windows


def text(moment_us: int) -> str:
    return str(json_value(moment_us, TimestampType()))


def test_what_the_comparison_is_about_did_occur(windowed: Windowed) -> None:
    assert windowed.stores.keys() == WINDOWS.keys()
    states = {
        window["state"]
        for version in windowed.watermarks
        for name in WINDOWS
        for each in windowed.windows[name][version]
        for window in windowed.expected([each], version, each.start, each.end, "start")
    }
    assert states == {"open", "closed"}
    early = {name for name in WINDOWS if min(each.start for each in windowed.windows[name][2]) < 0}
    assert early >= {"sliding", "shifted"}, "no window begins before 1970"
    for name in WINDOWS:
        first, last = windowed.windows[name][1], windowed.windows[name][windowed.last]
        assert {each.start for each in first} - {each.start for each in last}, "nothing was evicted"
        assert max(len([each for each in last if each.key == of.key]) for of in last) > 2


@pytest.mark.parametrize("name", WINDOWS)
def test_the_windows_of_a_key_are_those_that_spark_reads(windowed: Windowed, name: str, tmp_path: Path) -> None:
    """Q18, Q20."""
    with served_node(windowed.path, tmp_path / "data") as served:
        wait_for_all(served, windowed)
        for version in (1, windowed.last - 1, windowed.last):
            kept = windowed.windows[name][version]
            of_keys = {repr(each.key): [other for other in kept if repr(other.key) == repr(each.key)] for each in kept}
            for windows in sorted(of_keys.values(), key=len)[-3:]:
                key, some = windows[0].key, windows[len(windows) // 2]
                every = found(served, windowed, name, key, version=version)
                assert as_text(every) == as_text(windowed.expected(windows, version, -(2**62), 2**62, "start"))
                assert found(served, windowed, name, key, version=version, limit=1) == every
                for low, high in _ranges(some):
                    for by in ("start", "overlap"):
                        asked = {"from": text(low), "to": text(high), "by": by, "version": version}
                        expected = as_text(windowed.expected(windows, version, low, high, by))
                        assert as_text(found(served, windowed, name, key, **asked)) == expected, asked
            page: Any = served.get(target(windowed, name, kept[0].key, version=version)).body
            evicted_us, closed_us = windowed.watermarks[version]
            assert page["evicted_before"] == (text(evicted_us) if evicted_us else None)
            assert page["closed_before"] == (text(closed_us) if closed_us else None)


def _ranges(window: Window) -> list[tuple[int, int]]:
    """Ranges with a bound on an edge of a window, and one microsecond beside it."""
    start, end = window.start, window.end
    return [
        (start, start + 1), (start + 1, end), (start - 1, start), (start, end), (end, end + MINUTE_US), (end - 1, end),
        (start - 30 * MINUTE_US, start), (start - 30 * MINUTE_US, end + 30 * MINUTE_US),
    ]  # fmt: skip


def test_a_question_for_windows_that_does_not_fit_is_refused(windowed: Windowed, tmp_path: Path) -> None:
    """Q18: empty and reversed ranges."""
    with served_node(windowed.path, tmp_path / "data") as served:
        wait_for_all(served, windowed)
        for name in ("tumbling", "sessions"):
            key = windowed.windows[name][windowed.last][0].key
            start = text(windowed.windows[name][windowed.last][0].start)
            for asked, where in (
                ({"from": start, "to": start}, "from"),
                ({"from": start, "to": "1900-01-01T00:00:00Z"}, "from"),
                ({"from": "yesterday"}, "from, column "),
                ({"by": "end"}, "by"),
                ({"order": "key"}, "order"),
                ({"limit": 0}, "limit"),
                ({"cursor": "sc1.x"}, "cursor"),
            ):
                reply = served.get(target(windowed, name, key, **asked))
                assert (reply.status, str(reply.body["where"])[: len(where)]) == (400, where), asked
            assert served.get(target(windowed, name, (*key, 1))).problem == "bad-key"
            assert served.get(f"/v1/stores/{windowed.stores[name]}/windows").problem == "bad-key"
            absent = served.get(target(windowed, name, (9_999, *key[1:])))
            assert (absent.status, absent.body["windows"], absent.body["next_cursor"]) == (200, [], None)


def test_sessions_are_sought_and_windows_of_time_are_passed_over(windowed: Windowed, tmp_path: Path) -> None:
    with served_node(windowed.path, tmp_path / "data") as served:
        wait_for_all(served, windowed)
        key = windowed.windows["sessions"][windowed.last][0].key
        own = [each for each in windowed.windows["sessions"][windowed.last] if each.key == key]
        page: Any = served.get(target(windowed, "sessions", key, explain="true")).body
        assert page["explain"]["access"] == "seek"
        assert page["explain"]["looked_at"] == page["explain"]["returned"] == len(own)
        assert len(page["explain"]["partitions"]) == 1
        key = windowed.windows["shifted"][windowed.last][0].key
        page = served.get(target(windowed, "shifted", key, explain="true")).body
        assert page["explain"]["looked_at"] == len(windowed.windows["shifted"][windowed.last])
        assert page["explain"]["access"] == "filtered-pass"


def test_a_prefix_of_the_key_of_sessions_is_sought(windowed: Windowed, tmp_path: Path) -> None:
    """Q6."""
    with served_node(windowed.path, tmp_path / "data") as served:
        wait_for_all(served, windowed)
        for site in (None, -1, 0, 256):
            (page,) = pages(served, windowed.stores["sessions"], prefix=[site], explain=True)
            keys = {repr(each.key) for each in windowed.windows["sessions"][windowed.last] if each.key[0] == site}
            assert {repr(tuple(row["key"].values())) for row in page["rows"]} == keys
            assert page["explain"]["access"] == "seek"
            assert page["explain"]["looked_at"] == len(page["rows"])


def test_windows_across_keys_are_found_by_a_filter_of_their_column(windowed: Windowed, tmp_path: Path) -> None:
    with served_node(windowed.path, tmp_path / "data") as served:
        wait_for_all(served, windowed)
        windows = windowed.windows["sliding"][windowed.last]
        some = windows[len(windows) // 2]
        where = [["window.start", "<", text(some.end)], ["window.end", ">", text(some.start)]]
        rows = [row for page in pages(served, windowed.stores["sliding"], where=where) for row in page["rows"]]
        assert len(rows) == len([each for each in windows if each.start < some.end and each.end > some.start]) > 0


def _counted(source: DataFrame, *, window: Column) -> DataFrame:
    return source.withWatermark("event", DELAY).groupBy("site", window).count()


def test_a_query_that_went_on_with_other_windows_has_all_of_them_in_its_answers(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark does not ask, so no plan of a run says which windows a state has: candidates by one would lose some."""
    tumbling, shifted = F.window("event", "10 minutes"), F.window("event", "10 minutes", "4 minutes", "1 minute")
    moments = STARTS[2], STARTS[2] + timedelta(minutes=7)
    for runs, window in enumerate((tumbling, shifted), 1):
        run = run_query(
            spark,
            name="other_windows",
            schema=WINDOWED_SCHEMA,
            batches=[[{"site": 1, "name": "a", "n": 1, "event": moment}] for moment in moments[:runs]],
            build=partial(_counted, window=window),
            checkpoint=tmp_path / "checkpoint",
            state_format=HDFS_V1,
            options=QueryOptions(partitions=PARTITIONS),
        )
    types = row_types(spark, run.checkpoint, 0)
    kept = [_window(row.key, row.value, *types) for row in read_versions(spark, run.checkpoint, 0, [1])[1]]
    windowed = Windowed(run.checkpoint, {"other": "op0"}, {"other": {2: kept}}, {2: _watermarks(run.checkpoint, 1)})
    assert sorted(each.start // MINUTE_US % 4 for each in kept) == [0, 1, 1], "windows of both runs"
    with served_node(run.checkpoint, tmp_path / "data") as served:
        served.wait_for_version(2, partitions=PARTITIONS)
        expected = windowed.expected(kept, 2, -(2**62), 2**62, "start")
        assert as_text(found(served, windowed, "other", (1,))) == as_text(expected)


def _is_at_rest(router: Served, version: int) -> bool:
    """Whether both nodes have every partition of every store."""
    stores: Any = router.lag()["stores"] if not router.not_ready() else []
    shown = [each["current_offset_position"] for store in stores for each in store["partitions"]]
    return shown == [version] * (2 * PARTITIONS * len(WINDOWS))


def test_a_router_answers_as_a_node_that_has_every_partition(
    windowed: Windowed, tmp_path: Path, redis: RedisServer
) -> None:
    with cluster(windowed.path, tmp_path, redis.url, nodes=2) as known:
        wait_until(lambda: _is_at_rest(known.router, windowed.last), what="two replicas of every task")
        node, router = known.nodes["n1"], known.router
        for name in WINDOWS:
            key = windowed.windows[name][windowed.last][0].key
            for asked in ({}, {"limit": 1}, {"longs": "string"}, {"from": text(0), "by": "overlap"}, {"from": "x"}):
                of_node = node.get(target(windowed, name, key, explain="true", **asked))
                of_router = router.get(target(windowed, name, key, explain="true", **asked))
                assert of_router.body == of_node.body, (name, asked)
                assert of_router.status == (400 if asked.get("from") == "x" else 200)
