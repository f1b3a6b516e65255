"""The chart on a managed cluster: an identity of the cloud, pods placed, reached and watched as its operators do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.services.helm_chart import (
    containers,
    environment,
    named,
    needs_helm,
    of_kind,
    pods,
    privileges,
    values_of,
)
from tools.chart import RELEASE, call_of, helm

NAME = "workload-identity"
METADATA = {"169.254.169.254/32", "169.254.169.252/32", "169.254.170.2/32", "169.254.170.23/32"}
"""Where clouds give credentials: EC2, Azure and GKE, GKE's agent, ECS, and EKS Pod Identity."""


CASES: dict[str, dict[str, Any]] = {
    NAME: values_of(NAME),
    "default": {},
    "an account of the namespace": {"serviceAccount": {"create": False}},
    "an account of others": {"serviceAccount": {"create": False, "name": "theirs"}},
    "no gateway": {"httpRoute": {"enabled": True}},
    "another name": {"nameOverride": "lookups"},
    "another full name": {"fullnameOverride": "lookups"},
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


def test_pods_have_the_account_and_the_labels_by_which_a_cloud_gives_them_an_identity(found: Any) -> None:
    (account,) = of_kind(found, "ServiceAccount")
    given = values_of(NAME)
    assert account["metadata"]["name"] == given["serviceAccount"]["name"]
    assert account["metadata"]["annotations"] == given["serviceAccount"]["annotations"]
    for name, pod in pods(found):
        assert pod["spec"]["serviceAccountName"] == account["metadata"]["name"]
        assert privileges(pod) == []
        wanted = given["nodes"]["podLabels"].items() if name.endswith("-node") else set()
        assert wanted <= pod["metadata"]["labels"].items()
    assert environment(containers(found)["node"])["AWS_REGION"] == "eu-central-1"


def test_nodes_reach_the_agents_that_give_credentials_and_routers_do_not(found: Any, results: Any) -> None:
    def blocks(name: str) -> set[str]:
        rules = named(found, "NetworkPolicy", f"lookups-{name}")["spec"]["egress"]
        return {to["ipBlock"]["cidr"] for rule in rules for to in rule.get("to", []) if "ipBlock" in to}

    assert blocks("nodes") >= METADATA
    assert blocks("routers") == set()
    assert "169.254" not in results["default"]["manifests"]


def test_an_account_that_is_there_is_used_and_none_is_made(results: Any) -> None:
    for case, used in (("an account of the namespace", "default"), ("an account of others", "theirs")):
        objects = results[case]["objects"]
        assert of_kind(objects, "ServiceAccount") == []
        assert {pod["spec"]["serviceAccountName"] for _, pod in pods(objects)} == {used}


def test_placement_and_volumes_are_those_of_the_values(found: Any) -> None:
    given, spec = values_of(NAME)["nodes"], dict(pods(found))["lookups-node"]["spec"]
    assert spec["affinity"] == given["affinity"]
    assert spec["topologySpreadConstraints"] == given["topologySpreadConstraints"]
    assert given["extraVolumes"][0] in spec["volumes"]
    assert given["extraVolumeMounts"][0] in spec["containers"][0]["volumeMounts"]


def test_an_ingress_and_a_route_lead_to_the_service_of_the_routers(found: Any, results: Any) -> None:
    service = named(found, "Service", "lookups-router")
    (path,) = named(found, "Ingress", "lookups-router")["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": "http"}}
    (rule,) = named(found, "HTTPRoute", "lookups-router")["spec"]["rules"]
    port = service["spec"]["ports"][0]["port"]
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": port}]
    assert "httpRoute.parentRefs" in results["no gateway"]["error"]


def test_a_pod_monitor_scrapes_the_port_that_pods_name(found: Any) -> None:
    assert of_kind(found, "ServiceMonitor") == []
    for component in ("node", "router"):
        spec = named(found, "PodMonitor", f"lookups-{component}")["spec"]
        assert spec["selector"]["matchLabels"]["app.kubernetes.io/component"] == component
        assert [each["port"] for each in spec["podMetricsEndpoints"]] == ["http"]


def test_helm_test_asks_the_routers_and_the_network_lets_it(found: Any, results: Any) -> None:
    (pod,) = of_kind(found, "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert privileges(pod) == []
    assert pod["spec"]["containers"][0]["command"][-1] == "http://lookups-router:8080/readyz"
    (rule,) = named(found, "NetworkPolicy", "lookups-routers")["spec"]["ingress"]
    selectors = [each["podSelector"]["matchLabels"] for each in rule["from"] if "podSelector" in each]
    assert any(selector.items() <= pod["metadata"]["labels"].items() for selector in selectors)
    assert of_kind(results["default"]["objects"], "Pod") == []


def test_objects_are_named_as_the_values_say_and_pods_are_selected_as_before(results: Any) -> None:
    selectors = []
    for case, name in (
        ("default", RELEASE),
        ("another name", f"{RELEASE}-lookups"),
        ("another full name", "lookups"),
    ):
        (nodes,) = of_kind(results[case]["objects"], "StatefulSet")
        assert nodes["metadata"]["name"] == f"{name}-node"
        selectors.append(nodes["spec"]["selector"])
    assert selectors == selectors[:1] * 3
