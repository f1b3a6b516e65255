"""The image and the stack are linted by tools that know the formats; the image is checked for what only we know of it.

Nothing is built or started here.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.repository import ROOT
from tests.support.services.deploy_files import COMPOSE, DOCKER, DOCKERFILE, IMAGES, listens_on, variables

TOOLS = Path(sys.executable).parent
each_image = pytest.mark.parametrize("image", sorted(set(IMAGES.values())))


def run_tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, timeout=60, check=False)


# The linters, and that each of them does refuse


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    linted = run_tool("hadolint", "--no-color", str(DOCKERFILE))
    assert (linted.returncode, linted.stdout) == (0, ""), linted.stdout + linted.stderr


def test_the_linter_does_refuse_a_dockerfile_that_ends_as_root(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text(DOCKERFILE.read_text().replace("USER 10001:10001", "USER root"))
    assert "DL3002" in run_tool("hadolint", "--no-color", str(bad)).stdout


def test_the_compose_file_keeps_the_compose_specification() -> None:
    checked = run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE))
    assert checked.returncode == 0, checked.stdout


def test_the_specification_does_refuse_a_misspelled_key(tmp_path: Path) -> None:
    bad = tmp_path / "docker-compose.yml"
    bad.write_text(COMPOSE.read_text().replace("read_only:", "readonly:"))
    checked = run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "-o", "json", str(bad))
    assert checked.returncode == 1
    assert "readonly" in json.dumps(json.loads(checked.stdout))


# The image


def test_every_stage_comes_from_a_base_with_a_version_or_from_another_stage() -> None:
    known = {"${SERVICE}"}
    for stage in DOCKER.stages:
        base = re.sub(r"\$\{(\w+)\}", lambda found: DOCKER.arguments[found[1]] or found[0], stage.base)
        assert base in known or re.fullmatch(r"[\w./-]+:\d[\w.-]*\d[\w.-]*(@sha256:\w{64})?", base), base
        known.add(stage.name)


@each_image
def test_every_service_has_a_stage_that_does_not_run_as_root(image: str) -> None:
    stages = DOCKER.line_of(image)
    user = next(user for stage in stages if (user := stage.last("USER")) is not None)
    assert int(user.split(":")[0]) >= 10_000


@each_image
def test_the_image_of_a_service_starts_it_and_knows_its_health(image: str) -> None:
    stage = DOCKER.stage(image)
    command, health = stage.last("CMD"), stage.last("HEALTHCHECK")
    assert command is not None
    assert health is not None
    module = ["python", "-m", "understudy_pipeline.demo"]
    assert ast.literal_eval(command) == (module if image == "pipeline" else ["understudy", image])
    # Proof that the check is a program: it compiles, and the shell has no part in it.
    test = ast.literal_eval(health.partition("CMD ")[2])
    assert test[:2] == ["python", "-c"]
    compile(test[2], "HEALTHCHECK", "exec")


@pytest.mark.parametrize("image", ["node", "router"])
def test_port_and_health_of_an_image_are_those_that_the_service_listens_on(image: str) -> None:
    stage, port = DOCKER.stage(image), str(listens_on(image))
    assert stage.all("EXPOSE") == [port]
    assert variables([stage])["UNDERSTUDY_PORT"] == port
    assert f"http://127.0.0.1:{port}/livez" in str(stage.last("HEALTHCHECK"))


@each_image
def test_the_extras_that_an_image_installs_are_extras_of_the_project(image: str) -> None:
    (install,) = (text for text in DOCKER.stage("build").all("RUN") if "uv export" in text)
    branch = re.search(rf"\b{image}\b[^)]*\) extras=\"\$\{{EXTRAS:-([\w,]+)\}}\" ;;", install)
    assert branch is not None
    extras = [image, *branch[1].split(",")]
    assert set(extras) <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert 'set -- --extra "${SERVICE}"' in install
    assert "--require-hashes" in install
    assert "uv export --locked" in install


def test_the_image_is_built_by_the_uv_that_made_the_lock() -> None:
    setup = (ROOT / "tools" / "setup_environment.py").read_text()
    pinned = re.search(r'UV_VERSION = "(.+)"', setup)
    assert pinned is not None
    assert f"UV_VERSION={pinned[1]}" in DOCKER.stage("build").all("ARG")


def test_nothing_is_fetched_by_the_dockerfile_itself_and_no_secret_is_in_it() -> None:
    text = DOCKERFILE.read_text()
    assert not re.search(r"(?im)^\s*ADD\s|https?://(?!127\.0\.0\.1)|\bcurl\b|\bwget\b", text)
    assert not re.search(r"(?i)password|secret|token", text)
    for run in (run for stage in DOCKER.stages for run in stage.all("RUN")):
        assert "apt-get" not in run or "rm -rf /var/lib/apt/lists" in run


def test_the_build_is_given_what_it_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    sources = [source for text in DOCKER.stage("build").all("COPY") for source in text.split()[:-1]]
    copied = {source.rstrip("/") for source in sources if source != "${SERVICE}/"} | set(IMAGES.values())
    assert copied == allowed
    assert all((ROOT / path).exists() for path in allowed)
