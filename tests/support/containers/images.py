"""The images of the stack: ours by `deploy/build.sh`, and stand-ins for those of others that cannot be had."""

from __future__ import annotations

from tests.support.containers.engine import BUILD_LIMIT_S, Engine, base_image
from tests.support.measurements import measured
from tests.support.repository import ROOT
from tests.support.services.deploy_files import DOCKER, IMAGES, SERVICES

OTHERS = {name: SERVICES[name]["image"] for name in ("valkey", "prometheus", "alertmanager")}


def build(found: Engine) -> None:
    """Make every image that the stack needs."""
    base_image(found, str(DOCKER.arguments["PYTHON_IMAGE"]))
    folder = ROOT / "tests" / "support" / "containers"
    for stage, name in OTHERS.items():
        if not found.has_image(name):
            file = str(folder / "others.Dockerfile")
            options = ("--network=host", "--target", stage, "--file", file, "--tag", name, str(folder))
            found.docker("build", *options, limit_s=BUILD_LIMIT_S)
    found.run(
        "deploy/build.sh",
        limit_s=BUILD_LIMIT_S,
        variables={"DOCKER": "/usr/bin/docker", "BUILD_ARGS": "--network=host"},
    )
    for image, name in {image: SERVICES[name]["image"] for name, image in IMAGES.items()}.items():
        size = int(found.docker("image", "inspect", "--format", "{{.Size}}", name))
        measured(f"image of {image}: {size / 1e6:.0f} MB")
