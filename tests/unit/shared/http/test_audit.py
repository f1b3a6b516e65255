"""The audit log: every change has a line, reads of operators have one in a minute, lookups have none."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from understudy_shared.clock import ManualClock
from understudy_shared.http import app as module
from understudy_shared.http.app import Framework, answer_with_problems, json_response, service_app
from understudy_shared.http.audit import Audit
from understudy_shared.reminders import REPEAT_MS

CLOCK = ManualClock()


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setattr(module, "Audit", lambda: Audit(CLOCK))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield

    http = service_app("test", lifespan)
    answer_with_problems(http)
    for path in ("/admin/v1/lag", "/admin/v1/nodes/{node}", "/v1/stores/{store}"):
        http.get(path)(_answer)
    http.post("/admin/v1/nodes/{node}/drain")(_answer)
    transport = httpx.ASGITransport(Framework(http), client=("192.0.2.7", 5000))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


async def _answer() -> object:
    return json_response({})


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [vars(record) for record in caplog.records if str(vars(record).get("action", "")).startswith("audit-")]


async def test_every_change_has_a_line_even_one_that_is_refused(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for headers in ({"content-type": "application/json"}, {"content-type": "text/plain"}):
            await client.post("/admin/v1/nodes/n%0A1/drain", content=b"{}", headers=headers)
    assert len(lines(caplog)) == 2
    (line, _) = lines(caplog)
    assert (line["action"], line["method"], line["peer"]) == ("audit-change", "POST", "192.0.2.7")
    assert (line["principal"], line["path"]) == ("anonymous", "'/admin/v1/nodes/n\\n1/drain'")
    assert line["levelname"] == "WARNING"


async def test_what_operators_read_has_one_line_in_a_minute_for_each_path(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            for path in ("/admin/v1/lag", "/admin/v1/nodes/a"):
                assert (await client.get(path)).status_code == 200
        CLOCK.advance(REPEAT_MS)
        await client.get("/admin/v1/lag")
    assert [(line["path"], line["left_out"]) for line in lines(caplog)] == [
        ("'/admin/v1/lag'", 0),
        ("'/admin/v1/nodes/a'", 0),
        ("'/admin/v1/lag'", 4),
    ]


async def test_lookups_are_nobodys_business(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert (await client.get("/v1/stores/words")).status_code == 200
    assert lines(caplog) == []


async def test_every_answer_says_that_its_type_is_meant_and_none_opens_it_to_other_sites(
    client: httpx.AsyncClient,
) -> None:
    origin = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    for method, path in (("GET", "/admin/v1/lag"), ("GET", "/nowhere"), ("OPTIONS", "/admin/v1/lag"), ("POST", "/v1")):
        reply = await client.request(method, path, headers=origin)
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in reply.headers if name.startswith("access-control-")]
