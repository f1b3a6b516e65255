"""Ways to ask a node over HTTP: the real server in a process of its own, or its application within the test's loop."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.support.spark_queries import wait_until

from understudy_node.app import create_app
from understudy_node.checkpoint.files import CheckpointFiles, open_checkpoint_files
from understudy_node.node import Node
from understudy_node.serving.asgi import LookupsFirst
from understudy_node.settings import NodeSettings
from understudy_shared.clock import SystemClock
from understudy_shared.words import HostInfo

REQUEST_TIMEOUT_S = 60
_SERVE = "import json, sys; from understudy_node.serve import main; main(json.loads(sys.argv[1]))"


def new_node(checkpoint: Path, data_dir: Path, *, files: CheckpointFiles | None = None) -> Node:
    """A node that is not started yet, and looks often."""
    settings = NodeSettings(checkpoint=str(checkpoint), data_dir=data_dir, lag_refresh_ms=50)
    clock, host = SystemClock(), HostInfo("127.0.0.1", 0)
    return Node(settings, files or open_checkpoint_files(str(checkpoint)), host=host, clock=clock)


@asynccontextmanager
async def asked_within(node: Node) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the node's own application, without a socket between them; the node runs as long as the block."""
    app = create_app(node)
    async with _lifespan(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node", timeout=REQUEST_TIMEOUT_S) as client:
            yield client


@asynccontextmanager
async def asked_by_socket(checkpoint: Path, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a served checkpoint: `understudy serve` as a process of its own, ended by what Ctrl-C sends."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    settings = {"checkpoint": str(checkpoint), "data_dir": str(folder / "data"), "port": port}
    with (folder / "errors.txt").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    try:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=REQUEST_TIMEOUT_S) as client:
            await asyncio.to_thread(wait_until, lambda: _answers(process, url), what="the server to be ready")
            assert process.poll() is None, (folder / "errors.txt").read_text()
            yield client
    finally:
        process.terminate()
        process.wait(timeout=30)


async def until_ready(client: httpx.AsyncClient) -> None:
    """Return when the node says that every task can be answered from."""
    async with asyncio.timeout(REQUEST_TIMEOUT_S):
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _lifespan(app: LookupsFirst) -> AsyncIterator[None]:
    """Tell an ASGI application to start and to stop, as a server does."""
    told: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    said: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        group.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, told.get, said.put))
        await told.put({"type": "lifespan.startup"})
        assert (await said.get())["type"] == "lifespan.startup.complete"
        try:
            yield
        finally:
            await told.put({"type": "lifespan.shutdown"})
            assert (await said.get())["type"] == "lifespan.shutdown.complete"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    if process.poll() is not None:
        return True
    try:
        return httpx.get(f"{url}/readyz", timeout=REQUEST_TIMEOUT_S).status_code == 200
    except httpx.TransportError:
        return False
