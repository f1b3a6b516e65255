"""`understudy serve` as users run it: a process of its own, asked through its port."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.support.cluster.served_node import Reply
from tests.support.spark.queries import wait_until

from understudy_shared.base.sockets import free_port

_TIMEOUT_S = 30
_SERVE = "import json, sys; from understudy_node.fleet.starting import serve; serve(json.loads(sys.argv[1]))"


class Asked(Protocol):
    """Something that answers over HTTP, in this process or in another."""

    def get(self, target: str) -> Reply: ...

    def post(self, target: str, body: bytes) -> Reply: ...


class ServedProcess:
    """A client of one port, over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)

    def get(self, target: str) -> Reply:
        return self._ask("GET", target, None)

    def post(self, target: str, body: bytes) -> Reply:
        return self._ask("POST", target, body)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, target: str, body: bytes | None) -> Reply:
        headers = {} if body is None else {"content-type": "application/json"}
        self._connection.request(method, target, body, headers)
        response = self._connection.getresponse()
        return Reply(response.status, response.headers.get_content_type(), json.loads(response.read()))


@contextmanager
def served_by_a_process(checkpoint: Path, folder: Path) -> Iterator[ServedProcess]:
    """Serve `checkpoint` until the block ends; it begins when the server is ready."""
    folder.mkdir(parents=True)
    port = free_port()
    settings = {"checkpoint": str(checkpoint), "data_dir": str(folder / "data"), "port": port}
    errors = folder / "errors.txt"
    with errors.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    client = ServedProcess(port)
    try:
        wait_until(lambda: process.poll() is not None or _is_ready(client), what="the server to be ready")
        assert process.poll() is None, errors.read_text()
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait(timeout=_TIMEOUT_S)


def _is_ready(client: ServedProcess) -> bool:
    try:
        return client.get("/readyz").status == 200
    except OSError:
        client.close()
        return False
