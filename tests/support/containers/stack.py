"""The stack of the compose file in an engine, and what it answers at its published ports."""

from __future__ import annotations

import ctypes
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from typing import Any

from tests.support.containers.engine import CALL_LIMIT_S, FILES, KEPT, Engine
from tests.support.repository import ROOT
from tests.support.services.deploy_files import IMAGES, SERVICES
from tests.support.spark.queries import wait_until

NODES = [name for name, image in IMAGES.items() if image == "node"]
ROUTERS = [name for name, image in IMAGES.items() if image == "router"]
PORTS = {name: int(SERVICES[name]["ports"][0].split(":")[1]) for name in ROUTERS}
"""On loopback, beside the engine."""

ASK_LIMIT_S = 10.0
START_LIMIT_S = 1800
FIRST_KEY = "/v1/stores/aircraft/keys/N14228"
"""The first aircraft that flew."""
PATIENT = {"interval": "10s", "timeout": "60s", "retries": 60}
"""Health checks here: each starts a Python, which takes seconds where the machine has other work."""


until = partial(wait_until, limit_s=600.0, every_s=1.0)
"""Wait for a condition of the stack."""


def for_tests(file: Mapping[str, Any]) -> dict[str, Any]:
    """A compose file as an older docker-compose reads it, with paths that are whole and health checks that wait."""
    stack: dict[str, Any] = json.loads(json.dumps(file).replace('"./deploy', f'"{ROOT}/deploy'))
    stack.pop("name", None)
    for name, service in stack["services"].items():
        service["container_name"] = f"understudy-{name}"
        if "test" in service["healthcheck"]:
            service["healthcheck"] |= PATIENT
        if "ulimits" in service:
            service["ulimits"] = {"nofile": {"soft": FILES, "hard": FILES}}
    return stack


class Stack:
    """The stack of compose files, by images that the engine has; at most one runs on an engine."""

    trust: ssl.SSLContext | None = None
    """By which it is asked, where it speaks TLS."""

    def __init__(self, found: Engine, *files: Mapping[str, Any]) -> None:
        self._engine = found
        self._options = ["docker-compose", "--project-name", "understudy", "--profile", "monitoring"]
        for number, file in enumerate(files):
            path = KEPT / f"docker-compose-{number}.json"
            path.write_text(json.dumps(for_tests(file)))
            self._options += ["--file", str(path)]
        self._beside = ThreadPoolExecutor(1, initializer=enter, initargs=(found.namespace,))

    def command(self, *arguments: str, limit_s: float = CALL_LIMIT_S) -> str:
        return self._engine.run(*self._options, *arguments, limit_s=limit_s)

    def on(self, service: str, *arguments: str) -> str:
        """A command of the client that ends with the service's container."""
        return self._engine.docker(*arguments, f"understudy-{service}")

    def inside(self, service: str, *command: str) -> str:
        """What a command says in the service's container, both outputs; empty when it says nothing."""
        return self._engine.docker("exec", f"understudy-{service}", "sh", "-c", f"{' '.join(command)} 2>&1 || true")

    def ask(self, url: str) -> str:
        """The body of an answer of any status, by way of a published port; empty without one."""
        return self._beside.submit(body_of, url, self.trust).result()

    def finds(self, url: str) -> bool:
        """Whether a router finds the first aircraft."""
        said = self.ask(url + FIRST_KEY)
        return bool(said) and json.loads(said).get("found") is True


NETWORK = "understudy_cluster"
"""The network of nodes, as the engine knows it."""


def enter(namespace: str | None) -> None:
    """Let this thread make its sockets in a namespace of the network."""
    if namespace is None:
        return
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    finally:
        os.close(handle)


def body_of(url: str, trust: ssl.SSLContext | None = None) -> str:
    """The body of an answer of any status; empty without one."""
    try:
        with urllib.request.urlopen(url, timeout=ASK_LIMIT_S, context=trust) as reply:
            return str(reply.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except (OSError, HTTPException):
        return ""
