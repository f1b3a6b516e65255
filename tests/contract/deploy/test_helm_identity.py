"""The chart on a managed cluster: what credentials, an ingress with a prefix and `helm test` need of the network."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.services.helm_chart import (
    containers,
    environment,
    named,
    needs_helm,
    values_of,
)
from tools.chart import call_of, helm

NAME = "workload-identity"


METADATA = {"169.254.169.254/32", "169.254.169.252/32", "169.254.170.2/32", "169.254.170.23/32"}
"""Where clouds give credentials: EC2, Azure and GKE, GKE's agent, ECS, and EKS Pod Identity."""


CASES: dict[str, dict[str, Any]] = {
    NAME: values_of(NAME),
    "default": {},
    **{f"below {path}": {"ingress": {"enabled": True, "path": path}} for path in ("/", "/understudy", "/a/b/", "/v1")},
    "below a prefix without an Ingress": {"ingress": {"path": "/understudy"}},
    "below another prefix": {
        "ingress": {"enabled": True, "path": "/understudy"},
        "routers": {"settings": {"root_path": "/public"}},
    },
    "below no path": {"ingress": {"enabled": True, "path": "/a b"}},
}


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """What Helm makes of each case, by one process."""
    needs_helm()
    return dict(zip(CASES, helm([call_of("render", values) for values in CASES.values()]), strict=True))


@pytest.fixture(scope="module")
def found(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    objects: list[dict[str, Any]] = results[NAME]["objects"]
    return objects


def test_nodes_reach_the_agents_that_give_credentials_and_routers_do_not(found: Any, results: Any) -> None:
    def blocks(name: str) -> set[str]:
        rules = named(found, "NetworkPolicy", f"lookups-{name}")["spec"]["egress"]
        return {to["ipBlock"]["cidr"] for rule in rules for to in rule.get("to", []) if "ipBlock" in to}

    assert blocks("nodes") >= METADATA
    assert blocks("routers") == set()
    assert "169.254" not in results["default"]["manifests"]


@pytest.mark.parametrize(
    ("case", "root_path"),
    [
        ("below /", None),
        ("below /understudy", "/understudy"),
        ("below /a/b/", "/a/b"),
        ("below /v1", None),  # a part of what routers serve themselves
        ("below a prefix without an Ingress", None),
        ("below another prefix", "/public"),
    ],
)
def test_routers_know_the_prefix_of_their_ingress(results: Any, case: str, root_path: str | None) -> None:
    found = containers(results[case]["objects"])
    known = {name: environment(each).get("UNDERSTUDY_ROOT_PATH") for name, each in found.items()}
    assert known == {name: root_path if name == "router" else None for name in found}
    assert "ingress.path" in results["below no path"]["error"].replace("/", ".")
