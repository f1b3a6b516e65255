"""The stack of docker-compose.yml: valid settings, no privilege or port that it does not need, every scrape."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from tests.support.repository import ROOT
from tests.support.services.deploy_files import (
    HTTP,
    IMAGES,
    OURS,
    SERVICES,
    SETTINGS,
    STACK,
    environment_of,
)

from understudy_node.settings import ClusterNodeSettings
from understudy_router.settings import RouterSettings

each_service = pytest.mark.parametrize("name", SERVICES)


@pytest.mark.parametrize("more", [(), ("-f", "deploy/compose/tls.yml")], ids=["alone", "by TLS"])
def test_docker_compose_of_debian_reads_the_file_as_it_is(more: tuple[str, ...]) -> None:
    assert set(STACK) - {"services", "networks", "volumes"} == {name for name in STACK if name.startswith("x-")}
    if shutil.which("docker-compose") is None:
        pytest.skip("no docker-compose")
    command = ["docker-compose", "-f", "docker-compose.yml", *more, "--profile", "monitoring", "config", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


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
