"""docs/admin.md and docs/operations.md say of the admin API what the code and its OpenAPI say."""

from __future__ import annotations

import re

from tests.support.repository import ROOT

from understudy_router.admin.indicators import INDICATORS
from understudy_router.admin.watching import EVENTS
from understudy_shared.page.feed import MAX_VIEWERS
from understudy_shared.page.series import MAX_SERIES

API = (ROOT / "docs" / "admin.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def section(document: str, title: str) -> str:
    found = re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", document)
    assert found is not None, title
    return found[1]


def test_every_event_that_is_found_between_two_looks_is_documented() -> None:
    assert [event for event in EVENTS if f"`{event}`" not in API] == []


def test_every_indicator_is_documented_with_its_runbook() -> None:
    rows = re.findall(r"(?m)^\| \[`(\w+)`\]\(runbooks/.+\) \| .+ \|$", section(OPERATIONS, "Is anything wrong?"))
    assert tuple(rows) == tuple(INDICATORS)


def test_the_limits_that_documents_name_are_those_of_the_code() -> None:
    assert f"{MAX_SERIES:,} series" in API
    assert f"{MAX_VIEWERS} viewers" in API
