"""docs/api.md and docs/operations.md say of the admin API what the code and its OpenAPI say."""

from __future__ import annotations

import re
from typing import Any

from tests.support.bus.local_bus import LocalBus
from tests.support.repository import ROOT

from understudy_router.admin.events import EVENTS
from understudy_router.admin.feed import MAX_VIEWERS
from understudy_router.admin.history import MAX_SERIES
from understudy_router.admin.indicators import INDICATORS
from understudy_router.admin.lag_page import SORTS, STATES
from understudy_router.http.app import create_app
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.server.app import Framework

API = (ROOT / "docs" / "api.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def section(document: str, title: str) -> str:
    found = re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", document)
    assert found is not None, title
    return found[1]


def admin_paths() -> dict[str, Any]:
    """The GET calls of the admin API, by their paths."""
    settings = RouterSettings(redis="redis://unused", application_id="flights")
    router = Router(settings, LocalBus(), host=HostInfo("127.0.0.1", 8080), clock=SystemClock())
    framework = create_app(router)._app
    assert isinstance(framework, Framework)
    paths: dict[str, Any] = framework._http.openapi()["paths"]
    return {path: calls["get"] for path, calls in paths.items() if path.startswith("/admin/v1/") and "get" in calls}


def test_every_call_and_every_parameter_is_documented_and_no_other() -> None:
    text = section(API, "Admin API of a router")
    documented = set(re.findall(r"`GET (/admin/v1/[^`?]*)`", text))
    paths = admin_paths()
    assert documented == paths.keys()
    for path, call in paths.items():
        row = next(line for line in text.splitlines() if f"`GET {path}`" in line)
        for parameter in call.get("parameters", ()):
            if parameter["in"] == "query":
                assert f"`{parameter['name']}`" in row, (path, parameter["name"])


def test_what_can_be_chosen_is_documented() -> None:
    text = section(API, "Admin API of a router")
    for name in {*STATES, *(sort.removeprefix("-") for sort in SORTS), *INDICATORS}:
        assert f"`{name}`" in text, name


def test_every_event_that_is_found_between_two_looks_is_documented() -> None:
    text = section(API, "Admin API of a router")
    assert [event for event in EVENTS if f"`{event}`" not in text] == []


def test_every_indicator_is_documented_with_what_to_do() -> None:
    rows = re.findall(r"(?m)^\| `(\w+)` \| .+ \| .+ \|$", section(OPERATIONS, "Is anything wrong?"))
    assert tuple(rows) == tuple(INDICATORS)


def test_the_limits_that_documents_name_are_those_of_the_code() -> None:
    text = section(API, "Admin API of a router")
    assert f"{MAX_SERIES:,} series" in text
    assert f"{MAX_VIEWERS} viewers" in text
