"""`result` beside `value` is what the query itself outputs; names and results come from a file or an announcement."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import held
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import WORDS
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V2
from tests.support.spark.queries import InputFolder, QueryOptions, read_folder, settings, wait_until

from understudy_node.cluster.heartbeat import catalogue_of
from understudy_shared.base.words import Role
from understudy_shared.bus.messages import AnnouncedStore, Announcement, ResultColumn
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.types import parse_schema
from understudy_shared.spark.unsafe_row import compile_row_encoder

SCHEMA = "k string, i int, x double, f float, small decimal(6,2), mid decimal(10,2), big decimal(25,3), at timestamp"
BATCHES: list[list[dict[str, object]]] = [
    [
        {"k": "mixed", "i": 1, "x": 0.1, "f": 0.1, "small": "1.25", "mid": "10.01", "big": "1.001"},
        {"k": "mixed", "i": None, "x": None, "f": None, "small": None, "mid": None, "big": None},
        {"k": "nulls", "i": None, "x": None, "f": None, "small": None, "mid": None, "big": None},
        {"k": "nan", "i": 7, "x": "NaN", "f": "Infinity", "small": "0.01", "mid": "0.02", "big": "0.005"},
        {"k": "minus", "i": -3, "x": -0.0, "f": -2.5, "small": "-9999.99", "mid": "-0.01", "big": "-7.777"},
        {"k": None, "i": 4, "x": 2.5, "f": 1.5, "small": "3.10", "mid": "4.20", "big": "5.300"},
    ],
    [
        {"k": "mixed", "i": 2, "x": 0.2, "f": 0.2, "small": "2.50", "mid": "20.02", "big": "2.002"},
        {"k": "mixed", "i": 3, "x": 0.3, "f": 0.3, "small": "0.01", "mid": "0.03", "big": "99999999999999999.999"},
        {"k": "minus", "i": -4, "x": 1e-300, "f": 9.75, "small": "0.02", "mid": "-0.02", "big": "0.002"},
        {"k": "minus", "i": -4, "x": 1e300, "f": 9.75, "small": "0.03", "mid": "-0.02", "big": "0.003"},
        {"k": "late", "i": 5, "x": 1.0, "f": 3.0, "small": "1.00", "mid": "2.00", "big": "3.000"},
    ],
]
ALIASES = """
[op0]
name = "totals"
value = ["n", "n_i", "sum_i", "sum_x", "sum_small", "sum_mid", "mid_empty", "sum_big", "big_empty",
    "ai_sum", "ai_count", "ax_sum", "ax_count", "as_sum", "as_count", "ab_sum", "ab_count", "min_f", "max_k", "max_big"]

[op0.result]
n = { function = "count", buffers = ["n"] }
n_i = { function = "count", buffers = [1] }
sum_i = { function = "sum", buffers = ["sum_i"] }
sum_x = { function = "sum", buffers = ["sum_x"], type = "double" }
sum_small = { function = "sum", buffers = ["sum_small"], type = "decimal(16,2)" }
sum_mid = { function = "sum", buffers = ["sum_mid", "mid_empty"], type = "decimal(20,2)" }
sum_big = { function = "sum", buffers = ["sum_big", "big_empty"] }
avg_i = { function = "avg", buffers = ["ai_sum", "ai_count"] }
avg_x = { function = "avg", buffers = ["ax_sum", "ax_count"] }
avg_small = { function = "avg", buffers = ["as_sum", "as_count"], type = "decimal(10,6)" }
avg_big = { function = "avg", buffers = ["ab_sum", "ab_count"] }
min_f = { function = "min", buffers = ["min_f"] }
max_k = { function = "max", buffers = ["max_k"] }
max_big = { function = "max", buffers = ["max_big"] }
"""


def build(source: DataFrame) -> DataFrame:
    """Every function over nulls, of every kind of number."""
    return source.groupBy("k").agg(
        F.count("*").alias("n"),
        F.count("i").alias("n_i"),
        F.sum("i").alias("sum_i"),
        F.sum("x").alias("sum_x"),
        F.sum("small").alias("sum_small"),
        F.sum("mid").alias("sum_mid"),
        F.sum("big").alias("sum_big"),
        F.avg("i").alias("avg_i"),
        F.avg("x").alias("avg_x"),
        F.avg("small").alias("avg_small"),
        F.avg("big").alias("avg_big"),
        F.min("f").alias("min_f"),
        F.max("k").alias("max_k"),
        F.max("big").alias("max_big"),
    )


def run_into_memory(spark: SparkSession, checkpoint: Path) -> DataFrame:
    """Run the query over all batches, and return what its own sink holds: every group as it was output last."""
    feed = InputFolder(Path(f"{checkpoint}.input"))
    for batch in BATCHES:
        feed.add(batch)
    with settings(spark, {**ROCKSDB_CHANGELOG_V2.conf(), **QueryOptions().conf()}):
        writer = build(read_folder(spark, feed, SCHEMA)).writeStream.format("memory").queryName("outputs")
        writer = writer.outputMode("complete").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
    return spark.table("outputs")


def test_the_result_of_every_key_is_the_row_that_the_query_put_out(spark: SparkSession, tmp_path: Path) -> None:
    sink = run_into_memory(spark, tmp_path / "totals")
    schema = parse_schema(sink.schema.json())
    printed, encode = compile_json_printer(schema), compile_row_encoder(schema)
    rows = [printed(encode(tuple(row))) for row in sink.collect()]
    assert len(rows) == 6
    (tmp_path / "aliases.toml").write_text(ALIASES)
    with served_node(tmp_path / "totals", tmp_path / "data", aliases=tmp_path / "aliases.toml") as served:
        wait_until(lambda: served.get("/readyz").status == 200, what="the stores to be open")
        answers = served.look_up_all([[row["k"]] for row in rows], store="totals")
        for row, answer in zip(rows, answers, strict=True):
            assert answer["status"] == 200, answer
            assert answer["result"] == {name: value for name, value in row.items() if name != "k"}
        described: dict[str, Any] = served.get("/v1/stores/totals").body
        typed = {name: field.dataType.simpleString() for name, field in zip(sink.columns, sink.schema, strict=True)}
        assert [column["name"] for column in described["result"]] == [name for name in rows[0] if name != "k"]
        for column in described["result"]:
            assert {"long": "bigint"}.get(column["type"], column["type"]) == typed[column["name"]]


LINEAGE = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedNode]:
    checkpoint = HandmadeCheckpoint(tmp_path / "counting").create().add(1, 2)
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(2)
        yield node


def announced(*stores: AnnouncedStore, query_id: str = LINEAGE) -> Announcement:
    return Announcement(application_id="counting", query_id=query_id, stores=list(stores))


NAMED = AnnouncedStore(
    operator_id=0,
    name="words",
    key=["the word"],
    value=["seen", "added"],
    result=[
        ResultColumn(name="times", function="count", buffers=[0], type="bigint"),
        ResultColumn(name="all", function="sum", buffers=[1], type="long"),
    ],
)


def test_an_announcement_names_stores_and_results_while_they_are_served(served: ServedNode) -> None:
    node = served.node
    before = held(node)
    assert served.look_up([WORDS[0]]).body["value"] == {"count": 2, "total": 2_000_000}
    node.announce(announced(NAMED))
    served.wait_for_event("named")
    answer = served.look_up([WORDS[0]], store="words").body
    assert answer["key"] == {"the word": WORDS[0]}
    assert answer["value"] == {"seen": 2, "added": 2_000_000}
    assert answer["result"] == {"times": 2, "all": 2_000_000}
    assert served.look_up([WORDS[0]]).problem == "unknown-store"
    assert held(node) == before, "nothing was restored for a name"
    assert node.generation is not None
    (store,) = catalogue_of(node.generation, "counting").stores
    assert (store.store, store.key_names) == ("words", ["the word"])
    assert [column["name"] for column in store.result] == ["times", "all"]
    node.announce(None)
    served.wait_for_event("unnamed")
    assert served.look_up([WORDS[0]]).body["value"] == {"count": 2, "total": 2_000_000}


@pytest.mark.parametrize(
    ("store", "says"),
    [
        (AnnouncedStore(operator_id=3, name="words"), "no operator 3"),
        (AnnouncedStore(operator_id=0, key=["a", "b"]), "2 key names (a, b) for 1 columns"),
        (AnnouncedStore(operator_id=0, value=["a"]), "1 value names (a) for 2 columns"),
        (
            AnnouncedStore(operator_id=0, result=[ResultColumn(name="n", function="count", buffers=[2], type="long")]),
            "no value column 2",
        ),
        (
            AnnouncedStore(
                operator_id=0, result=[ResultColumn(name="n", function="avg", buffers=[0, 1], type="double")]
            ),
            "avg cannot be computed exactly",
        ),
    ],
    ids=["operator", "key names", "value names", "buffer", "function"],
)
def test_what_does_not_fit_is_left_out_with_an_event_and_serving_goes_on(
    served: ServedNode, store: AnnouncedStore, says: str
) -> None:
    served.node.announce(announced(store))
    served.wait_for_event("names left out")
    (event,) = [event for event in served.node.events if event.what == "names left out"]
    assert says in event.detail
    assert served.look_up([WORDS[0]]).body["value"] == {"count": 2, "total": 2_000_000}
    served.node.announce(announced(NAMED, store))
    served.wait_for_event("named")
    assert served.look_up([WORDS[0]], store="words").status == 200


def test_a_result_of_a_later_release_is_left_out_by_name_and_the_others_are_served(served: ServedNode) -> None:
    later = ResultColumn(name="cubes", function="sum_of_cubes", buffers=[1], type="long")
    served.node.announce(announced(NAMED.model_copy(update={"result": [*NAMED.result, later]})))
    served.wait_for_event("names left out")
    (event,) = [event for event in served.node.events if event.what == "names left out"]
    assert event.detail == "result cubes for operator 0: this release has no sum_of_cubes"
    assert served.look_up([WORDS[0]], store="words").body["result"] == {"times": 2, "all": 2_000_000}


def test_an_announcement_of_another_query_says_nothing_of_this_one(served: ServedNode) -> None:
    served.node.announce(announced(NAMED, query_id="another-life"))
    served.node.assign({"0_0": Role.ACTIVE})  # applied by the same turn as the names, or a later one
    served.wait_for_version(2, partitions=1)
    assert "named" not in served.events()
    assert served.get("/v1/stores/op0").status == 200


def test_the_alias_file_wins_over_the_announcement_part_by_part(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "counting").create().add(1)
    aliases = tmp_path / "aliases.toml"
    aliases.write_text('[op0]\nname = "mine"\n')
    with served_node(checkpoint.path, tmp_path / "data", aliases=aliases) as served:
        wait_until(lambda: served.get("/readyz").status == 200, what="the store to be open")
        served.node.announce(announced(NAMED))
        served.wait_for_event("named")
        answer = served.look_up([WORDS[0]], store="mine").body
        assert answer["value"] == {"seen": 1, "added": 1_000_000}
        assert answer["result"] == {"times": 1, "all": 1_000_000}


def test_decimals_are_printed_as_the_rows_of_the_sink_are() -> None:
    """The comparison above prints the sink's rows by the same printer: here it is held to Python's own."""
    schema = parse_schema('{"type":"struct","fields":[{"name":"d","type":"decimal(16,2)","nullable":true}]}')
    printed, encode = compile_json_printer(schema), compile_row_encoder(schema)
    assert printed(encode((Decimal("-9999.94"),))) == {"d": "-9999.94"}
