"""A server of several applications is a fleet: each has its stores, its commits and its troubles."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from understudy import AmbiguousStoreError, UnavailableError, UnknownApplicationError, UsageError
from understudy.testing import Server, Store


def totals(count: int) -> Store:
    return Store(key={"word": "string"}, value={"count": "long"}, rows=[{"word": "a", "count": count}])


@pytest.fixture
def server() -> Iterator[Server]:
    clicks = {"totals": totals(2), "own": totals(3)}
    with Server(applications={"orders": {"totals": totals(1)}, "clicks": clicks}) as made:
        yield made


def count(server: Server, application: str, **bounds: Any) -> int:
    found: int = server.client(application=application, retries=0).store("totals").get("a", **bounds).value["count"]
    return found


def test_each_application_is_read_by_its_name_and_a_store_of_one_without(server: Server) -> None:
    assert (count(server, "orders"), count(server, "clicks")) == (1, 2)
    client = server.client()
    assert client.store("own").get("a").value == {"count": 3}
    assert client.application("orders").store("totals").get("a").value == {"count": 1}
    with pytest.raises(AmbiguousStoreError):
        client.store("totals").get("a")
    with pytest.raises(UnknownApplicationError):
        count(server, "visits")


def test_a_commit_and_a_trouble_are_of_one_application(server: Server) -> None:
    orders = server.application("orders")
    assert orders.commit({"totals": {"a": {"count": 7}}}) == 2
    assert (count(server, "orders"), count(server, "clicks")) == (7, 2)
    assert server.application("clicks").version == 1
    with orders.lag(timedelta(minutes=1)):
        with pytest.raises(UnavailableError):
            count(server, "orders", max_staleness=timedelta(seconds=5))
        assert count(server, "clicks", max_staleness=timedelta(seconds=5)) == 2
    orders.fail("internal")
    assert count(server, "clicks", max_staleness=timedelta(seconds=5)) == 2
    server.heal()
    assert count(server, "orders") == 7


def test_what_is_of_no_application_is_refused_with_what_to_do(server: Server) -> None:
    with pytest.raises(UsageError, match="several applications"):
        server.commit({"totals": {"a": None}})
    with pytest.raises(UsageError, match="no application 'visits'"):
        server.application("visits")
    wrongs: list[dict[str, dict[str, Store]]] = [{}, {"a/b": {"totals": totals(1)}}, {"orders": {}}]
    for wrong in wrongs:
        with pytest.raises(UsageError):
            Server(applications=wrong)
    with pytest.raises(UsageError, match="either stores or applications"):
        Server()
