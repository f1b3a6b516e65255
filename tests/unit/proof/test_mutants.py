"""The proof can still plant its bugs: a function that was renamed or moved would be patched in vain."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.system.proof.mutants import MUTANTS

PLANT = """
import asyncio, sys
from tests.system.proof.mutants import MUTANTS
for side in ("node", "router"):
    for patch in getattr(MUTANTS[sys.argv[-1]], side):
        patch()

async def speak():
    from understudy_shared.http.service import Service
    service = Service(lambda *_: None)
    service.config.load()
    service.config.http_protocol_class(config=service.config, server_state=service.server_state, app_state={})

asyncio.run(speak())
"""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_finds_what_it_patches_and_still_speaks_http(name: str) -> None:
    command = [sys.executable, "-c", PLANT, "--node-id", "node-1", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
