"""Whether images can be built for every architecture: from wheels, as uv.lock names them (pure)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

MACHINES = ("x86_64", "aarch64")
IMAGE_PYTHON = 311
"""The Python of the images (deploy/Dockerfile)."""


def wheel_problems(lock: str, names: Iterable[str]) -> Iterator[str]:
    """Yield each package that would have to be compiled for a machine, where it has wheels for another."""
    packages: dict[str, list[Any]] = {}
    for each in tomllib.loads(lock)["package"]:
        packages.setdefault(each["name"], []).append(each)
    for name in sorted(names):
        wheels = [
            wheel["url"].rpartition("/")[2] for each in packages.get(name, ()) for wheel in each.get("wheels", ())
        ]
        for machine in MACHINES:
            if wheels and not any(_fits(wheel, machine) for wheel in wheels):
                yield f"{name} has no wheel for {machine}"


def _fits(wheel: str, machine: str) -> bool:
    """Whether a wheel can be installed in an image of that machine."""
    python, abi, platform = wheel.removesuffix(".whl").split("-")[-3:]
    number = re.search(r"cp3(\d+)", python)
    is_of_python = (
        python.startswith("py")
        or f"cp{IMAGE_PYTHON}" in python
        or ("abi3" in abi and number is not None and int(number[1]) <= IMAGE_PYTHON - 300)
    )
    return is_of_python and (platform == "any" or ("manylinux" in platform and machine in platform))
