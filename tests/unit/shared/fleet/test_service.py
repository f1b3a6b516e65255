"""What a fleet answers itself: it is ready by its rule, lists its applications, and joins their stores and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import orjson
import pytest
from fastapi import APIRouter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from understudy_node.fleet.application import NotOpen
from understudy_node.fleet.process import fleet_overview
from understudy_shared.auth.access import AUTHORIZATION, Access
from understudy_shared.auth.principals import Action, Authorization, Grant, Principal
from understudy_shared.base.words import HostInfo
from understudy_shared.fleet.dispatching import Fleet
from understudy_shared.fleet.service import (
    ApplicationReport,
    ApplicationState,
    FleetService,
    Reported,
    labelled,
    readiness,
)
from understudy_shared.http.edge import Receive, Scope, Send, send_reply
from understudy_shared.http.health import Status
from understudy_shared.page.routes import fleet_page_routes
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.server.connection_guard import ConnectionGuard


class Listing(NotOpen):
    """An application that has a list of stores, and nothing else."""

    def __init__(self, application_id: str, *stores: str) -> None:
        super().__init__(application_id, lambda: "", Access())
        self._app = self._list
        self._stores = stores

    def has_store(self, store: str) -> bool:
        return store in self._stores

    async def _list(self, scope: Scope, _receive: Receive, send: Send) -> None:
        assert scope["raw_path"] == b"/v1/stores"
        document = {"stores": [{"store": each} for each in self._stores], "not_served": []}
        await send_reply(send, 200, orjson.dumps(document), b"application/json")


@dataclass
class Application:
    app: LookupsFirst
    state: ApplicationState = ApplicationState.SERVING
    reasons: tuple[str, ...] = ()
    was_ready: bool = True
    dead: str | None = None
    families: list[Metric] = field(default_factory=list)

    @property
    def is_ready(self) -> bool:
        return not self.reasons

    def report(self) -> ApplicationReport:
        reason = "; ".join(self.reasons) or None
        return ApplicationReport(self.app.application_id, "s3://bucket/x", self.state, 0, reason, "file", ("op0",), 7)

    def status(self) -> Status:
        return Status(self.reasons)

    def metrics(self) -> Iterable[Metric]:
        return self.families

    async def leave(self) -> None: ...


def application(name: str = "a", **given: Any) -> Application:
    return Application(Listing(name, "op0"), **given)


READY = application()
STARTING = application(reasons=("it restores",), was_ready=False, state=ApplicationState.RESTORING)
BROKEN = application(reasons=("no checkpoint",), was_ready=False, state=ApplicationState.FAILED)
BEHIND = application(reasons=("its storage is away",), state=ApplicationState.WAITING)


@pytest.mark.parametrize(
    ("applications", "is_ready"),
    [
        ([], True),
        ([READY], True),
        ([READY, STARTING], False),
        ([READY, BROKEN], True),
        ([BROKEN], False),
        ([READY, BEHIND], True),
        ([BEHIND, BEHIND], False),
        ([STARTING, BROKEN], False),
    ],
)
def test_it_is_ready_when_each_was_ready_once_or_failed_and_later_while_one_is(
    applications: list[Reported], is_ready: bool
) -> None:
    status = readiness({str(number): each for number, each in enumerate(applications)})
    assert (status.http_status == 200) is is_ready


def test_families_of_one_name_become_one_with_a_label_for_each_application() -> None:
    def families(value: float) -> list[Metric]:
        counter = CounterMetricFamily("reads", "Reads", labels=("store",))
        counter.add_metric(("op0",), value)
        return [counter, GaugeMetricFamily("lag", "Lag", value)]

    found = list(labelled({"a": families(1), "b": families(2)}, [GaugeMetricFamily("lag", "Lag", 3)]))
    assert [(each.name, each.type) for each in found] == [("lag", "gauge"), ("reads", "counter")]
    assert [(each.labels, each.value) for each in found[0].samples] == [
        ({}, 3),
        ({"application": "a"}, 1),
        ({"application": "b"}, 2),
    ]
    assert [(each.name, each.labels, each.value) for each in found[1].samples] == [
        ("reads_total", {"application": "a", "store": "op0"}, 1),
        ("reads_total", {"application": "b", "store": "op0"}, 2),
    ]


class Process(FleetService[Application]):
    def __init__(self, **applications: Application) -> None:
        settings: Any = None  # it has no port
        super().__init__("node", settings, HostInfo("here", 1), Access(), ConnectionGuard())
        for name, each in applications.items():
            self.app.add(name, each)

    def routes(self) -> Iterable[APIRouter]:
        return [fleet_page_routes(partial(fleet_overview, applications=self.applications))]

    def metrics(self) -> Iterable[Metric]:
        return [GaugeMetricFamily("process", "Of the process", 1)]


def fleet_of(**applications: Application) -> Fleet[Application]:
    return Process(**applications).app


def get(fleet: Fleet[Application], path: str) -> httpx.Response:
    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(fleet), base_url="http://fleet") as client:
            return await client.get(path)

    return asyncio.run(asked())


def test_it_lists_its_applications_and_shows_one() -> None:
    broken = Application(
        NotOpen("b", lambda: "no checkpoint", Access()), ApplicationState.FAILED, ("no checkpoint",), False
    )
    fleet = fleet_of(a=application(), b=broken)
    listed = get(fleet, "/v1/applications").json()["applications"]
    assert [(each["application"], each["state"], each["reason"]) for each in listed] == [
        ("a", "serving", None),
        ("b", "failed", "no checkpoint"),
    ]
    assert get(fleet, "/v1/applications/a").json() == listed[0]
    unknown = get(fleet, "/v1/applications/c")
    assert (unknown.status_code, unknown.json()["type"].rpartition("/")[2]) == (404, "unknown-application")
    refused = get(fleet, "/v1/applications/b/stores/op0/keys/k")
    assert (refused.status_code, refused.json()["detail"]) == (503, "no checkpoint")


async def test_a_reader_sees_the_applications_of_his_grants_and_within_them_what_they_grant() -> None:
    known = {name: application(name) for name in ("orders-eu", "flights")}
    broken = NotOpen("orders-us", lambda: "no s3://secret/place", Access())
    known["orders-us"] = Application(broken, ApplicationState.FAILED, ("no s3://secret/place",), False)
    reader = Principal(
        "r", [Grant(frozenset({Action.POINT}), frozenset({"op0"}), applications=frozenset({"orders-*"}))]
    )
    fleet = fleet_of(**known)

    async def as_reader(scope: Scope, receive: Receive, send: Send) -> None:
        await fleet({**scope, AUTHORIZATION: Authorization(reader)}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=as_reader), base_url="http://fleet") as http:
        listed, failed = (await http.get("/v1/applications")).json()["applications"]
        assert "secret" not in failed["reason"]
        assert (listed["application"], listed["stores"], listed["checkpoint"]) == ("orders-eu", ["op0"], None)
        assert (await http.get("/v1/applications/flights")).status_code == 404
        assert "0 applications" in (await http.get("/admin/")).text, "it may monitor none"
        stores = (await http.get("/v1/stores")).json()
        assert stores["stores"] == [{"store": "op0", "application": "orders-eu"}]
        assert [each["application"] for each in stores["unknown"]] == ["orders-us"]
        assert "secret" not in str(stores)
