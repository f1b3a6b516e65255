"""Nodes and routers of two releases as processes: this tree, and an earlier commit of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.cluster.in_process import APPLICATION, HEARTBEAT_MS
from tests.support.cluster.served_node import Served
from tests.support.repository import ROOT
from tests.support.services.command_line import environment
from tests.support.spark.queries import wait_until

SOURCES = ("client", "node", "pipeline", "router", "shared")
SHUTDOWN_DELAY_MS = 2 * HEARTBEAT_MS
AN_HOUR_MS = 3_600_000
LIMIT_S = 60.0


def tree_of(commit: str, folder: Path) -> Path:
    """The sources of a commit, in a folder; skips the test where the history has no such commit."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("no git history: there is no git")
    command = [git, "-C", str(ROOT), "archive", commit, "pyproject.toml", *SOURCES]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip(f"no git history: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    _write_entry_points(folder)
    return folder


def _write_entry_points(tree: Path) -> None:
    """Let the tree's command find its own services: without these it takes the entry points of what is installed."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    info = tree / SOURCES[0] / f"{project['name'].replace('-', '_')}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    groups = (
        "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in points.items())])
        for group, points in project.get("entry-points", {}).items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups) + "\n")


class Member(Served):
    """A node or a router, which stops and comes back as one of another release, at its port and with its files."""

    def __init__(self, name: str, port: int, arguments: list[str], log: Path) -> None:
        super().__init__(port)
        self.name = name
        self._arguments = arguments
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, tree: Path) -> None:
        """Run as this release, and wait until it is ready."""
        path = ":".join(str(tree / source) for source in SOURCES)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "understudy", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=tree,
                env=environment({"PYTHONPATH": path}),
            )
        wait_until(lambda: self._is_up() or self._has_ended(), what=f"{self.name} to answer", limit_s=LIMIT_S)
        assert not self._has_ended(), self._log.read_text()

    def stop(self) -> None:
        """In good order."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(LIMIT_S) == 0, self._log.read_text()

    def kill(self) -> None:
        """However it is."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _is_up(self) -> bool:
        try:
            self.get("/livez")
        except OSError:
            return False
        return True


@contextmanager
def members(
    folder: Path, redis: str, checkpoint: Path, ports: list[int]
) -> Iterator[tuple[list[Member], list[Member]]]:
    """Two nodes and two routers, not started yet; none of them outlives the block."""
    common = ["--redis", redis, "--application-id", APPLICATION, "--shutdown-delay-ms", str(SHUTDOWN_DELAY_MS)]
    nodes: list[Member] = []
    routers: list[Member] = []
    for number, port in enumerate(ports):
        name = f"node-{number}" if number < 2 else f"router-{number - 2}"
        own = [*common, "--port", str(port), "--data-dir", str(folder / name)]
        if number < 2:
            times = ["--lag-refresh-ms", str(HEARTBEAT_MS), "--rebalance-delay-ms", str(AN_HOUR_MS)]
            own = ["node", str(checkpoint), "--node-id", name, *times, *own]
        else:
            own = ["router", *own]
        (nodes if number < 2 else routers).append(Member(name, port, own, folder / f"{name}.log"))
    try:
        yield nodes, routers
    finally:
        for each in (*nodes, *routers):
            each.kill()
