"""A real S3 server as a process: s3proxy over memory. It checks every signature, and has the usual preconditions.

Its jars come through Maven, once, into the checkout's `.cache`. Where there is no Maven, tests are skipped.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import itertools
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store
from tests.support.kafka.maven import fetched_jars
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.store_access import StoreAccess
from understudy_shared.base.ports import free_port

ACCESS_KEY, SECRET_KEY, REGION = "AKIDTESTS", "tests-secret-9f2c", "us-east-1"
SECRETS = (SECRET_KEY,)

_POM = Path(__file__).with_name("server_jars") / "pom.xml"
_LOGBACK = '<configuration><root level="OFF"/></configuration>'
_START_LIMIT_S = 240
_buckets = itertools.count()


class Bucket:
    """An empty bucket of a server, and the door that tests write through."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.name = name
        self._store: Any = S3Store(
            name,
            endpoint=server.endpoint,
            region=REGION,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            disable_bulk_delete=True,
            client_options={"allow_http": True},
        )

    def put(self, key: str, data: bytes) -> None:
        obstore.put(self._store, key, data)

    def put_folder(self, folder: Path, prefix: str) -> None:
        """Copy a checkpoint as it lies on disk, oldest file first, commits last."""
        paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
        paths.sort(key=lambda path: (path.parent.name == "commits", path.stat().st_mtime_ns))
        for path in paths:
            self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def delete(self, key: str) -> None:
        obstore.delete(self._store, key)

    def written(self, key: str) -> datetime | None:
        """When an object was written, in whole seconds; None when it is not there."""
        try:
            at: datetime = obstore.head(self._store, key)["last_modified"]
        except FileNotFoundError:
            return None
        return at

    def keys(self, prefix: str) -> list[str]:
        return sorted(each["path"] for batch in obstore.list(self._store, prefix) for each in batch)


class S3Server:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"

    def new_bucket(self) -> Bucket:
        name = f"bucket-{next(_buckets)}"
        status = self._signed_put(f"/{name}")
        assert status == 200, status
        return Bucket(self, name)

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """What a process needs to read it, at `endpoint` if that is another."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
        }

    def _signed_put(self, path: str) -> int:
        """`PUT` without a body, signed by hand: the library cannot make buckets."""
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        nothing, scope = hashlib.sha256(b"").hexdigest(), f"{now[:8]}/{REGION}/s3/aws4_request"
        headers = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": nothing, "x-amz-date": now}
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        request = f"PUT\n{path}\n\n{lines}\n{';'.join(headers)}\n{nothing}"
        to_sign = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{SECRET_KEY}".encode()
        for part in (*scope.split("/"), to_sign):
            key = hmac.new(key, part.encode(), "sha256").digest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={';'.join(sorted(headers))}, "
            f"Signature={key.hex()}"
        )
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("PUT", path, headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()


def access_to(endpoint: str, *, secret: str = SECRET_KEY, token: str | None = None) -> StoreAccess:
    """Access by explicit keys: what a credentials file would say."""
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": secret, "endpoint": endpoint, "region": REGION}
    return StoreAccess(keys | ({"session_token": token} if token else {}), allow_http=True, looked_in="the test")


def jars() -> Path | str:
    """Their folder, or why there is none."""
    return fetched_jars(_POM, "s3-server-jars")


@contextmanager
def s3_server(folder: Path, *, heap_mb: int = 256) -> Iterator[S3Server]:
    """A server until the end of the block; skips the test where there is no Maven."""
    found = jars()
    if isinstance(found, str):
        pytest.skip(found)
    java = shutil.which("java")
    if java is None:
        pytest.skip("no Java")
    port = free_port()
    settings = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.authorization": "aws-v4",
        "s3proxy.identity": ACCESS_KEY,
        "s3proxy.credential": SECRET_KEY,
        "s3proxy.ignore-unknown-headers": "true",  # it knows no session tokens; they are part of what is signed
        "jclouds.provider": "transient",  # over folders, x and x/ would be one object, and Hadoop marks folders so
        "jclouds.identity": "none",
        "jclouds.credential": "none",
    }
    (folder / "s3proxy.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (folder / "logback.xml").write_text(_LOGBACK)
    options = [
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dlogback.configurationFile={folder}/logback.xml",
    ]
    command = [java, *options, "-cp", f"{found}/*", "org.gaul.s3proxy.Main", "--properties", f"{folder}/s3proxy.conf"]
    with (folder / "s3proxy.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: _listens(port) or process.poll() is not None, what="the S3 server", limit_s=_START_LIMIT_S)
        assert process.poll() is None, (folder / "s3proxy.log").read_text()
        yield S3Server(port)
    finally:
        process.kill()
        process.wait(timeout=30)


def _listens(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0
