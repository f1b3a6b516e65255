"""What Helm makes of the chart, for each set of values: skipped where Helm is not installed (`make helm`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest
from jsonschema import Draft7Validator  # type: ignore[import-untyped]
from ruamel.yaml import YAML
from tests.support.repository import ROOT
from tests.support.services.deploy_files import DOCKER, known_variables, variables
from tests.support.services.helm_chart import (
    FILLED_IN,
    NEWEST,
    OLDEST,
    SETS,
    Manifest,
    containers,
    environment,
    manifests,
    named,
    needs_helm,
    of_kind,
    pods,
    privileges,
    problems,
    rendered,
    values_of,
)
from tools.chart import CHART, MANIFESTS, README, call_of, flat, helm

from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_node.fleet.settings import NodeFleetSettings
from understudy_router.settings import RouterSettings
from understudy_shared.cluster.seeds import parse_seeds
from understudy_shared.fleet.applications_file import parse_applications
from understudy_shared.telemetry.span_export import ENDPOINTS

BY_THE_HOOK = {"UNDERSTUDY_API_KEY_FILE", "UNDERSTUDY_CA_FILE", "UNDERSTUDY_URL"}
"""What only the command reads that a node runs before it stops."""
BETWEEN = [f"1.{minor}" for minor in range(30, 37)]
OURS = ("node", "router", "pipeline")
ENDPOINT = ENDPOINTS[-1]
"""The variable that names a collector for everything."""
MEMBERS = {"node": ClusterNodeSettings, "router": RouterSettings}
SPARK_APPLICATION = {
    # The part of the operator's definition (spark.apache.org/v1, release 0.7) that the chart uses.
    "type": "object",
    "additionalProperties": False,
    "required": ["runtimeVersions", "sparkConf"],
    "properties": {
        "pyFiles": {"type": "string"},
        "jars": {"type": "string"},
        "mainClass": {"type": "string"},
        "driverArgs": {"type": "array", "items": {"type": "string"}},
        "deploymentMode": {"enum": ["ClusterMode", "ClientMode"]},
        "runtimeVersions": {"type": "object", "properties": {"sparkVersion": {"type": "string"}}},
        "sparkConf": {"type": "object", "additionalProperties": {"type": "string"}},
        "applicationTolerations": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "resourceRetainPolicy": {"enum": ["Always", "Never", "OnFailure"]},
                "restartConfig": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "restartPolicy": {"enum": ["Always", "Never", "OnFailure", "OnInfrastructureFailure"]},
                        "maxRestartAttempts": {"type": "integer"},
                        "restartBackoffMillis": {"type": "integer"},
                        "restartCounterResetMillis": {"type": "integer"},
                    },
                },
            },
        },
        "driverSpec": {"type": "object", "required": ["podTemplateSpec"]},
        "executorSpec": {"type": "object", "required": ["podTemplateSpec"]},
    },
}

each_set = pytest.mark.parametrize("name", ["", *SETS], ids=["default", *SETS])


def test_the_flat_manifests_are_the_charts_default() -> None:
    assert MANIFESTS.read_text() == flat(rendered("")), "python -m tools.chart"


def test_there_are_enough_sets_to_speak_of_every_kind_of_object() -> None:
    assert len(SETS) >= 6
    kinds = {each["kind"] for name in ["", *SETS] for each in manifests(name)}
    templates = "\n".join(path.read_text() for path in (CHART / "templates").glob("*.yaml"))
    declared = {line.removeprefix("kind: ") for line in templates.splitlines() if line.startswith("kind: ")}
    assert kinds == declared


@each_set
def test_helm_finds_nothing_to_say_of_the_chart(name: str) -> None:
    assert problems("lint", name) == []


@each_set
def test_every_object_keeps_the_schemas_of_kubernetes(name: str) -> None:
    for version in (OLDEST, NEWEST):
        assert problems(version, name) == []


@pytest.mark.full
@pytest.mark.parametrize("version", BETWEEN)
def test_every_object_keeps_the_schemas_of_every_kubernetes_between(version: str) -> None:
    needs_helm()
    found = helm([call_of("validate", values_of(name), version=version) for name in ["", *SETS]])
    assert [each["problems"] for each in found] == [[]] * len(found)


def is_fleet_node(service: str, variables: Mapping[str, str]) -> bool:
    return service == "node" and not {"UNDERSTUDY_APPLICATIONS", "UNDERSTUDY_CHECKPOINT_ROOT"}.isdisjoint(variables)


@each_set
def test_processes_are_told_what_is_valid_and_nothing_that_they_do_not_know(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for container in containers(manifests(name)).values():
        service = container["name"]
        if service not in OURS or (service == "pipeline" and values_of(name).get("spark", {}).get("deployment", {})):
            continue
        own = variables(DOCKER.line_of(service)[::-1]) | environment(container)
        ours = {variable: value for variable, value in own.items() if variable.startswith("UNDERSTUDY_")}
        assert set(ours) - known_variables(service) <= BY_THE_HOOK
        if service in MEMBERS:
            with monkeypatch.context() as patch:
                for variable, value in ours.items():
                    patch.setenv(variable, FILLED_IN.get(value, value))
                settings = (NodeFleetSettings if is_fleet_node(service, ours) else MEMBERS[service])()
                if isinstance(settings, NodeFleetSettings):
                    settings.require_no_other()
            assert parse_seeds(settings.seed)
            for setting, given in values_of(name).get(f"{service}s", {}).get("settings", {}).items():
                assert ours[f"UNDERSTUDY_{setting.upper()}"] == str(given)


@each_set
def test_no_pod_may_do_more_than_it_needs(name: str) -> None:
    for maker, pod in pods(manifests(name)):
        assert privileges(pod) == [], maker


@pytest.mark.parametrize(
    ("name", "redis"),
    [
        ("", "redis://understudy-valkey:6379/0"),
        ("production", "<understudy-redis>"),
        ("object-storage", "rediss://redis.example.com:6380/2"),
        (
            "sentinel",
            "rediss+sentinel://sentinel-0.redis:26379,sentinel-1.redis:26379,sentinel-2.redis:26379/understudy/3",
        ),
        ("tls", "<understudy-redis>"),
    ],
)
def test_all_processes_use_the_redis_that_is_given(name: str, redis: str) -> None:
    found = {each: environment(own) for each, own in containers(manifests(name)).items() if each in OURS}
    assert {own["UNDERSTUDY_REDIS"] for each, own in found.items() if each != "pipeline"} == {redis}
    if "pipeline" in found:
        own = found["pipeline"]
        url = own["UNDERSTUDY_REDIS"].replace("$(REDIS_URL)", own.get("REDIS_URL", ""))
        assert url.partition("?")[0] == redis


TLS = {"ssl_ca_certs": "ca.crt", "ssl_certfile": "tls.crt", "ssl_keyfile": "tls.key"}
PROJECTED = "/run/understudy"


@pytest.mark.parametrize(("name", "count"), [("tls", 3), ("sentinel", 1), ("object-storage", 1)])
def test_a_query_takes_the_files_for_tls_that_nodes_take_as_options_of_its_url(name: str, count: int) -> None:
    made = manifests(name)
    nodes = environment(containers(made)["node"])
    files = {variable: value for variable, value in nodes.items() if re.search(r"REDIS_\w+_FILE$", variable)}
    assert len(files) == count
    own = environment(query_of(made))
    options = dict(pair.split("=") for pair in own["UNDERSTUDY_REDIS"].partition("?")[2].split("&"))
    assert options == {option: f"{PROJECTED}/{file}" for option, file in list(TLS.items())[:count]}
    assert set(options.values()) == set(files.values())


def query_of(made: list[Manifest]) -> Manifest:
    """The container that runs the query."""
    for application in of_kind(made, "SparkApplication"):
        driver: Manifest = application["spec"]["driverSpec"]["podTemplateSpec"]["spec"]["containers"][0]
        return driver
    return containers(made)["pipeline"]


def pod_of_the_query(made: list[Manifest]) -> Manifest:
    """The pod that runs the query."""
    for application in of_kind(made, "SparkApplication"):
        pod: Manifest = application["spec"]["driverSpec"]["podTemplateSpec"]
        return pod
    return next(pod for _, pod in pods(made) if pod["spec"]["containers"][0]["name"] == "pipeline")


@each_set
def test_every_file_that_a_process_is_told_of_is_in_a_secret_that_its_pod_mounts(name: str) -> None:
    made = manifests(name)
    templates = [pod for _, pod in pods(made)]
    templates += [pod_of_the_query(made)] if of_kind(made, "SparkApplication") else []
    for pod in templates:
        container = pod["spec"]["containers"][0]
        told = set(re.findall(rf"{PROJECTED}/([\w.-]+)", " ".join(environment(container).values())))
        volumes = [volume["projected"] for volume in pod["spec"].get("volumes", []) if "projected" in volume]
        secrets = [source["secret"] for each in volumes for source in each["sources"] if "secret" in source]
        there = {item["path"] for secret in secrets for item in secret["items"]}
        assert told == there, container["name"]
        mounts = {mount["mountPath"]: mount for mount in container.get("volumeMounts", [])}
        assert not told or mounts[PROJECTED]["readOnly"] is True


def test_the_secrets_that_the_readme_makes_hold_every_file_that_is_asked_of_them() -> None:
    made = "\n".join(re.findall(r"create secret .*", README.read_text().replace("\\\n", "")))
    given = {
        name: set(re.findall(r"--from-file=(\S+)", rest))
        for name, rest in re.findall(r"create secret generic (\S+)(.*)", made)
    }
    asked = set()
    for name in ("production", "monitoring"):
        for _, pod in pods(manifests(name)):
            (projected,) = [each["projected"] for each in pod["spec"]["volumes"] if "projected" in each] or [{}]
            for source in projected.get("sources", []):
                asked |= {(source["secret"]["name"], item["key"]) for item in source["secret"]["items"]}
        node = containers(manifests(name))["node"]
        references = [each["valueFrom"]["secretKeyRef"] for each in node["env"] if "secretKeyRef" in str(each)]
        asked |= {(each["name"], each["key"]) for each in references}
        for monitor in of_kind(manifests(name), "ServiceMonitor"):
            credentials = monitor["spec"]["endpoints"][0]["authorization"]["credentials"]
            asked.add((credentials["name"], credentials["key"]))
    assert asked == {(name, key) for name, keys in given.items() for key in keys}


def test_gossip_is_signed_by_the_query_as_by_nodes_and_routers() -> None:
    for name in ("monitoring", "tls", "object-storage"):
        made = manifests(name)
        parts = [containers(made)["node"], containers(made)["router"], query_of(made)]
        assert {environment(each).get("UNDERSTUDY_GOSSIP_KEY_FILE") for each in parts} == {f"{PROJECTED}/gossip-key"}


def test_prometheus_shows_its_key_where_readers_need_one() -> None:
    for monitor in of_kind(manifests("monitoring"), "ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            key = {"name": "understudy-auth", "key": "prometheus-key"}
            assert endpoint["authorization"] == {"type": "Bearer", "credentials": key}


def test_prometheus_asks_each_of_several_router_processes_at_its_own_port() -> None:
    made = manifests("monitoring")
    asked = {
        monitor["metadata"]["labels"]["app.kubernetes.io/component"]: [
            endpoint.get("targetPort", endpoint.get("port")) for endpoint in monitor["spec"]["endpoints"]
        ]
        for monitor in of_kind(made, "ServiceMonitor")
    }
    assert asked == {"node": ["http"], "router": ["process-0", "process-1"]}
    ports = {port["name"]: port["containerPort"] for port in containers(made)["router"]["ports"]}
    assert ports == {"http": 8080, "process-0": 8081, "process-1": 8082}
    (policy,) = (each for each in of_kind(made, "NetworkPolicy") if each["metadata"]["name"].endswith("-routers"))
    (rule,) = (each for each in policy["spec"]["ingress"] if each["ports"][0]["port"] == "process-0")
    assert [each["port"] for each in rule["ports"]] == ["process-0", "process-1"]


def test_spans_go_to_the_collector_that_is_named_and_may_get_there() -> None:
    made = manifests("monitoring")
    for name in ("node", "router"):
        assert environment(containers(made)[name])[ENDPOINT] == "http://collector.monitoring:4318"
        assert ENDPOINT not in environment(containers(manifests(""))[name])
    policy = named(made, "NetworkPolicy", "understudy-tracing")["spec"]
    assert policy["egress"] == [{"ports": [{"port": 4318, "protocol": "TCP"}]}]


def test_numbers_that_helm_reads_as_floats_are_written_whole() -> None:
    node = environment(containers(manifests("production"))["node"])
    assert node["UNDERSTUDY_STATESTORE_CACHE_MAX_BYTES"] == "268435456"


def test_each_zone_has_a_set_of_nodes_that_selects_its_own_pods_and_knows_its_zone() -> None:
    sets = of_kind(manifests("zones"), "StatefulSet")
    assert [each["spec"]["replicas"] for each in sets] == [2, 2, 1]
    for each in sets:
        pod = each["spec"]["template"]
        labels, zone = pod["metadata"]["labels"], pod["spec"]["nodeSelector"]["topology.kubernetes.io/zone"]
        assert each["metadata"]["name"].endswith(zone)
        assert [other for other in sets if other["spec"]["selector"]["matchLabels"].items() <= labels.items()] == [each]
        assert labels["topology.kubernetes.io/zone"] == zone
        own = environment(pod["spec"]["containers"][0])
        assert own["UNDERSTUDY_ZONE"] == "<metadata.labels['topology.kubernetes.io/zone']>"
        assert each["spec"]["updateStrategy"] == {"type": "OnDelete"}  # else all zones would stop a node at once


def test_routers_are_counted_by_one_autoscaler_or_by_the_deployment() -> None:
    for name in ["", *SETS]:
        made = manifests(name)
        scalers = of_kind(made, "HorizontalPodAutoscaler") + of_kind(made, "ScaledObject")
        (routers,) = [each for each in of_kind(made, "Deployment") if each["metadata"]["name"].endswith("-router")]
        assert len(scalers) + ("replicas" in routers["spec"]) == 1, name
        for each in scalers:
            assert each["spec"]["scaleTargetRef"]["name"] == routers["metadata"]["name"]


@pytest.mark.parametrize(
    ("name", "of"),
    [("keda", 'application="flights"'), ("fleet", 'namespace="understudy", pod=~"understudy-router-.+"')],
)
def test_keda_counts_its_own_routers_and_keeps_the_peak_while_prometheus_is_away(name: str, of: str) -> None:
    (scaled,) = of_kind(manifests(name), "ScaledObject")
    assert scaled["spec"]["fallback"]["replicas"] == scaled["spec"]["maxReplicaCount"]
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["type"] == "prometheus"  # others have no fallback
        assert set(re.findall(r"{(.+?)}", trigger["metadata"]["query"])) == {of}


def test_prometheus_gets_the_alerts_that_are_tested_and_they_lead_to_the_runbooks_of_the_routers() -> None:
    (rule,) = of_kind(manifests("monitoring"), "PrometheusRule")
    text = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    ours = text.replace("http://localhost:8080/", "http://understudy-router.understudy.svc:8080/")
    assert rule["spec"]["groups"] == YAML(typ="safe").load(ours)["groups"]


@pytest.mark.parametrize(
    ("name", "relabelings"),
    [("monitoring", [{"targetLabel": "application", "replacement": "flights"}]), ("fleet", None)],
)
def test_prometheus_finds_nodes_and_routers_and_their_series_have_the_application(
    name: str, relabelings: object
) -> None:
    made = manifests(name)
    services = [each["metadata"] for each in of_kind(made, "Service")]
    found = []
    for monitor in of_kind(made, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        found += [each["name"] for each in services if wanted <= each["labels"].items()]
        for endpoint in monitor["spec"]["endpoints"]:
            assert endpoint.get("relabelings") == relabelings  # a fleet gives its series the label itself
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert found == ["understudy-nodes", "understudy-router"]


def test_grafana_gets_the_dashboards_as_they_are() -> None:
    found = named(manifests("monitoring"), "ConfigMap", "understudy-dashboards")
    files = {path.name: path.read_text() for path in (ROOT / "deploy" / "grafana").glob("*.json")}
    assert found["data"] == files


def test_an_application_of_sparks_operator_keeps_its_schema_and_what_nodes_can_follow() -> None:
    (application,) = of_kind(manifests("object-storage"), "SparkApplication")
    assert application["apiVersion"] == "spark.apache.org/v1"
    spec = application["spec"]
    assert [error.message for error in Draft7Validator(SPARK_APPLICATION).iter_errors(spec)] == []
    conf = spec["sparkConf"]
    assert conf["spark.sql.shuffle.partitions"] == "64"
    assert conf["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] == "true"
    driver = spec["driverSpec"]["podTemplateSpec"]["spec"]["containers"][0]
    assert environment(driver)["UNDERSTUDY_CHECKPOINT"] == "s3://bucket/checkpoints/clicks"
    assert driver["envFrom"] == [{"secretRef": {"name": "s3-credentials"}}]


def test_a_checkpoint_by_url_is_mounted_by_nobody() -> None:
    made = manifests("object-storage")
    node = containers(made)["node"]
    assert environment(node)["UNDERSTUDY_CHECKPOINT"] == "s3://bucket/checkpoints/clicks"
    assert node["envFrom"] == [{"secretRef": {"name": "s3-credentials"}}]
    assert "checkpoint" not in {mount["name"] for mount in node["volumeMounts"]}
    assert of_kind(made, "PersistentVolumeClaim") == []


def test_two_releases_in_one_namespace_share_nothing_but_redis_and_the_volume() -> None:
    first = {(each["kind"], each["metadata"]["name"]) for each in manifests("")}
    second = manifests("second-application")
    assert first & {(each["kind"], each["metadata"]["name"]) for each in second} == set()
    redis = environment(containers(second)["node"])["UNDERSTUDY_REDIS"]
    service = redis.removeprefix("redis://").partition(":")[0]
    assert ("Service", service) in first
    valkey = named(manifests(""), "NetworkPolicy", "understudy-valkey")["spec"]["ingress"][0]["from"]
    labels = [pod["metadata"]["labels"] for _, pod in pods(second)]
    for own in labels:
        assert any(peer["podSelector"]["matchLabels"].items() <= own.items() for peer in valkey)


def test_images_are_named_by_registry_tag_and_digest() -> None:
    own = containers(manifests("production"))
    assert own["node"]["image"].startswith("registry.example.com/team/understudy-node:0.1.0@sha256:")
    assert own["router"]["image"] == "registry.example.com/team/understudy-router:0.1.0"


def test_a_fleet_is_a_file_that_nodes_take_and_no_pod_is_another_after_a_change_of_it() -> None:
    made = manifests("fleet")
    files = named(made, "ConfigMap", "understudy-applications")["data"]
    orders, clicks, weather = parse_applications(files["applications.toml"].encode())
    assert (orders.id, orders.num_standby_replicas, clicks.num_standby_replicas) == ("orders", 2, 0)
    assert (clicks.max_in_flight, clicks.overlay_max_bytes, weather.checkpoint) == (200, 2**26, "/checkpoint/weather")
    assert orders.aliases is not None
    assert files[orders.aliases.name] == values_of("fleet")["applications"][0]["aliases"]
    node, router = containers(made)["node"], containers(made)["router"]
    folders = {each["mountPath"] for each in node["volumeMounts"] if "subPath" not in each}  # a subPath stays as it is
    told = environment(node)["UNDERSTUDY_APPLICATIONS"]
    assert {str(PurePosixPath(told).parent), str(orders.aliases.parent), "/checkpoint"} <= folders
    assert environment(router)["UNDERSTUDY_APPLICATIONS"] == "*"
    announced = {"CHECKPOINT_ROOT": "s3://bucket/announced,/checkpoint/announced", "FORGET_AFTER_MS": "604800000"}
    announced = {f"UNDERSTUDY_{name}": value for name, value in (announced | {"REMOVE_IDLE": "true"}).items()}
    assert announced.items() <= environment(node).items()
    values = values_of("fleet")
    first, *others = values["applications"]
    changed = [{**first, "aliases": '[op0]\nname = "all"\n'}, *others, {"id": "new", "checkpoint": "s3://bucket/new"}]
    again, by_name, without = helm(
        [
            call_of("render", {**values, "applications": changed}),
            call_of("render", {**values, "applications": [], "applicationsConfigMap": "understudy-applications"}),
            call_of("render", {**values, "applications": []}),
        ]
    )
    assert list(pods(again["objects"])) == list(pods(by_name["objects"])) == list(pods(made))
    file = named(again["objects"], "ConfigMap", "understudy-applications")["data"]["applications.toml"]
    now = parse_applications(file.encode())
    assert [each.id for each in now] == ["orders", "clicks", "weather", "new"]
    assert now[0].aliases != orders.aliases  # so that the node takes the change
    assert [each["metadata"]["name"] for each in of_kind(by_name["objects"], "ConfigMap")] == []
    node, router = (containers(without["objects"])[name] for name in ("node", "router"))
    assert announced.items() <= environment(node).items()
    assert not {"UNDERSTUDY_APPLICATIONS", "UNDERSTUDY_CHECKPOINT"} & environment(node).keys()
    assert environment(router)["UNDERSTUDY_APPLICATIONS"] == "*"
