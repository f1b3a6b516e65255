"""The image and the stack are linted by tools that know the formats; the image is checked for what only we know of it.

Nothing is built or started here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.services.deploy_files import COMPOSE, DOCKER, DOCKERFILE, IMAGES

TOOLS = Path(sys.executable).parent


each_image = pytest.mark.parametrize("image", sorted(set(IMAGES.values())))


def run_tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    linted = run_tool("hadolint", "--no-color", str(DOCKERFILE))
    assert (linted.returncode, linted.stdout) == (0, ""), linted.stdout + linted.stderr


def test_the_compose_file_keeps_the_compose_specification() -> None:
    checked = run_tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE))
    assert checked.returncode == 0, checked.stdout


@each_image
def test_every_service_has_a_stage_that_does_not_run_as_root(image: str) -> None:
    stages = DOCKER.line_of(image)
    user = next(user for stage in stages if (user := stage.last("USER")) is not None)
    assert int(user.split(":")[0]) >= 10_000
