"""`understudy.testing`: what a test writes is what its program reads, at one version after another."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from understudy import BadRequestError, UnderstudyError, UsageError
from understudy.testing import Server, Store
from understudy.typed import bind
from understudy_shared.base.errors import BadKeyError
from understudy_shared.spark.types import StructType, parse_schema, parse_type_name, schema_json

FIVE = datetime(2013, 1, 1, 5, tzinfo=UTC)
HOUR = (FIVE, FIVE + timedelta(hours=1))
WINDOW = "struct<start:timestamp,end:timestamp>"
MEAN = 'mean "ä😀\x7f"'
"""The name of a store, which may be any text."""
EVERY_TYPE = {
    "flag": ("boolean", True),
    "tiny": ("byte", -128),
    "big": ("long", 2**63 - 1),
    "ratio": ("double", float("inf")),
    "price": ("decimal(12,2)", Decimal("12.30")),
    "wide": ("decimal(38,0)", Decimal(10**37)),
    "text": ("string", "ä/\x00"),
    "raw": ("binary", b"\xff\x00"),
    "day": ("date", date(2013, 1, 1)),
    "at": ("timestamp", FIVE),
    "local": ("timestamp_ntz", FIVE.replace(tzinfo=None)),
    "took": ("interval day to second", timedelta(minutes=90)),
    "tags": ("array<string>", ["a", None]),
    "by_name": ("map<string,long>", {"a": 1}),
    "nested": ("struct<a:int,b:array<struct<c:string>>>", {"a": 1, "b": [{"c": "x"}]}),
    "nothing": ("long", None),
}


@dataclass(frozen=True)
class Flights:
    """A model of the value."""

    flights: int | None
    late: Decimal | None = None


STORES = {
    "aircraft": Store(
        key={"tail": "string"},
        value={"flights": "long", "late": "decimal(12,2)"},
        rows=[{"tail": "N1", "flights": 3, "late": Decimal("0.50")}, {"tail": "N2", "flights": 1}],
    ),
    "hours": Store(key={"origin": "string", "window": WINDOW}, value={"flights": "long"}),
    "every type": Store(
        key={"id": "int"},
        value={name: kind for name, (kind, _) in EVERY_TYPE.items()},
        rows=[{"id": 1, **{name: value for name, (_, value) in EVERY_TYPE.items()}}],
    ),
    MEAN: Store(
        key={"tail": "string"},
        value={"sum": "double", "count": "long"},
        rows=[{"tail": "N1", "sum": 5.0, "count": 2}],
        result={"delay": {"function": "avg", "buffers": ["sum", "count"]}},
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(STORES) as running:
        yield running


def test_rows_that_are_declared_are_read(server: Server) -> None:
    store = server.client().store("aircraft", value=Flights)
    assert store.get("N2").value == Flights(1)
    assert not store.get("N0")
    assert {row.key["tail"] for row in store.scan(where=[["flights", ">", 0]])} >= {"N1", "N2"}


def test_a_value_of_every_type_comes_back_as_it_was_given(server: Server) -> None:
    given = {name: value for name, (_, value) in EVERY_TYPE.items()}
    client = server.client()
    store = client.store("every type")
    assert bind(store.info().schema).value(store.get(1).value) == given


def test_the_results_of_a_query_are_computed_from_what_is_stored(server: Server) -> None:
    assert server.client().store(MEAN).get("N1").result == {"delay": 2.5}


def test_a_commit_is_read_when_it_returns_and_its_past_stays() -> None:
    with Server({"aircraft": STORES["aircraft"]}) as server, server.client() as client:
        store = client.store("aircraft")
        assert (server.version, store.get("N1").version) == (1, 1)
        version = server.commit({"aircraft": {"N1": Flights(4), "N2": None, "N3": {"flights": 9}}})
        assert (version, server.version) == (2, 2)
        assert [each.value and each.value["flights"] for each in store.get_many(["N1", "N2", "N3"])] == [4, None, 9]
        assert client.at(version=1).store("aircraft").get("N2").value["flights"] == 1
        assert [each.version for each in store.history("N2", first=1)] == [1, 2]
        assert server.commit() == 3, "a batch may change nothing"
        assert store.get("N1").version == 3


def test_clients_of_any_loop_and_of_threads_share_a_server(server: Server) -> None:
    async def read() -> int:
        async with server.async_client() as client:
            found = await asyncio.gather(*(client.store("aircraft").get("N1") for _ in range(20)))
            return sum(each.value["flights"] for each in found)

    assert [asyncio.run(read()) for _ in range(2)] == [60, 60]
    client, found = server.client(), []
    threads = [threading.Thread(target=lambda: found.append(client.store("aircraft").get("N1"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.value["flights"] for each in found] == [3] * 8


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"aircrafts": {}}, UsageError, "no store 'aircrafts'.*aircraft, hours"),
        ({"aircraft": {"N1": {"flight": 3}}}, UsageError, "no column 'flight'.*flights, late"),
        ({"aircraft": {"N1": 3}}, UsageError, "the value of 'N1' is not given by column"),
        ({"aircraft": {"N1": {"flights": "three"}}}, BadKeyError, "flights"),
        ({"aircraft": {"N1": {"flights": 2**63}}}, BadKeyError, "flights"),
        ({"aircraft": {7: {"flights": 3}}}, BadKeyError, "tail"),
        ({"hours": {"JFK": {"flights": 3}}}, BadKeyError, "2 columns"),
    ],
)
def test_a_change_that_does_not_fit_is_refused_and_nothing_is_committed(
    changes: Any, error: type[Exception], says: str, server: Server
) -> None:
    before = server.version
    with pytest.raises(error, match=says):
        server.commit({MEAN: {"N9": {"sum": 1.0, "count": 1}}, **changes})
    assert server.version == before
    assert not server.client().store(MEAN).get("N9")


@pytest.mark.parametrize(
    ("stores", "says"),
    [
        ({}, "needs a store"),
        ({"a": Store(key={}, value={"n": "long"})}, "the key has no columns"),
        ({"a": Store(key={"k": "text"}, value={"n": "long"})}, "'text' is not a type.*column k"),
        ({"a": Store(key={"k": "string"}, value={"k": "long"})}, "in the key and in the value: k"),
        ({"a": Store(key={"k": "string"}, value={"n": "long"}, rows=[3])}, "a row is not given by column"),
        ({"a": Store(key={"k": "string"}, value={"n": "long"}, rows=[{"k": "x", "m": 1}])}, "no column 'm'"),
    ],
)
def test_a_store_that_cannot_be_is_refused_with_what_to_do(stores: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        Server(stores)
    assert refused.value.fix


def test_a_wrong_result_and_a_wrong_bound_are_the_servers_own_refusals(server: Server) -> None:
    wrong = Store(key={"k": "string"}, value={"n": "long"}, result={"x": {"function": "nope", "buffers": ["n"]}})
    with pytest.raises(UnderstudyError, match=r"should be 'count'.*store a\.result\.x\.function"):
        Server({"a": wrong})
    with pytest.raises(BadRequestError, match="max_lag"):
        server.client().store("aircraft").get("N1", max_lag=-1)


def test_the_extra_that_is_missing_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "understudy_node.fleet.process", None)
    monkeypatch.delitem(sys.modules, "understudy.testing.service", raising=False)
    with pytest.raises(UnderstudyError, match=r"understudy_node.*not installed.*pip install 'understudy-spark\[node\]"):
        Server(STORES)


def test_the_import_loads_no_service() -> None:
    code = "import sys, understudy.testing; print({'fastapi', 'uvicorn', 'rocksdict', 'numpy'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in EVERY_TYPE.values()} | {"interval", "time(6)", "void"}))
def test_a_schema_is_read_back_as_it_was_written(kind: str) -> None:
    schema = parse_type_name(f"struct<a:{kind},b:map<int,{kind}>>")
    assert isinstance(schema, StructType)
    assert parse_schema(schema_json(schema).decode()) == schema


def test_a_watch_gets_each_commit_by_both_clients() -> None:
    with Server({"aircraft": STORES["aircraft"]}) as server:
        with server.client() as client, client.store("aircraft").watch("N1") as watch:
            assert next(watch).value["flights"] == 3
            server.commit({"aircraft": {"N1": {"flights": 4}}})
            assert (next(watch).value["flights"], watch.position is None) == (4, False)

        async def first() -> Any:
            async with server.async_client() as client, client.store("aircraft").watch("N1") as watch:
                return (await anext(watch)).value["flights"]

        assert asyncio.run(first()) == 4
