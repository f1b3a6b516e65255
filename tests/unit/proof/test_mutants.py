"""The proof can still plant its bugs: a function that was renamed or moved would be patched in vain."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.system.proof.mutants import MUTANTS

PLANT = """
import asyncio, importlib, json, os, pkgutil, sys, traceback
import understudy_node, understudy_router
from tests.system.proof.mutants import MUTANTS

for package in (understudy_node, understudy_router):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

async def speak():
    from understudy_shared.server.service import Service
    service = Service(lambda *_: None)
    service.config.load()
    service.config.http_protocol_class(config=service.config, server_state=service.server_state, app_state={})

for name, mutant in MUTANTS.items():
    if (child := os.fork()) == 0:
        try:
            for patch in (*mutant.node, *mutant.router):
                patch()
            asyncio.run(speak())
        except BaseException:
            print(json.dumps([name, traceback.format_exc()]), flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        print(json.dumps([name, f"ended with {status}"]), flush=True)
"""
"""Each is planted in a process of its own, a copy of one that has all modules: a start of Python costs two seconds."""


@pytest.fixture(scope="module")
def failed() -> dict[str, str]:
    """Why some could not be planted."""
    command = [sys.executable, "-c", PLANT, "--node-id", "node-1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_finds_what_it_patches_and_still_speaks_http(name: str, failed: dict[str, str]) -> None:
    assert name not in failed, failed[name]
