"""The flat manifests, which are the chart's default: valid for our services, and allowed no more than needed.

They are read as data, so none of this needs Helm.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.services.deploy_files import DOCKER, DOCKERFILE, known_variables, variables
from tests.support.services.helm_chart import (
    Manifest,
    containers,
    environment,
    flat_manifests,
    named,
    of_kind,
    pods,
    privileges,
    read_yaml,
)
from tools.chart import MANIFESTS

from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_pipeline.demo.settings import DemoSettings
from understudy_router.settings import RouterSettings
from understudy_shared.cluster.seeds import parse_seeds

FLAT = flat_manifests()
PODS = dict(pods(FLAT))
CONTAINERS = containers(FLAT)
OURS = ("node", "router", "pipeline")
SETTINGS = {"node": ClusterNodeSettings, "router": RouterSettings, "pipeline": DemoSettings}
FILLED_IN = {"<metadata.name>": "understudy-node-0", "<status.podIP>": "10.1.2.3"}
ZONE = "<metadata.labels['topology.kubernetes.io/zone']>"
each_of_ours = pytest.mark.parametrize("name", OURS)
each_pod = pytest.mark.parametrize("maker", PODS)


def variables_of(name: str) -> dict[str, str]:
    """The variables that a process of ours has: from its image, then from the manifest."""
    own = variables(DOCKER.line_of(name)[::-1]) | environment(CONTAINERS[name])
    return {variable: value for variable, value in own.items() if variable.startswith("UNDERSTUDY_")}


def test_there_is_one_of_everything_that_a_trial_needs() -> None:
    kinds = sorted((each["kind"], each["metadata"]["name"]) for each in FLAT)
    assert [name for kind, name in kinds if kind == "StatefulSet"] == ["understudy-node"]
    made = ["understudy-pipeline", "understudy-router", "understudy-valkey"]
    assert [name for kind, name in kinds if kind == "Deployment"] == made
    assert len(set(kinds)) == len(kinds)
    assert set(CONTAINERS) == {*OURS, "valkey"}


def test_the_manifests_name_no_namespace_and_nothing_that_only_helm_reads() -> None:
    assert all("namespace" not in each["metadata"] for each in FLAT)
    assert "helm" not in MANIFESTS.read_text().lower()


def test_kustomize_adds_a_namespace_that_only_lets_restricted_pods_in() -> None:
    kustomization = read_yaml(MANIFESTS.with_name("kustomization.yaml"))
    assert set(kustomization["resources"]) == {"namespace.yaml", MANIFESTS.name}
    namespace = read_yaml(MANIFESTS.with_name("namespace.yaml"))["metadata"]
    assert namespace["name"] == kustomization["namespace"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    images = {each["image"].partition(":")[0] for name, each in CONTAINERS.items() if name in OURS}
    assert {each["name"] for each in kustomization["images"]} == images


# What our processes are told


@each_of_ours
def test_every_variable_is_a_setting_of_its_service_or_of_the_hook(name: str) -> None:
    hook = {"UNDERSTUDY_URL"} if name == "node" else set()
    assert set(variables_of(name)) - known_variables(name) == hook


@each_of_ours
def test_the_settings_of_a_service_are_complete_and_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in variables_of(name).items():
        monkeypatch.setenv(variable, FILLED_IN.get(value, "" if value == ZONE else value))
    settings = SETTINGS[name]()  # from the environment
    assert settings.application_id == "flights"
    assert settings.redis == "redis://understudy-valkey:6379/0"
    if isinstance(settings, ClusterNodeSettings):
        assert (settings.node_id, settings.advertised_host) == ("understudy-node-0", "10.1.2.3")
        assert settings.zone == ""  # a cluster that gives pods no label of their zone
    if isinstance(settings, ClusterNodeSettings | RouterSettings):
        assert settings.host == "0.0.0.0"


def test_a_node_is_told_its_zone_by_its_pod() -> None:
    assert environment(CONTAINERS["node"])["UNDERSTUDY_ZONE"] == ZONE


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


# Ports, probes, and the end of a pod


@pytest.mark.parametrize("name", ["node", "router"])
def test_probes_and_services_are_at_the_port_that_the_process_listens_at(name: str) -> None:
    container = CONTAINERS[name]
    assert [(each["name"], str(each["containerPort"])) for each in container["ports"]] == [
        ("http", environment(container)["UNDERSTUDY_PORT"])
    ]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == "http"
    service = named(FLAT, "Service", {"node": "understudy-nodes", "router": "understudy-router"}[name])
    assert [each["targetPort"] for each in service["spec"]["ports"]] == ["http"]


@pytest.mark.parametrize("name", ["node", "router"])
def test_readiness_asks_whether_it_can_answer_and_liveness_only_whether_it_lives(name: str) -> None:
    container = CONTAINERS[name]
    paths = {probe: container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")}
    assert paths == {"startupProbe": "/livez", "readinessProbe": "/readyz", "livenessProbe": "/livez"}


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


def test_the_command_of_a_container_is_that_of_its_image() -> None:
    for name in OURS:
        image = DOCKER.stage(name).last("CMD")
        assert str(CONTAINERS[name]["command"]).replace("'", '"') == image, DOCKERFILE


def test_only_one_pod_writes_the_checkpoint_at_a_time() -> None:
    query = named(FLAT, "Deployment", "understudy-pipeline")["spec"]
    assert (query["replicas"], query["strategy"]) == (1, {"type": "Recreate"})


# Objects that name each other


def test_every_selector_finds_pods_of_one_maker() -> None:
    labels = {maker: pod["metadata"]["labels"] for maker, pod in PODS.items()}
    selectors = [
        each["spec"]["selector"].get("matchLabels", each["spec"]["selector"])
        for each in FLAT
        if each["kind"] in ("Service", "PodDisruptionBudget", "StatefulSet", "Deployment")
    ]
    assert len(selectors) == 9
    for selector in selectors:
        assert len([maker for maker, own in labels.items() if selector.items() <= own.items()]) == 1, selector


def test_an_eviction_takes_one_node_and_one_router_at_a_time() -> None:
    budgets = of_kind(FLAT, "PodDisruptionBudget")
    assert {each["metadata"]["name"] for each in budgets} == {"understudy-nodes", "understudy-routers"}
    for each in budgets:
        assert each["spec"]["maxUnavailable"] == 1
        assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_autoscaler_alone_says_how_many_routers_there_are() -> None:
    (scaler,) = of_kind(FLAT, "HorizontalPodAutoscaler")
    target = scaler["spec"]["scaleTargetRef"]
    assert "replicas" not in named(FLAT, target["kind"], target["name"])["spec"]
    assert scaler["spec"]["minReplicas"] >= 2
    assert CONTAINERS["router"]["resources"]["requests"]["cpu"]


def test_every_claim_that_a_pod_mounts_is_made() -> None:
    claims = {each["metadata"]["name"] for each in of_kind(FLAT, "PersistentVolumeClaim")}
    mounted = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in PODS.values()
        for volume in pod["spec"].get("volumes", [])
        if "persistentVolumeClaim" in volume
    }
    assert mounted == claims


# What pods may do


@each_pod
def test_a_pod_may_do_no_more_than_it_needs(maker: str) -> None:
    assert privileges(PODS[maker]) == []
    accounts = {each["metadata"]["name"] for each in of_kind(FLAT, "ServiceAccount")}
    assert PODS[maker]["spec"]["serviceAccountName"] in accounts


@each_of_ours
def test_a_pod_runs_as_the_user_of_its_image(name: str) -> None:
    user = next(user for stage in DOCKER.line_of(name) if (user := stage.last("USER")) is not None)
    (security,) = {
        (pod["spec"]["securityContext"]["runAsUser"], pod["spec"]["securityContext"]["runAsGroup"])
        for pod in PODS.values()
        if pod["spec"]["containers"][0]["name"] == name
    }
    assert user == "{}:{}".format(*security)


@each_of_ours
def test_what_a_process_writes_to_is_a_volume_of_its_own(name: str) -> None:
    mounts = {mount["mountPath"] for mount in CONTAINERS[name]["volumeMounts"]}
    data = variables_of(name).get("UNDERSTUDY_DATA_DIR")
    assert {"/tmp"} | ({data} if data else set()) <= mounts


# Who may talk with whom


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


def test_readers_are_pods_of_the_namespace_unless_others_are_named() -> None:
    assert allowed("routers", "ingress", "from")[:2] == ["node", "{'podSelector': {}}"]


def test_every_rule_names_a_port_and_only_names_may_be_asked_of_anybody() -> None:
    for name, policy in policies().items():
        for way in ("ingress", "egress"):
            for rule in policy.get(way, []):
                ports = {each["port"] for each in rule["ports"]}
                assert "from" in rule or "to" in rule or ports == {53}, name
