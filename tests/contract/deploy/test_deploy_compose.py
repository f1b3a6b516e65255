"""The stack of docker-compose.yml: the demo's topology, with valid settings, and allowed no more than it needs."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib

import pytest
from tests.support.repository import ROOT
from tests.support.services.deploy_files import (
    COMPOSE,
    DOCKER,
    DOCKERFILE,
    HTTP,
    IMAGES,
    OURS,
    SERVICES,
    SETTINGS,
    STACK,
    environment_of,
    known_variables,
    read_compose,
)

from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_router.settings import RouterSettings

PROJECT_VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
each_service = pytest.mark.parametrize("name", SERVICES)


def test_the_stack_is_the_demos_topology() -> None:
    counts = {image: list(IMAGES.values()).count(image) for image in IMAGES.values()}
    assert counts == {"pipeline": 1, "node": 3, "router": 2}
    assert set(SERVICES) - set(OURS) == {"valkey", "prometheus", "alertmanager"}


@each_service
def test_every_image_has_a_version_and_ours_is_the_projects(name: str) -> None:
    repository, _, tag = SERVICES[name]["image"].partition(":")
    assert re.match(r"v?\d+\.\d+\.\d+", tag)
    if name in OURS:
        assert (repository, tag) == (
            f"understudy-{IMAGES[name]}",
            PROJECT_VERSION,
        )
        assert OURS[name]["build"]["dockerfile"] == str(DOCKERFILE.relative_to(ROOT))
        assert (ROOT / OURS[name]["build"]["context"]).samefile(ROOT)


def test_every_image_that_is_not_ours_can_be_given_by_its_digest() -> None:
    """`NAME_IMAGE=repository:tag@sha256:...`, in the environment or in a file `.env`."""
    images = re.findall(r"(?m)^ +image: (\S+)$", COMPOSE.read_text())
    others = [image for image in images if not image.startswith("understudy-")]
    assert len(others) == len(set(SERVICES) - set(OURS))
    assert all(re.fullmatch(r"\$\{[A-Z]+_IMAGE:-[^}]+\}", image) for image in others)
    base = DOCKER.arguments["PYTHON_IMAGE"]
    for service in OURS.values():
        assert service["build"]["args"]["PYTHON_IMAGE"] == base
    assert COMPOSE.read_text().count(f"${{PYTHON_IMAGE:-{base}}}") == len({*IMAGES.values()})


@pytest.mark.parametrize("more", [(), ("-f", "deploy/compose/tls.yml")], ids=["alone", "by TLS"])
def test_docker_compose_of_debian_reads_the_file_as_it_is(more: tuple[str, ...]) -> None:
    assert set(STACK) - {"services", "networks", "volumes"} == {name for name in STACK if name.startswith("x-")}
    if shutil.which("docker-compose") is None:
        pytest.skip("no docker-compose")
    command = ["docker-compose", "-f", "docker-compose.yml", *more, "--profile", "monitoring", "config", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting_of_its_service(name: str) -> None:
    assert set(environment_of(name)) <= known_variables(IMAGES[name])


@pytest.mark.parametrize("name", HTTP)
def test_the_settings_of_a_service_are_complete_and_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = environment_of(name)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    settings = SETTINGS[IMAGES[name]]()
    assert isinstance(settings, ClusterNodeSettings | RouterSettings)
    assert settings.redis == "redis://valkey:6379/0"
    assert settings.application_id == "flights"
    if isinstance(settings, ClusterNodeSettings):
        assert settings.node_id == settings.advertise_host == SERVICES[name]["hostname"] == name


def test_every_service_has_the_same_application_and_the_same_redis() -> None:
    for variable in ("UNDERSTUDY_APPLICATION_ID", "UNDERSTUDY_REDIS"):
        assert len({environment_of(name)[variable] for name in OURS}) == 1
    followers = [name for name in OURS if IMAGES[name] != "router"]
    assert len({environment_of(name)["UNDERSTUDY_CHECKPOINT"] for name in followers}) == 1


@each_service
def test_no_service_has_a_privilege_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "network_mode", "devices"} & set(service)
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))
    assert service["mem_limit"]
    assert service["pids_limit"] > 0
    assert name in OURS or service["user"].split(":")[0] not in ("0", "root")


@each_service
def test_every_service_has_a_health_check_and_its_dependents_wait_until_it_is_healthy(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        assert needed in SERVICES
        assert how == {"condition": "service_healthy"}
        assert needed != "pipeline", "it ends by itself, and nodes wait for a checkpoint by themselves"


@pytest.mark.parametrize("name", HTTP)
def test_the_stack_asks_a_service_for_its_health_where_it_listens(name: str) -> None:
    environment = environment_of(name)
    assert f":{environment['UNDERSTUDY_PORT']}/livez" in SERVICES[name]["healthcheck"]["test"][-1]


def test_the_pipeline_is_well_when_the_checkpoint_that_nodes_follow_has_a_commit() -> None:
    test = SERVICES["pipeline"]["healthcheck"]["test"][-1]
    assert f"{environment_of('pipeline')['UNDERSTUDY_CHECKPOINT']}/commits" in test


def test_only_routers_and_monitoring_can_be_reached_and_only_from_this_machine() -> None:
    shown = {name: 8080 for name in SERVICES if IMAGES.get(name) == "router"} | {
        "prometheus": 9090,
        "alertmanager": 9093,
    }
    for name, service in SERVICES.items():
        ports = service.get("ports", [])
        assert bool(ports) == (name in shown)
        assert all(re.fullmatch(rf"127\.0\.0\.1:\d+:{shown[name]}", port) for port in ports)
        assert ("edge" in service["networks"]) == bool(ports)
    assert STACK["networks"]["cluster"] == {"internal": True}
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(set(published)) == len(published)


def test_the_checkpoint_is_written_by_the_pipeline_alone_and_local_state_is_shared_by_nobody() -> None:
    volumes = [(name, volume) for name in SERVICES for volume in SERVICES[name].get("volumes", [])]
    mounts = [(name, *volume.split(":")) for name, volume in volumes if not volume.startswith(".")]
    assert {volume for _, volume, *_ in mounts} == set(STACK["volumes"])
    writers = [name for name, volume, _, *mode in mounts if volume == "checkpoint" and mode != ["ro"]]
    assert writers == ["pipeline"]
    for name in (name for name in HTTP if IMAGES[name] == "node"):
        own = [(volume, target) for who, volume, target, *_ in mounts if who == name and volume != "checkpoint"]
        assert own == [(name, environment_of(name)["UNDERSTUDY_DATA_DIR"])]


def test_what_a_container_writes_to_belongs_to_its_user_in_the_image() -> None:
    made = " ".join(DOCKER.stage("runtime").all("RUN"))
    targets = {volume.split(":")[1] for service in OURS.values() for volume in service.get("volumes", [])}
    assert all(re.search(rf"install -d -o understudy -g understudy.* {target}\b", made) for target in targets)


# The profile `monitoring`


def test_monitoring_starts_only_when_it_is_asked_for_and_reads_files_of_this_repository() -> None:
    for name in ("prometheus", "alertmanager"):
        assert SERVICES[name]["profiles"] == ["monitoring"]
        files = [volume for volume in SERVICES[name]["volumes"] if volume.startswith(".")]
        assert files
        for source, _, mode in (volume.split(":") for volume in files):
            assert (ROOT / source).is_file()
            assert mode == "ro"
    assert [name for name, service in SERVICES.items() if "profiles" in service] == ["prometheus", "alertmanager"]


def test_prometheus_scrapes_every_node_and_router_where_it_listens() -> None:
    configuration = read_compose((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (job,) = configuration["scrape_configs"]
    (group,) = job["static_configs"]
    ports = {name: environment_of(name)["UNDERSTUDY_PORT"] for name in HTTP}
    assert set(group["targets"]) == {f"{name}:{port}" for name, port in ports.items()}
    assert group["labels"] == {"application": environment_of("router-1")["UNDERSTUDY_APPLICATION_ID"]}
    for name in HTTP:
        assert set(SERVICES[name]["networks"]) & set(SERVICES["prometheus"]["networks"])


def test_alerts_go_to_the_alertmanager_of_the_stack() -> None:
    configuration = read_compose((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (manager,) = configuration["alerting"]["alertmanagers"]
    (target,) = manager["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert any(published.endswith(f":{port}") for published in SERVICES[name]["ports"])
