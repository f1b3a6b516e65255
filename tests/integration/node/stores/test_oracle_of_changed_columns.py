"""State in Avro whose columns changed between two starts of a query is answered as Spark has it, on both sides."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.checkpoint.reader import CheckpointReader
from tests.support.cluster.served_node import Served, served_node
from tests.support.oracle.changed_columns import ADDED, OPERATOR, SOURCES, run_changing
from tests.support.oracle.custom_compared import assert_variable_equal
from tests.support.oracle.custom_state import VariableSource, in_order, read_variables
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import Kept, KindStore
from tests.support.spark.changing_state import after, before, changing_batches
from tests.support.spark.queries import wait_until

Found = dict[VariableSource, dict[int, list[Kept]]]


@pytest.mark.full
def test_values_lists_and_maps_have_the_columns_that_spark_reads_before_and_after_a_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint, old = tmp_path / "checkpoint", tmp_path / "old"
    first, second = changing_batches()
    kept_before = _run(spark, checkpoint, before, [first])
    shutil.copytree(checkpoint, old)
    kept_after = _run(spark, checkpoint, after, [first, second], [*SOURCES, ADDED])
    assert len(list((checkpoint / "state/0/_stateSchema/default").glob("[0-9]*"))) == 2
    mixed = [kept.said["values"] for kept in kept_after[SOURCES[1]][2] if kept.key == ["w5"]]
    assert {each["value"]["added"] is None for each in mixed[0]} == {True, False}, "a list has values of both"
    _compare(old, kept_before, 1, tmp_path / "a")
    _compare(checkpoint, kept_before, 1, tmp_path / "b")
    _compare(checkpoint, kept_after, 2, tmp_path / "c")


@pytest.mark.full
def test_a_node_that_runs_answers_with_the_columns_of_each_version_when_the_query_is_started_with_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    first, second = changing_batches()
    kept_before = _run(spark, checkpoint, before, [first])
    with served_node(checkpoint, tmp_path / "data") as served:
        wait_until(lambda: _shown(served) == {1}, what="version 1")
        _assert_served(served, kept_before, 1)
        with _reading_a_page(served, ["w5"], of=kept_before) as pages:
            kept_after = _run(spark, checkpoint, after, [first, second], [*SOURCES, ADDED])
            wait_until(lambda: _shown(served) == {2}, what="version 2")
            _assert_served(served, kept_after, 2)
            seen = pages()
            wait_until(lambda: pages() > seen, what="another page of version 1")
        stores: Any = served.get("/v1/stores").body["stores"]
        log = next(each for each in stores if each["store"] == "log")
        assert [column["name"] for column in log["value"]] == ["added", "part", "n", "few"]
        history: Any = served.get("/v1/stores/log").body["schemas"]
        assert [(each["schema_id"], each["from_batch"]) for each in history] == [(0, 0), (1, 1)]
        assert [column["name"] for column in history[0]["value"]] == ["n", "gone", "part", "few"]
        events: Any = served.lag()["events"]
        assert [each["event"] for each in events].count("schemas") == 1


@contextmanager
def _reading_a_page(served: Served, key: list[object], *, of: Found) -> Iterator[Callable[[], int]]:
    """Read the second page of a list again and again: it stays what it was. Gives how often it was read."""
    values = next(kept.said["values"] for kept in of[SOURCES[1]][1] if kept.key == key)
    beginning: Any = served.look_up(key, store="log", bounds="limit=1").body
    assert beginning["values"] == values[:1]
    read, ends = [0], threading.Event()

    def read_on() -> None:
        while not ends.is_set():
            page: Any = served.look_up(key, store="log", bounds=f"limit=1&cursor={beginning['next_cursor']}").body
            assert (page.get("version"), as_text(page.get("values"))) == (1, as_text(values[1:2])), page
            read[0] += 1

    with ThreadPoolExecutor(max_workers=1) as pool:
        reading = pool.submit(read_on)
        try:
            yield lambda: -1 if reading.done() else read[0]
        finally:
            ends.set()
        reading.result()


def _shown(served: Served) -> set[object]:
    """The versions that the node shows."""
    if served.not_ready():
        return set()
    stores: Any = served.lag()["stores"]
    return {each["current_offset_position"] for store in stores for each in store["partitions"]}


def _assert_served(served: Served, kept: Found, version: int) -> None:
    for source, versions in kept.items():
        assert versions[version], source.name
        answers: Any = served.look_up_all([each.key for each in versions[version]], store=source.name)
        for each, answer in zip(versions[version], answers, strict=True):
            said = in_order({member: answer.get(member) for member in each.said})
            assert as_text(said) == as_text(in_order(each.said)), f"{source.name} {each.key}: {answer}"
            assert (answer["version"], answer["partition"]) == (version, each.partition)


def _run(
    spark: SparkSession,
    checkpoint: Path,
    build: Callable[[DataFrame], DataFrame],
    batches: list[list[dict[str, object]]],
    sources: Sequence[VariableSource] = SOURCES,
) -> Found:
    run_changing(spark, checkpoint, build, batches)
    return read_variables(spark, checkpoint, sources, [len(batches) - 1])


def _compare(checkpoint: Path, kept: Found, version: int, folder: Path) -> None:
    with closing(CheckpointReader(checkpoint, folder)) as reader:
        for source, versions in kept.items():
            assert versions[version], source.name
            store = KindStore(source.name, OPERATOR, source.kind, versions)
            assert_variable_equal(reader, store, version)
