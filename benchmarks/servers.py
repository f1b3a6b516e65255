"""Servers to measure, each a process of its own, on a core of its own where the machine has two."""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy_shared.base.sockets import free_port

START_LIMIT_S = 600.0
SERVER_CORE, LOAD_CORE = 0, 1
SOURCES = ("shared", "node", "router", "client", "pipeline", "aligned")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    port: int
    pid: int

    def cpu_s(self) -> float:
        """User and system time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Return resident memory now, and how much of it is files (the kernel may drop those pages)."""
        return self._status("VmRSS:")

    def file_bytes(self) -> int:
        return self._status("RssFile:")

    def _status(self, field: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
        return 0


def tree_env(root: Path) -> Mapping[str, str]:
    """Return the environment in which a server runs the sources of another tree."""
    return {"PYTHONPATH": os.pathsep.join(str(root.resolve() / source) for source in SOURCES)}


def pin_load() -> None:
    """Keep this process off the server's core."""
    if len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, {LOAD_CORE})


@contextmanager
def server(
    code: str,
    *arguments: str,
    ready_path: str,
    env: Mapping[str, str] | None = None,
    core: int = SERVER_CORE,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Server]:
    """Run Python `code`, a port its first argument, until the block ends; waits until `ready_path` answers 200, by TLS
    with a context.
    """
    port = free_port()
    command: Sequence[str] = [sys.executable, "-c", code, str(port), *arguments]
    process = subprocess.Popen(command, env={**os.environ, **(env or {})})
    try:
        if len(os.sched_getaffinity(0)) > 1 or os.cpu_count() != 1:
            os.sched_setaffinity(process.pid, {core})
        wait_ready(port, ready_path, process, tls)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        process.wait(30)


def wait_ready(port: int, path: str, process: subprocess.Popen[Any], tls: ssl.SSLContext | None = None) -> None:
    """Return when `path` answers 200; fail when the server ends or the limit passes."""
    limit_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit_s:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            if fetch(port, path, tls)[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.005)
    raise RuntimeError(f"{path} did not answer 200 in {START_LIMIT_S} s")


def fetch(port: int, path: str, tls: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    """Return the answer to one GET request."""
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=tls)
    )
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


CONSTANT_APP = """
import sys, uvicorn
BODY = b"x" * 512
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"512")]
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})
uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", log_config=None, access_log=False, server_header=False,
            date_header=False)
"""

NODE = """
import sys
from understudy_node.fleet.starting import serve
serve({"port": int(sys.argv[1]), "checkpoint": sys.argv[2], "data_dir": sys.argv[3]})
"""

CLUSTER_NODE = """
import sys
from understudy_node.fleet.starting import node
port, checkpoint, data_dir, redis = sys.argv[1:]
node({"port": int(port), "checkpoint": checkpoint, "data_dir": data_dir, "redis": redis, "application_id": "bench"})
"""

ROUTER = """
import sys
from understudy_router.serve import main
main({"port": int(sys.argv[1]), "redis": sys.argv[2], "application_id": "bench"})
"""

HTTPX_ROUTER = """
import sys, httpx, uvicorn
from fastapi import FastAPI, Response
app, node = FastAPI(), httpx.AsyncClient(base_url=f"http://127.0.0.1:{sys.argv[2]}")
@app.get("/{path:path}")
async def forward(path: str):
    answer = await node.get("/" + path)
    return Response(answer.content, answer.status_code, media_type="application/json")
uvicorn.run(app, port=int(sys.argv[1]), log_config=None, access_log=False)
"""
"""The router that most people write first: it forwards every request as it comes."""

REDIS_GET = """
import sys, redis.asyncio, uvicorn
from fastapi import FastAPI, Response
app, values = FastAPI(), redis.asyncio.from_url(sys.argv[2])
@app.get("/{key}")
async def get(key: str):
    return Response(await values.get(key), media_type="application/json")
uvicorn.run(app, port=int(sys.argv[1]), log_config=None, access_log=False)
"""
"""The usual alternative: the state copied into Redis, and an application before it."""

REDIS_MGET = """
import sys, orjson, redis.asyncio, uvicorn
from fastapi import FastAPI, Request, Response
app, values = FastAPI(), redis.asyncio.from_url(sys.argv[2])
@app.get("/ready")
async def ready():
    return Response()
@app.post("/batch")
async def batch(request: Request):
    found = await values.mget(orjson.loads(await request.body())["keys"])
    return Response(b'{"results":[%b]}' % b",".join(found), media_type="application/json")
uvicorn.run(app, port=int(sys.argv[1]), log_config=None, access_log=False)
"""
"""The same for batches: one MGET, and the stored bytes joined."""

CONSTANT_BATCH = """
import sys, uvicorn
BODY = b"x" * int(sys.argv[2])
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
async def app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})
uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", log_config=None, access_log=False, server_header=False,
            date_header=False)
"""
"""An application that reads a body and answers with constant bytes, as many as an answer has: the floor of a batch."""
