"""Debian's Prometheus and promtool, where they are: on the path, or unpacked by `.ci/run`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from tests.support.repository import ROOT
from tests.support.spark.queries import wait_until

from understudy_shared.base.sockets import free_port

UNPACKED = ROOT / ".cache" / "prometheus" / "usr" / "bin"
LIMIT_S = 60.0
_TIMEOUT_S = 120


def program(name: str) -> str:
    """The path of a program; skips the test where it is not there."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        pytest.skip(f"no {name}: Debian's package prometheus has it")
    return found


def promtool(*arguments: str, stdin: str = "") -> tuple[int, str]:
    """The exit code of promtool and what it said."""
    done = subprocess.run(
        [program("promtool"), *arguments], input=stdin, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


class Prometheus:
    """A server that scrapes and evaluates; `port` is its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now."""
        return list(self._get(f"query?query={quote(expression)}")["result"])

    def value(self, expression: str) -> float | None:
        """The one series of an expression now; None while there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self._get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def _get(self, call: str) -> dict[str, Any]:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{call}", timeout=_TIMEOUT_S) as reply:
                document = json.load(reply)
        except HTTPError as error:  # it is an answer, too: from Python 3.14 on an open one is complained of
            error.close()
            raise
        assert document["status"] == "success", document
        found: dict[str, Any] = document["data"]
        return found


@contextmanager
def prometheus(
    folder: Path, targets: Mapping[str, Sequence[int]], rules: str, *, every_ms: int
) -> Iterator[Prometheus]:
    """Scrape these ports of loopback, by application, and evaluate `rules` as often."""
    binary = program("prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.yml").write_text(rules)
    jobs = [
        {
            "job_name": application,
            "static_configs": [
                {"targets": [f"127.0.0.1:{port}" for port in ports], "labels": {"application": application}}
            ],
        }
        for application, ports in targets.items()
    ]
    every = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), f"{every_ms}ms")
    configuration = {"global": every, "rule_files": ["rules.yml"], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(configuration))  # JSON is YAML
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    server = Prometheus(port)
    try:
        wait_until(lambda: _answers(server) or process.poll() is not None, what="Prometheus", limit_s=LIMIT_S)
        assert process.poll() is None, (folder / "log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait(_TIMEOUT_S)


def _answers(server: Prometheus) -> bool:
    try:
        server.query("up")
    except OSError:
        return False
    return True
