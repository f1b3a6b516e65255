"""A real engine starts the compose file with its override for TLS, by certificates that a container of it makes.

Skipped where no engine can start. It wants the machine for itself: run it with nothing beside it.
"""

from __future__ import annotations

import json
import ssl
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.containers.engine import BUILD_LIMIT_S, KEPT, NAMESPACE, Engine, engine
from tests.support.containers.stack import FIRST_KEY, NODES, PORTS, ROUTERS, START_LIMIT_S, Stack, until
from tests.support.measurements import measured
from tests.support.repository import ROOT
from tests.support.services.deploy_files import STACK, read_compose

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * BUILD_LIMIT_S)]

OVERRIDE = read_compose((ROOT / "deploy" / "compose" / "tls.yml").read_text())
URLS = [f"https://127.0.0.1:{port}" for port in PORTS.values()]

ASK_A_NODE = """
import http.client, json, ssl, sys

node, *shown = sys.argv[1:]
folder = "/run/understudy/"
def ask(name):
    if name == "plain":
        connection = http.client.HTTPConnection(node, 7101, timeout=10)
    else:
        trust = ssl.create_default_context(cafile=folder + "ca.crt")
        if name != "none":
            trust.load_cert_chain(folder + name + ".crt", folder + name + ".key")
        connection = http.client.HTTPSConnection(node, 7101, timeout=10, context=trust)
    connection.request("GET", "/internal/v1/lags")
    return connection.getresponse().status
print(json.dumps({name: ask(name) for name in shown}))
"""
"""Asks a node as routers do, in the container of one: the status by each of the certificates that are named."""


@pytest.fixture(scope="module")
def running(built: None) -> Iterator[tuple[Engine, Stack]]:
    """The stack by TLS, from its start to its first lookup."""
    with engine(namespace=NAMESPACE) as found:
        stack = Stack(found, STACK, OVERRIDE)
        began_s = time.monotonic()
        try:
            stack.command("up", "-d", "--no-build", "pipeline", *ROUTERS, limit_s=START_LIMIT_S)
            stack.trust = ssl.create_default_context(cadata=stack.inside("router-1", "cat /run/understudy/ca.crt"))
            until(lambda: stack.finds(URLS[0]), what="the first lookup")
            measured(f"compose by TLS: first lookup at {time.monotonic() - began_s:.0f} s")
            yield found, stack
        finally:
            (KEPT / "compose-tls.log").write_text(stack.command("logs", "--no-color", "--tail", "3000"))
            stack.command("down", "--volumes", "--timeout", "5")


@pytest.fixture
def stack(running: tuple[Engine, Stack]) -> Stack:
    return running[1]


def is_healthy(stack: Stack, name: str) -> bool:
    """Whether a container's own check says so."""
    return stack.on(name, "inspect", "--format", "{{.State.Health.Status}}").strip() == "healthy"


def test_every_container_is_healthy_by_tls_and_the_one_that_made_certificates_has_ended(stack: Stack) -> None:
    for name in (*NODES, *ROUTERS):
        until(partial(is_healthy, stack, name), what=f"the health of {name}")
    state = stack.on("certificates", "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}")
    assert state.split() == ["exited", "0"]


@pytest.mark.parametrize("url", URLS)
def test_each_router_finds_a_key_by_https_and_says_in_plain_that_it_speaks_tls(url: str, stack: Stack) -> None:
    until(lambda: stack.finds(url), what=f"a lookup at {url}")
    assert "this port speaks TLS" in stack.ask(url.replace("https", "http") + FIRST_KEY)


def test_the_command_of_the_documentation_shows_the_nodes(running: tuple[Engine, Stack], tmp_path: Path) -> None:
    found, stack = running
    authority = tmp_path / "ca.crt"
    authority.write_text(stack.inside("router-1", "cat /run/understudy/ca.crt"))
    command = [
        *found.beside_it,
        sys.executable,
        "-m",
        "understudy",
        "lag",
        "--url",
        URLS[0],
        "--ca-file",
        str(authority),
    ]
    said = found.run(*command)
    assert [node for node in NODES if node not in said] == []


@pytest.mark.parametrize("node", NODES)
def test_a_node_answers_a_router_that_shows_its_certificate_and_nobody_else(
    node: str, running: tuple[Engine, Stack]
) -> None:
    found, _ = running
    asked = ("plain", "none", "readers", "router")
    said = found.docker("exec", "understudy-router-1", "python", "-c", ASK_A_NODE, node, *asked)
    assert json.loads(said) == {"plain": 400, "none": 403, "readers": 403, "router": 200}
