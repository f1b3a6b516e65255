"""A Docker Engine for tests, of Debian's packages, with a network namespace of its own.

Its rules for packets stay in the namespace. Base images cannot be had everywhere: `base_image` makes one of Debian's
packages where they are missing.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.support.repository import ROOT
from tests.support.spark.queries import wait_until

KEPT = ROOT / ".cache" / "engine"
"""Images, layers and the base's files: a second run is quick."""
START_LIMIT_S = 120.0
BUILD_LIMIT_S = 3600
CALL_LIMIT_S = 300
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
NAMESPACE = "understudy-engine"
TOOLS = ("dockerd", "docker-compose", "debootstrap", "ip", "nsenter")
FILES = min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
"""Open files that a container may have here."""
BASE_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"


class Engine:
    """A client of an engine. Commands run beside it, so published ports are on their loopback."""

    def __init__(self, host: str, namespace: str | None) -> None:
        self.namespace = namespace
        self.environment = {**os.environ, "DOCKER_HOST": host, "DOCKER_BUILDKIT": "1"}
        self.beside_it = ["nsenter", f"--net=/run/netns/{namespace}"] if namespace else []

    def run(
        self,
        *command: str,
        limit_s: float = CALL_LIMIT_S,
        variables: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> str:
        """What a command says on its standard output. Fails the test when the command fails."""
        environment = self.environment | dict(variables or {})
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=environment,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def docker(self, *arguments: str, limit_s: float = CALL_LIMIT_S) -> str:
        return self.run(client(), *arguments, limit_s=limit_s)

    def beside(self, command: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
        """A program that reaches published ports."""
        with output.open("wb") as file:
            return subprocess.Popen(
                [*self.beside_it, *command], stdout=file, stderr=file, env=self.environment, cwd=ROOT
            )

    def has_image(self, name: str) -> bool:
        with suppress(AssertionError):
            return bool(self.docker("image", "inspect", "--format", "{{.Id}}", name))
        return False


def client() -> str:
    """Debian's client, which knows BuildKit, before another one."""
    return "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"


@contextmanager
def engine(*, namespace: str | None) -> Iterator[Engine]:
    """An engine of our own, in a namespace of the network or beside everything else: then it makes no networks.

    Skips the test where it is not installed or does not start.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"no engine: {', '.join(missing)} of Debian's packages, and root, are needed")
    KEPT.mkdir(parents=True, exist_ok=True)
    socket, log = KEPT / "docker.sock", KEPT / "dockerd.log"
    options = [] if namespace else ["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none"]
    if namespace:
        # One that a run left behind, which was killed.
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "add", namespace], check=True)
        subprocess.run(["ip", "-n", namespace, "link", "set", "lo", "up"], check=True)
    with log.open("ab") as output:
        daemon = subprocess.Popen(
            [
                *(["nsenter", f"--net=/run/netns/{namespace}"] if namespace else []),
                "dockerd",
                *options,
                f"--data-root={KEPT / 'root'}",
                f"--exec-root={KEPT / 'run'}",
                f"--host=unix://{socket}",
                f"--pidfile={KEPT / 'pid'}",
                f"--default-ulimit=nofile={FILES}:{FILES}",
            ],
            stdout=output,
            stderr=output,
        )
    found = Engine(f"unix://{socket}", namespace)
    try:
        wait_until(
            lambda: daemon.poll() is not None or answers(found), what="the engine", limit_s=START_LIMIT_S, every_s=0.5
        )
        if daemon.poll() is not None:
            pytest.skip(f"no engine: dockerd ended, see {log}")
        yield found
    finally:
        daemon.terminate()
        with suppress(subprocess.TimeoutExpired):
            daemon.wait(60)
        if namespace:
            subprocess.run(["ip", "netns", "del", namespace], check=False)


def answers(found: Engine) -> bool:
    with suppress(AssertionError, subprocess.TimeoutExpired):
        return bool(found.docker("version", "--format", "{{.Server.Version}}", limit_s=5))
    return False


def base_image(found: Engine, name: str) -> None:
    """Make a base image of Debian's packages, unless it is there: with Python, pip and this machine's certificates."""
    if found.has_image(name):
        return
    files = KEPT / "rootfs"
    if not (files / "done").exists():
        shutil.rmtree(files, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm", str(files)]
        found.run(*command, limit_s=BUILD_LIMIT_S)
        shutil.copy(CERTIFICATES, files / CERTIFICATES.lstrip("/"))
        (files / "usr/bin/python").symlink_to("python3")
        (files / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
        for leftover in (files / "var/cache/apt/archives").glob("*.deb"):
            leftover.unlink()
        (files / "done").touch()
    variables = [f"--change=ENV {name}={CERTIFICATES}" for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")]
    with subprocess.Popen(["tar", "-C", str(files), "--exclude=./done", "-c", "."], stdout=subprocess.PIPE) as archive:
        subprocess.run(
            [client(), "import", *variables, "-", name],
            stdin=archive.stdout,
            env=found.environment,
            check=True,
            timeout=600,
        )
