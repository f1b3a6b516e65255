"""A call to a node imports nothing and looks for no module, the first one neither: a loop answers lookups meanwhile."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import asyncio, sys
from understudy_shared.cluster.node_calls import NodeCallError, NodeCalls
from understudy_shared.base.words import HostInfo

class Searched:
    names = []

    def find_spec(self, name, path=None, target=None):
        self.names.append(name)

async def call():
    calls = NodeCalls("flights")
    sys.meta_path.insert(0, Searched())
    for _ in range(2):
        try:
            await calls.heartbeat(HostInfo("127.0.0.1", 1))
        except NodeCallError:
            print(Searched.names)
    await calls.close()

asyncio.run(call())
"""


def test_a_call_looks_for_no_module() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert printed == "[]\n[]\n"
