"""A real S3 server as a process: s3proxy over memory. It checks every signature, and has the usual preconditions.

Its jars come through Maven, once, into the checkout's `.cache`. Where there is no Maven, tests are skipped.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from obstore.store import S3Store
from tests.support.kafka.maven import fetched_jars
from tests.support.object_store.bucket import Bucket, new_name, running

from understudy_node.checkpoint.object_store import StoreAccess, StoreFolder
from understudy_node.checkpoint.s3 import S3
from understudy_shared.base.sockets import free_port

ACCESS_KEY, SECRET_KEY, REGION = "AKIDTESTS", "tests-secret-9f2c", "us-east-1"

_POM = Path(__file__).with_name("server_jars") / "pom.xml"
_LOGBACK = '<configuration><root level="OFF"/></configuration>'
_START_LIMIT_S = 240


class S3Bucket(Bucket):
    def __init__(self, server: S3Server, name: str, store: S3Store) -> None:
        super().__init__(name, store)
        self._server = server

    def mark_folder(self, key: str) -> None:
        self._server.signed_put(f"/{self.name}/{quote(key, safe='/~')}/")


class S3Server:
    scheme = "s3"
    depth = 1
    busy = "SlowDown"
    secret = SECRET_KEY

    def __init__(self, port: int) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"

    def new_bucket(self) -> Bucket:
        name = new_name()
        self.signed_put(f"/{name}")
        store = S3Store(
            name,
            endpoint=self.endpoint,
            region=REGION,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            disable_bulk_delete=True,
            client_options={"allow_http": True},
        )
        return S3Bucket(self, name, store)

    def url(self, bucket: str, path: str) -> str:
        return f"s3://{bucket}/{path}"

    def reader(self, bucket: str, path: str, endpoint: str | None = None, *, secret: str | None = None) -> StoreFolder:
        return S3(self.url(bucket, path), lambda: access_to(endpoint or self.endpoint, secret=secret or SECRET_KEY))

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
        }

    def signed_put(self, path: str) -> None:
        """`PUT` without a body, signed by hand: the library makes no buckets, and no names that end in a slash."""
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
            assert (status := connection.getresponse().status) == 200, status
        finally:
            connection.close()


def access_to(endpoint: str, *, secret: str = SECRET_KEY, token: str | None = None) -> StoreAccess:
    """Access by explicit keys: what a credentials file would say."""
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": secret, "endpoint": endpoint, "region": REGION}
    return StoreAccess(keys | ({"session_token": token} if token else {}), allow_http=True, looked_in="the test")


def jars() -> Path | str:
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
    with running(command, folder / "s3proxy.log", port=port, limit_s=_START_LIMIT_S):
        yield S3Server(port)
