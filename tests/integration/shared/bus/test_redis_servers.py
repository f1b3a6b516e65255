"""Every release of Redis and Valkey that can be had does all that the bus asks of it, ACL users and errors included."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.support.bus.servers import RELEASES, Release, variables_for
from tests.support.repository import ROOT

from understudy.demo.local_redis import LocalRedis
from understudy_shared.base.sockets import private_socket_dir

SUITES = (
    "tests/contract/shared/bus/test_bus.py",
    "tests/contract/shared/bus/test_gossip.py",
    "tests/contract/shared/bus/test_lease.py",
    "tests/integration/client/test_local_redis.py",
    "tests/integration/shared/bus/test_redis_users.py",
)
LIMIT_S = 1200

pytestmark = [pytest.mark.full, pytest.mark.timeout(LIMIT_S + 60)]


def assert_release(release: Release, environment: dict[str, str]) -> None:
    """The tests below would say nothing of a release if another one ran."""
    with private_socket_dir("redis.sock") as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        server = LocalRedis(folder)
        server.start()
        name, version = server.name_and_version
        server.kill()
    if name != release.name or not version.startswith(release.version):
        pytest.skip(f"no {release.name} {release.version}x: what was unpacked is {name} {version}")


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: f"{release.name} {release.version}x")
def test_a_release_does_all_that_the_bus_asks_of_it(release: Release) -> None:
    if not os.access(release.program, os.X_OK):
        pytest.skip(f"no {release.name} {release.version}x: `make servers` found no package that has it")
    environment = variables_for(release.program)
    assert_release(release, environment)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not full", "-p", "no:cacheprovider", *SUITES],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
