"""`announce` on a real query and a real Redis: what it announces fits the checkpoint, and it never disturbs the query.

One query with four stateful operators runs through the whole module; each test announces it anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.bus.ear import Ear
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.checkpoint.reader import CheckpointReader
from tests.support.matrix import in_full
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V2
from tests.support.spark.queries import (
    InputFolder,
    InputRow,
    StreamFeeder,
    committed_batches,
    read_folder,
    start_query,
    stream_feeder,
    wait_until,
)

from understudy_pipeline import announce
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import AnnouncedStore, Announcement, ResultColumn
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.fleet.applications_file import normal_location
from understudy_shared.spark.unsafe_row import compile_row_decoder

APPLICATION = "announced"
SCHEMA = "k string, at timestamp, i int, wide decimal(20,2), narrow decimal(7,2), d double, s string"
LIMIT_S = 60

Branches = dict[str, DataFrame]


def branches(flights: DataFrame) -> Branches:
    """Queries by the name of their store; `op2` carries no alias."""
    of_all_kinds = flights.groupBy("k").agg(
        F.count("*").alias("n"),
        F.sum("i").alias("i_sum"),
        F.sum("wide").alias("wide_sum"),
        F.sum("narrow").alias("narrow_sum"),
        F.avg("d").alias("d_mean"),
        F.avg("wide").alias("wide_mean"),
        F.max("at").alias("last"),
        F.first("i").alias("first_i"),
        F.min("s").alias("s_min"),
        F.count("i").alias("i_count"),
        F.sum("i").alias("i_sum_again"),
        (F.sum("i") * 2).alias("twice"),
    )
    timed = flights.withWatermark("at", "1 hour").groupBy(F.window("at", "1 hour"), F.upper("k").alias("upper_k"))
    return {
        "kinds": of_all_kinds.alias("kinds"),
        "hours": timed.count().withColumnRenamed("count", "flights").alias("hours"),
        "op2": flights.groupBy(F.col("s").alias("label")).agg(
            F.collect_list("i").alias("list"), F.max("i").alias("i_max")
        ),
        "everything": flights.agg(F.count("*").alias("total"), F.max("d").alias("d_max")).alias("everything"),
    }


def build(flights: DataFrame) -> DataFrame:
    outputs = [frame.select(F.to_json(F.struct("*")).alias("output")) for frame in branches(flights).values()]
    return reduce(DataFrame.unionAll, outputs)


def rows(batch: int) -> list[InputRow]:
    """Ten rows of one hour, with nulls in every column, and a key whose amounts are all null. Sums of `d` are exact in
    any order.
    """
    return [
        {
            "k": [None, "a", "b", "empty"][at % 4],
            "at": None if at == 9 else datetime(2013, 1, 1, 10, 5 * at, batch % 60, tzinfo=UTC),
            "i": None if at % 4 == 3 else 10 * batch + at,
            "wide": None if at % 4 == 3 else Decimal(f"{batch}{at}.25"),
            "narrow": None if at % 4 == 3 else Decimal(f"-{at}.1{batch % 10}"),
            "d": None if at % 4 == 3 else batch + at / 8,
            "s": None if at == 5 else f"label-{at % 3}",
        }
        for at in range(10)
    ]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(scope="module")
def feeder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamFeeder]:
    with stream_feeder(
        spark,
        name="announced",
        schema=SCHEMA,
        build=build,
        checkpoint=tmp_path_factory.mktemp("announced") / "checkpoint",
        state_format=ROCKSDB_CHANGELOG_V2,
    ) as running:
        running.add(rows(0))
        yield running


@pytest.fixture
def ear(server: RedisServer) -> Iterator[Ear]:
    with closing(Ear(server.url, APPLICATION)) as listening:
        yield listening


def until(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what=what, limit_s=LIMIT_S)


def last_version(feeder: StreamFeeder) -> int:
    return committed_batches(feeder.checkpoint)[-1] + 1


def read_announcement(url: str) -> Announcement | None:
    async def read() -> Announcement | None:
        bus = RedisBus(url)
        try:
            return await Gossip(bus, APPLICATION).announcement()
        finally:
            await bus.close()

    return asyncio.run(read())


def test_what_is_announced_fits_the_checkpoint_and_gives_what_the_query_outputs(
    spark: SparkSession, feeder: StreamFeeder, server: RedisServer, tmp_path: Path
) -> None:
    for batch in (1, 2):
        feeder.add(rows(batch))
    with announce(feeder.query, application_id=APPLICATION, redis=server.url) as announced:
        until(lambda: announced.is_announced, "the announcement")
    announcement = read_announcement(server.url)
    assert announcement is not None
    assert [store.name for store in announcement.stores] == ["kinds", "hours", None, "everything"]
    assert announcement.checkpoint is not None
    assert normal_location(announcement.checkpoint) == str(feeder.checkpoint)
    expected = branches(spark.read.schema(SCHEMA).json(f"{feeder.checkpoint}.input"))
    with closing(CheckpointReader(feeder.checkpoint, tmp_path)) as reader:
        assert announcement.query_id == reader.description.query_id
        for store in announcement.stores:
            (served,) = (each for each in reader.stores.values() if each.operator_id == store.operator_id)
            assert store.value == list(served.value_names), "the value's columns are the checkpoint's"
            assert store.key is not None
            assert len(store.key) == len(served.key_schema.fields)
            key, value = compile_row_decoder(served.key_schema), compile_row_decoder(served.value_schema)
            found = {
                repr(plain(key(row.key))): {each.name: compute(each, value(row.value)) for each in in_any_order(store)}
                for row in reader.rows(served, last_version(feeder))
            }
            assert found == output_of(expected[store.name or f"op{store.operator_id}"], store)
            assert len(found) >= 1
    results = {
        store.operator_id: [(each.name, each.function) for each in store.result] for store in announcement.stores
    }
    assert results == {
        0: [
            ("n", "count"),
            ("i_sum", "sum"),
            ("wide_sum", "sum"),
            ("narrow_sum", "sum"),
            ("d_mean", "avg"),
            ("wide_mean", "avg"),
            ("last", "max"),
            ("first_i", "first"),
            ("s_min", "min"),
            ("i_count", "count"),
            ("i_sum_again", "sum"),
        ],
        1: [("flights", "count")],
        2: [("list", "collect_list"), ("i_max", "max")],
        3: [("total", "count"), ("d_max", "max")],
    }


def test_every_commit_is_hinted_after_the_last_one_before_and_none_after_close(
    feeder: StreamFeeder, server: RedisServer, ear: Ear
) -> None:
    before = last_version(feeder)
    with announce(feeder.query, application_id=APPLICATION, redis=server.url):
        until(lambda: ear.hints() == [before], "the hint of the last commit before the call")
        for added in (1, 2):
            feeder.add(rows(before + added))
            until(lambda added=added: ear.hints()[-1] == before + added, "the hint of a commit")  # type: ignore[misc]
    batch = feeder.add(rows(before + 3))
    until(lambda: _progress_of(feeder) == batch, "Spark's own report of the batch")
    server.command("PUBLISH", ear.channel, b"end")
    until(lambda: bool(ear.hints()) and ear.heard[-1] == b"end", "all that was said before")
    assert ear.hints() == [before, before + 1, before + 2]


def test_commits_of_another_query_of_the_session_are_not_hinted(
    spark: SparkSession, feeder: StreamFeeder, server: RedisServer, ear: Ear, tmp_path: Path
) -> None:
    before = last_version(feeder)
    feed = InputFolder(tmp_path / "input")
    for batch in range(before + 4):
        feed.add(rows(batch))
    with announce(feeder.query, application_id=APPLICATION, redis=server.url):
        other = start_query(read_folder(spark, feed, SCHEMA), tmp_path / "other", name="stateless", available_now=True)
        other.awaitTermination()
        assert committed_batches(tmp_path / "other")[-1] == before + 3
        feeder.add(rows(before))
        until(lambda: before + 1 in ear.hints(), "the hint of its own commit")
    assert ear.hints() == [before, before + 1]


@pytest.mark.parametrize("fault", in_full(("dead", "hung"), if_in=("dead",)))
def test_the_query_goes_on_without_redis_and_is_announced_when_it_is_back(feeder: StreamFeeder, fault: str) -> None:
    with redis_server(running=fault == "hung") as server:
        if fault == "hung":
            server.pause()
        with announce(feeder.query, application_id=APPLICATION, redis=server.url) as announced:
            for batch in range(3):
                feeder.add(rows(batch))
            assert feeder.query.isActive
            assert not announced.is_announced
            server.resume() if fault == "hung" else server.start()
            until(lambda: announced.is_announced, "the announcement")
            with closing(Ear(server.url, APPLICATION)) as ear:
                feeder.add(rows(8))
                until(lambda: ear.hints()[-1:] == [last_version(feeder)], "a hint")
        assert feeder.query.exception() is None


def _progress_of(feeder: StreamFeeder) -> int:
    progress = feeder.query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def compute(column: ResultColumn, value: object) -> object:
    """The result by its definition, from the decoded buffers."""
    assert isinstance(value, tuple)
    first, *rest = [value[index] for index in column.buffers]
    decimal = column.type.startswith("decimal(")
    scale = int(column.type.rstrip(")").partition(",")[2]) if decimal else 0
    match column.function, rest:
        case "count" | "min" | "max", []:
            return first
        case "sum", [] if decimal:  # a short decimal's sum is kept as an unscaled long
            return None if first is None else Decimal(first).scaleb(-scale)
        case "sum", []:
            return first
        case "sum", [is_empty]:
            return None if is_empty else first
        case "avg", [count] if decimal:
            return None if not count else (first / count).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        case "avg", [count]:
            return None if not count else first / count
        case _:
            raise AssertionError(f"{column}")


def in_any_order(store: AnnouncedStore) -> list[ResultColumn]:
    """Results that are the same in whichever order the rows come."""
    return [column for column in store.result if column.function not in ("first", "collect_list")]


def output_of(frame: DataFrame, store: AnnouncedStore) -> dict[str, dict[str, object]]:
    """What Spark outputs for the same input in one go, by key: announced names are its columns."""
    assert store.key is not None
    names = [column.name for column in in_any_order(store)]
    found = {}
    for row in frame.collect():
        key = tuple(row[name] for name in store.key)
        found[repr(plain(key))] = {name: plain(row[name]) for name in names}
    return found


def plain(value: object) -> object:
    """Timestamps as microseconds, rows as tuples."""
    match value:
        case datetime():
            utc = value if value.tzinfo else datetime.fromtimestamp(time.mktime(value.timetuple()), UTC)
            return int(utc.timestamp()) * 1_000_000 + value.microsecond
        case tuple():
            return tuple(plain(part) for part in value)
        case _:
            return value
