"""What no validator knows of the flat manifests: one writer, seeds, times to stop, who may ask whom. Needs no Helm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.services.deploy_files import DOCKER, variables
from tests.support.services.helm_chart import (
    Manifest,
    containers,
    environment,
    flat_manifests,
    named,
    of_kind,
    pods,
)

from understudy_shared.cluster.without_bus import parse_seeds

FLAT = flat_manifests()
PODS = dict(pods(FLAT))
CONTAINERS = containers(FLAT)


def variables_of(name: str) -> dict[str, str]:
    """The variables that a process of ours has: from its image, then from the manifest."""
    own = variables(DOCKER.line_of(name)[::-1]) | environment(CONTAINERS[name])
    return {variable: value for variable, value in own.items() if variable.startswith("UNDERSTUDY_")}


def test_nodes_and_the_query_have_one_checkpoint_and_only_the_query_writes_it() -> None:
    paths = {variables_of(name)["UNDERSTUDY_CHECKPOINT"] for name in ("node", "pipeline")}
    assert len(paths) == 1
    is_read_only = {}
    for name in ("node", "pipeline"):
        mounts = {mount["name"]: mount for mount in CONTAINERS[name]["volumeMounts"]}
        assert min(paths).startswith(mounts["checkpoint"]["mountPath"] + "/")
        is_read_only[name] = mounts["checkpoint"].get("readOnly", False)
    assert is_read_only == {"node": True, "pipeline": False}


@pytest.mark.parametrize("name", ["node", "router"])
def test_seeds_are_pods_of_the_headless_service(name: str) -> None:
    nodes = named(FLAT, "StatefulSet", "understudy-node")
    port = int(environment(CONTAINERS["node"])["UNDERSTUDY_PORT"])
    for seed in parse_seeds(environment(CONTAINERS[name])["UNDERSTUDY_SEED"]):
        pod, service = seed.host.split(".")
        assert pod in {f"understudy-node-{number}" for number in range(nodes["spec"]["replicas"])}
        assert service == nodes["spec"]["serviceName"]
        assert seed.port == port
    headless = named(FLAT, "Service", nodes["spec"]["serviceName"])["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)


def test_a_node_asks_a_router_before_it_stops_and_gets_the_time_for_it() -> None:
    (hook,) = [CONTAINERS["node"]["lifecycle"]["preStop"]["exec"]["command"]]
    asked, drained, _ = hook[-1].split(" || ")
    waits = [int(each.rpartition(" ")[2]) for each in (asked, drained)]
    assert asked.startswith('understudy safe-to-stop "$UNDERSTUDY_NODE_ID" --within-s')
    assert drained.startswith('understudy drain "$UNDERSTUDY_NODE_ID" --within-s')
    assert PODS["understudy-node"]["spec"]["terminationGracePeriodSeconds"] >= sum(waits) + 12
    router = named(FLAT, "Service", "understudy-router")
    url = f"http://{router['metadata']['name']}:{router['spec']['ports'][0]['port']}"
    assert environment(CONTAINERS["node"])["UNDERSTUDY_URL"] == url


def test_a_router_answers_on_longer_than_a_failed_probe_needs_and_shorter_than_its_grace() -> None:
    delay_s = int(environment(CONTAINERS["router"])["UNDERSTUDY_SHUTDOWN_DELAY_MS"]) / 1000
    probe = CONTAINERS["router"]["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < delay_s
    assert PODS["understudy-router"]["spec"]["terminationGracePeriodSeconds"] >= delay_s + 12


def policies() -> dict[str, Manifest]:
    return {
        each["metadata"]["name"].removeprefix("understudy-"): each["spec"] for each in of_kind(FLAT, "NetworkPolicy")
    }


def components(peers: list[Manifest]) -> Iterator[str]:
    """Components of this release among peers; what else is named is as it stands."""
    for peer in peers:
        labels = peer.get("podSelector", {}).get("matchLabels", {})
        yield labels.get("app.kubernetes.io/component") or str(peer)


def allowed(name: str, way: str, peers: str) -> list[str]:
    return [each for rule in policies()[name].get(way, []) for each in components(rule.get(peers, []))]


def test_nothing_goes_in_or_out_that_no_policy_names() -> None:
    deny = policies()["default-deny"]
    assert set(deny["policyTypes"]) == {"Ingress", "Egress"}
    assert not {"ingress", "egress"} & set(deny)
    for pod in PODS.values():
        assert deny["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_nodes_are_asked_by_routers_nodes_and_prometheus_alone() -> None:
    others = "{'namespaceSelector': {'matchLabels': {'kubernetes.io/metadata.name': 'monitoring'}}}"
    assert allowed("nodes", "ingress", "from") == ["router", "node", others]
    assert allowed("nodes", "egress", "to") == ["node", "router"]
    assert allowed("routers", "egress", "to") == ["node"]
