"""The documents for operators have the reasons and settings that the code has."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.support.repository import ROOT

from understudy_node.settings import ClusterNodeSettings
from understudy_router.routing.choose import Reason
from understudy_router.settings import RouterSettings
from understudy_shared.base.texts import size_text
from understudy_shared.cluster.wire import WireError
from understudy_shared.http.problems import ProblemType
from understudy_shared.reads.bounds import Refusal
from understudy_shared.settings import BusFields, HttpFields, ServiceFields

DOCUMENT = (ROOT / "docs" / "operations.md").read_text()
SETTINGS = (ROOT / "docs" / "reference" / "settings.md").read_text()
SETTING = r"(?m)^- `(\w+)`(?: \((.+?)\))?: "
BOTH = "Nodes and routers"
SIZES = {"statestore_cache_max_bytes", "overlay_max_bytes"}
DERIVED = {"node_id", "router_id", "advertise_host", "application_id", "data_dir", "memory_limit_bytes"}
"""Their default is a rule, described in words. A router needs an application id."""


def section(title: str, document: str = DOCUMENT) -> str:
    """What stands under a heading, up to the next one of its level or above."""
    found = re.search(rf"(?ms)^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,3}} |\Z)", document)
    assert found is not None, title
    return found[2]


def first_cells(title: str) -> list[str]:
    """The first column of the table under a heading, its head left out."""
    rows = re.findall(r"(?m)^\| (.+?) \|", section(title))
    return list(rows[1:])


def default_text(name: str, field: Any) -> str:
    if field.is_required():
        return "required"
    if name in DERIVED:
        return "derived"
    if field.default in (None, ""):
        return "none"
    return size_text(field.default) if name in SIZES else str(field.default)


@pytest.mark.parametrize(
    ("titles", "settings"), [(("Node", "Node of many queries"), ClusterNodeSettings), (("Router",), RouterSettings)]
)
def test_every_setting_is_documented_with_its_default(
    titles: tuple[str, ...], settings: type[ClusterNodeSettings | RouterSettings]
) -> None:
    """Once for both, or once for each."""
    of_both, *own = (
        {name: default or "none" for name, default in re.findall(SETTING, section(each, SETTINGS))}
        for each in (BOTH, *titles)
    )
    documented = {name: default for each in (of_both, *own) for name, default in each.items()}
    fields = {name: field for name, field in settings.model_fields.items() if name != "checkpoints"}  # an argument's
    assert documented == {name: default_text(name, field) for name, field in fields.items()}
    assert of_both.keys() == {name for each in (BusFields, ServiceFields, HttpFields) for name in each.model_fields}


def test_every_reason_against_a_replica_is_documented_and_no_other() -> None:
    cells = first_cells("Why a replica was not asked")
    documented = {reason for cell in cells for reason in re.findall(r"`([a-z-]+)`", cell)}
    ours = {str(reason) for kind in (Reason, Refusal, WireError) for reason in kind}
    assert ours - documented == set()
    assert documented - ours - {problem.slug for problem in ProblemType} == {"not-asked"}
