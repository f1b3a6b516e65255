"""A server of Google Cloud Storage as a process: fake-gcs-server, in memory. It has generations, and checks no tokens.

`make servers` brings it into the checkout's `.cache`. Where it is not there, tests are skipped.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from obstore.store import GCSStore
from tests.support.object_store.bucket import Bucket, new_name, running
from tests.support.repository import ROOT

from understudy_node.checkpoint.gcs import GCS
from understudy_node.checkpoint.object_store import StoreAccess, StoreFolder
from understudy_shared.base.sockets import free_port

TOKEN = "tests-token-7c31"
PROGRAM = ROOT / ".cache" / "servers" / "fake-gcs-server" / "fake-gcs-server-linux-amd64"

_START_LIMIT_S = 60


class GcsBucket(Bucket):
    """A bucket. Objects are written through the JSON API: the server refuses what the library writes."""

    marks_folders = True

    def __init__(self, server: GcsServer, name: str) -> None:
        self._server = server
        config: Any = access_to(server.endpoint).config
        super().__init__(name, GCSStore(name, config=config, client_options={"allow_http": True}))

    def put(self, key: str, data: bytes) -> None:
        path = f"/upload/storage/v1/b/{self.name}/o?uploadType=media&name={quote(key, safe='')}"
        self._server.send("POST", path, data)

    def copy(self, key: str, to: str) -> None:
        objects = f"b/{self.name}/o"
        path = f"/storage/v1/{objects}/{quote(key, safe='')}/rewriteTo/{objects}/{quote(to, safe='')}"
        self._server.send("POST", path)

    def delete(self, key: str) -> None:
        self._server.send("DELETE", f"/storage/v1/b/{self.name}/o/{quote(key, safe='')}")


class GcsServer:
    scheme = "gs"
    depth = 1
    busy = "SlowDown"
    secret = TOKEN

    def __init__(self, port: int) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"

    def new_bucket(self) -> GcsBucket:
        name = new_name()
        self.send("POST", "/storage/v1/b?project=tests", json.dumps({"name": name}).encode())
        return GcsBucket(self, name)

    def url(self, bucket: str, path: str) -> str:
        return f"gs://{bucket}/{path}"

    def reader(self, bucket: str, path: str, endpoint: str | None = None, *, secret: str | None = None) -> StoreFolder:
        return GCS(self.url(bucket, path), lambda: access_to(endpoint or self.endpoint, secret or TOKEN))

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        return {"GOOGLE_BASE_URL": endpoint or self.endpoint, "GOOGLE_BEARER_TOKEN": TOKEN}

    def send(self, method: str, path: str, body: bytes = b"") -> None:
        """Make a request that the library cannot make, or not so that the server understands it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, {"content-type": "application/octet-stream"})
            response = connection.getresponse()
            assert response.status in (200, 204), response.read()
        finally:
            connection.close()


def access_to(endpoint: str, token: str = TOKEN) -> StoreAccess:
    return StoreAccess({"base_url": endpoint, "bearer_token": token}, allow_http=True, looked_in="the test")


@contextmanager
def gcs_server(folder: Path) -> Iterator[GcsServer]:
    """A server until the end of the block; skips the test where there is none."""
    if not PROGRAM.exists():
        pytest.skip("no fake-gcs-server: `make servers` brings it")
    port = free_port()
    # Without a port in the public host, it also answers what came through a proxy.
    place = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", "127.0.0.1"]
    command = [str(PROGRAM), "-backend", "memory", *place, "-external-url", f"http://127.0.0.1:{port}"]
    with running(command, folder / "gcs.log", port=port, limit_s=_START_LIMIT_S):
        yield GcsServer(port)
