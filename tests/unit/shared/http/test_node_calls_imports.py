"""The first call to a node costs no more than the next: nothing is imported while a loop answers lookups."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import asyncio, sys
from understudy_shared.http.node_calls import NodeCallError, NodeCalls
from understudy_shared.words import HostInfo

async def call():
    calls, before = NodeCalls("flights"), set(sys.modules)
    try:
        await calls.heartbeat(HostInfo("127.0.0.1", 1))
    except NodeCallError:
        print(sorted(set(sys.modules) - before))
    await calls.close()

asyncio.run(call())
"""


def test_the_first_call_imports_nothing() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert printed == "[]\n"
