"""What Helm makes of the chart, for each set of values: skipped where Helm is not installed (`make helm`)."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest
from tests.support.services.deploy_files import DOCKER, known_variables, variables
from tests.support.services.helm_chart import (
    FILLED_IN,
    SETS,
    Manifest,
    containers,
    environment,
    lint_problems,
    manifests,
    named,
    of_kind,
    pods,
    rendered,
    values_of,
)
from tools.chart import MANIFESTS, README, call_of, flat, helm

from understudy_node.settings import ClusterNodeSettings
from understudy_router.settings import RouterSettings
from understudy_shared.cluster.without_bus import parse_seeds
from understudy_shared.fleet.applications_file import parse_applications

BY_THE_HOOK = {"UNDERSTUDY_API_KEY_FILE", "UNDERSTUDY_CA_FILE", "UNDERSTUDY_URL"}
"""What only the command reads that a node runs before it stops."""
OURS = ("node", "router", "pipeline")
MEMBERS = {"node": ClusterNodeSettings, "router": RouterSettings}

each_set = pytest.mark.parametrize("name", ["", *SETS], ids=["default", *SETS])


def test_the_flat_manifests_are_the_charts_default() -> None:
    assert MANIFESTS.read_text() == flat(rendered("")), "python -m tools.chart"


@each_set
def test_helm_finds_nothing_to_say_of_the_chart(name: str) -> None:
    assert lint_problems(name) == []


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
                settings = MEMBERS[service]()
                if isinstance(settings, ClusterNodeSettings):
                    settings.require_usable()
            assert parse_seeds(settings.seed)
            for setting, given in values_of(name).get(f"{service}s", {}).get("settings", {}).items():
                assert ours[f"UNDERSTUDY_{setting.upper()}"] == str(given)


PROJECTED = "/run/understudy"


def pod_of_the_query(made: list[Manifest]) -> Manifest:
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
