"""`understudy.testing`: what a test writes is what its program reads, at one version after another."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from understudy import (
    AmbiguousStoreError,
    BadRequestError,
    DeadlineError,
    LineageChangedError,
    UnavailableError,
    UnderstudyError,
    UnknownApplicationError,
    UnreachableError,
    UsageError,
)
from understudy.testing import Server, StoreDefinition
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
    "aircraft": StoreDefinition(
        key={"tail": "string"},
        value={"flights": "long", "late": "decimal(12,2)"},
        rows=[{"tail": "N1", "flights": 3, "late": Decimal("0.50")}, {"tail": "N2", "flights": 1}],
    ),
    "hours": StoreDefinition(key={"origin": "string", "window": WINDOW}, value={"flights": "long"}),
    "every type": StoreDefinition(
        key={"id": "int"},
        value={name: kind for name, (kind, _) in EVERY_TYPE.items()},
        rows=[{"id": 1, **{name: value for name, (_, value) in EVERY_TYPE.items()}}],
    ),
    MEAN: StoreDefinition(
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
        ({"a": StoreDefinition(key={}, value={"n": "long"})}, "the key has no columns"),
        ({"a": StoreDefinition(key={"k": "text"}, value={"n": "long"})}, "'text' is not a type.*column k"),
        ({"a": StoreDefinition(key={"k": "string"}, value={"k": "long"})}, "in the key and in the value: k"),
        ({"a": StoreDefinition(key={"k": "string"}, value={"n": "long"}, rows=[3])}, "a row is not given by column"),
        ({"a": StoreDefinition(key={"k": "string"}, value={"n": "long"}, rows=[{"k": "x", "m": 1}])}, "no column 'm'"),
    ],
)
def test_a_store_that_cannot_be_is_refused_with_what_to_do(stores: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        Server(stores)
    assert refused.value.fix


def test_a_wrong_result_and_a_wrong_bound_are_the_servers_own_refusals(server: Server) -> None:
    wrong = StoreDefinition(
        key={"k": "string"}, value={"n": "long"}, result={"x": {"function": "nope", "buffers": ["n"]}}
    )
    with pytest.raises(UnderstudyError, match=r"should be 'count'.*store a\.result\.x\.function"):
        Server({"a": wrong})
    with pytest.raises(BadRequestError, match="max_lag"):
        server.client().store("aircraft").get("N1", max_lag=-1)


def test_the_extra_that_is_missing_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "understudy_node.fleet.process", None)
    monkeypatch.delitem(sys.modules, "understudy.testing.service", raising=False)
    with pytest.raises(UnderstudyError, match=r"understudy_node.*not installed.*pip install 'understudy-spark\[node\]"):
        Server(STORES)


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


def totals(count: int) -> StoreDefinition:
    return StoreDefinition(key={"word": "string"}, value={"count": "long"}, rows=[{"word": "a", "count": count}])


@pytest.fixture
def fleet() -> Iterator[Server]:
    clicks = {"totals": totals(2), "own": totals(3)}
    with Server(applications={"orders": {"totals": totals(1)}, "clicks": clicks}) as made:
        yield made


def count(fleet: Server, application: str, **bounds: Any) -> int:
    found: int = fleet.client(application=application, retries=0).store("totals").get("a", **bounds).value["count"]
    return found


def test_each_application_is_read_by_its_name_and_a_store_of_one_without(fleet: Server) -> None:
    assert (count(fleet, "orders"), count(fleet, "clicks")) == (1, 2)
    client = fleet.client()
    assert client.store("own").get("a").value == {"count": 3}
    assert client.application("orders").store("totals").get("a").value == {"count": 1}
    with pytest.raises(AmbiguousStoreError):
        client.store("totals").get("a")
    with pytest.raises(UnknownApplicationError):
        count(fleet, "visits")


def test_a_commit_and_a_trouble_are_of_one_application(fleet: Server) -> None:
    orders = fleet.application("orders")
    assert orders.commit({"totals": {"a": {"count": 7}}}) == 2
    assert (count(fleet, "orders"), count(fleet, "clicks")) == (7, 2)
    assert fleet.application("clicks").version == 1
    with orders.lag(timedelta(minutes=1)):
        with pytest.raises(UnavailableError):
            count(fleet, "orders", max_staleness=timedelta(seconds=5))
        assert count(fleet, "clicks", max_staleness=timedelta(seconds=5)) == 2
    orders.fail("internal")
    assert count(fleet, "clicks", max_staleness=timedelta(seconds=5)) == 2
    fleet.heal()
    assert count(fleet, "orders") == 7


def test_what_is_of_no_application_is_refused_with_what_to_do(fleet: Server) -> None:
    with pytest.raises(UsageError, match="several applications"):
        fleet.commit({"totals": {"a": None}})
    with pytest.raises(UsageError, match="no application 'visits'"):
        fleet.application("visits")
    wrongs: list[dict[str, dict[str, StoreDefinition]]] = [{}, {"a/b": {"totals": totals(1)}}, {"orders": {}}]
    for wrong in wrongs:
        with pytest.raises(UsageError):
            Server(applications=wrong)
    with pytest.raises(UsageError, match="either stores or applications"):
        Server()


SECONDS = timedelta(seconds=1)


@pytest.fixture
def troubled() -> Iterator[Server]:
    store = StoreDefinition(key={"tail": "string"}, value={"flights": "long"}, rows=[{"tail": "N1", "flights": 1}])
    with Server({"aircraft": store, "other": store}) as running:
        yield running


def get(troubled: Server, store: str = "aircraft", **bounds: Any) -> Any:
    with troubled.client(retries=0) as client:
        return client.store(store).get("N1", **bounds)


def test_answers_are_behind_while_the_server_lags_and_say_so(troubled: Server) -> None:
    with troubled.lag(30 * SECONDS, versions=2):
        found = get(troubled)
        assert (found.version, found.lag.offset_lag) == (1, 2)
        assert found.lag.time_lag_ms >= 30_000
        assert troubled.commit({"aircraft": {"N1": {"flights": 2}}}) == 4
        found = get(troubled)
        assert (found.value["flights"], found.lag.offset_lag) == (1, 3)
        assert found.lag.time_lag_ms >= 30_000
        with pytest.raises(UnavailableError, match="lag-exceeded") as refused:
            get(troubled, max_staleness=5 * SECONDS)
        assert [each["reason"] for each in refused.value.candidates] == ["lag-exceeded"]
    found = get(troubled, max_staleness=5 * SECONDS)
    assert (found.version, found.value["flights"], found.lag.offset_lag) == (4, 2, 0)


def test_lag_is_unknown_while_the_storage_is_away(troubled: Server) -> None:
    with troubled.lag(None):
        with pytest.raises(UnavailableError, match="lag-unknown"):
            get(troubled, max_staleness=5 * SECONDS)
        assert get(troubled, unknown_lag="serve", max_lag=5).lag.offset_lag is None
        assert troubled.commit({"aircraft": {"N1": {"flights": 2}}}) == 2
        assert get(troubled).value["flights"] == 1
    assert get(troubled, max_lag=0).value["flights"] == 2


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        ("no-acceptable-replica", UnavailableError),
        ("lineage-changed", LineageChangedError),
        ("deadline", UnavailableError),
    ],
)
def test_a_problem_is_answered_until_it_ends(problem: str, error: type[Exception], troubled: Server) -> None:
    trouble = troubled.fail(problem, detail="a drill")
    for call in (get, lambda each: each.client(retries=0).stores(), _counted):
        with pytest.raises(error, match="a drill"):
            call(troubled)
    trouble.end()
    assert get(troubled).found


def _counted(troubled: Server) -> Any:
    return troubled.client(retries=0).store("aircraft").count()


def test_a_client_that_retries_gets_past_a_failure(troubled: Server) -> None:
    for begin in (troubled.fail, troubled.cut):
        begin(times=1)
        assert troubled.client().store("aircraft").get("N1").found


def test_a_slow_server_misses_the_deadline(troubled: Server) -> None:
    with troubled.slow(3600 * SECONDS):
        with pytest.raises(DeadlineError):
            get(troubled, timeout=0.02)

        async def read() -> Any:
            async with troubled.async_client() as client:
                return await client.store("aircraft").get("N1", timeout=0.02)

        with pytest.raises(DeadlineError):
            asyncio.run(read())
    with troubled.slow(SECONDS / 1000):
        assert get(troubled).found


def test_a_connection_that_is_cut_is_no_answer(troubled: Server) -> None:
    with troubled.cut(), pytest.raises(UnreachableError, match="closed the connection"):
        get(troubled)


def test_a_server_with_troubles_ends_at_once() -> None:
    store = StoreDefinition(key={"tail": "string"}, value={"flights": "long"})
    with Server({"aircraft": store}) as troubled:
        troubled.slow(3600 * SECONDS)
        with pytest.raises(DeadlineError):
            get(troubled, timeout=0.02)


def test_a_trouble_may_end_after_its_server() -> None:
    store = StoreDefinition(key={"tail": "string"}, value={"flights": "long"})
    with Server({"aircraft": store}) as troubled:
        lag = troubled.lag(SECONDS)
    lag.end()
    troubled.heal()
    for call in (troubled.commit, lambda: troubled.lag(SECONDS)):
        with pytest.raises(UnderstudyError, match="closed"):
            call()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda troubled: troubled.fail("unavailable"), "no problem 'unavailable'.*no-acceptable-replica"),
        (lambda troubled: troubled.fail(store="nope"), "no store 'nope'.*aircraft, other"),
        (lambda troubled: troubled.fail(times=0), "times=0"),
        (lambda troubled: troubled.lag(5), "age=5"),
        (lambda troubled: troubled.lag(timedelta.max), "up to a year"),
        (lambda troubled: troubled.lag(SECONDS, versions=0), "versions=0"),
        (lambda troubled: troubled.slow(0.5), "delay=0.5"),
        (lambda troubled: troubled.slow(-SECONDS), "delay="),
    ],
)
def test_a_trouble_that_cannot_be_is_refused(wrong: Callable[[Server], object], says: str, troubled: Server) -> None:
    with pytest.raises(UnderstudyError, match=says):
        wrong(troubled)
    assert get(troubled, max_lag=0).found
