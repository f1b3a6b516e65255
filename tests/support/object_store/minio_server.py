"""A server of MinIO as a process: an S3 of another maker, over a folder, with the same keys as the first.

`make minio` compiles it into the checkout's `.cache`, by Go's modules. Where it is not there, tests are skipped.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.object_store.bucket import running
from tests.support.object_store.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.support.repository import ROOT
from tests.support.spark.queries import wait_until

from understudy_shared.base.sockets import free_port

PROGRAM = ROOT / ".cache" / "minio" / "minio"

_START_LIMIT_S = 60


@contextmanager
def minio_server(folder: Path) -> Iterator[S3Server]:
    """A server until the end of the block; skips the test where there is none."""
    if not PROGRAM.exists():
        pytest.skip("no MinIO: `make minio` compiles it")
    port, keys = free_port(), {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}
    places = ["--address", f"127.0.0.1:{port}", "--console-address", f"127.0.0.1:{free_port()}"]
    environ = {**os.environ, **keys, "MINIO_BROWSER": "off", "MINIO_UPDATE": "off", "HOME": str(folder)}
    command = [str(PROGRAM), "server", "--quiet", *places, str(folder / "data")]
    with running(command, folder / "minio.log", port=port, limit_s=_START_LIMIT_S, environ=environ):
        wait_until(lambda: _is_ready(port), what="MinIO", limit_s=_START_LIMIT_S)
        yield S3Server(port)


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_LIMIT_S)
    try:
        connection.request("GET", "/minio/health/ready")
        return connection.getresponse().status == 200
    finally:
        connection.close()
