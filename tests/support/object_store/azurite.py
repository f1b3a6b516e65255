"""A real server of Azure's blob endpoint as a process: Azurite, in memory. It checks keys and shared access signatures.

`make servers` brings it through npm into the checkout's `.cache`. Where it is not there, tests are skipped.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import obstore
import pytest
from obstore.store import AzureStore
from tests.support.object_store.bucket import Bucket, new_name, running
from tests.support.repository import ROOT

from understudy_node.checkpoint.azure import Azure, azure_access
from understudy_node.checkpoint.object_store import StoreAccess, StoreFolder
from understudy_shared.base.sockets import free_port

ACCOUNT = "understudytests"
KEY = base64.b64encode(b"tests-secret-51aa").decode()
PROGRAM = ROOT / ".cache" / "azurite" / "node_modules" / ".bin" / "azurite-blob"

_START_LIMIT_S = 120
_VERSION = "2019-12-12"
_END = "2099-01-01T00:00:00Z"


class Container(Bucket):
    """A container of a flat account, where Hadoop marks a folder by an empty blob of its name."""

    marks_folders = True

    def mark_folder(self, key: str) -> None:
        obstore.put(self._store, key, b"", attributes={"hdi_isfolder": "true"})


class AzureServer:
    scheme = "abfss"
    depth = 2
    busy = "ServerBusy"
    secret = KEY

    def __init__(self, port: int) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"

    def new_bucket(self) -> Container:
        name = new_name()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(
                "PUT", f"/{ACCOUNT}/{name}?restype=container&{sas('c')}", headers={"content-length": "0"}
            )
            assert connection.getresponse().status == 201
        finally:
            connection.close()
        config: Any = access_to(self.endpoint).config
        return Container(name, AzureStore(name, config=config, client_options={"allow_http": True}))

    def url(self, bucket: str, path: str) -> str:
        return f"abfss://{bucket}@{ACCOUNT}.dfs.core.windows.net/{path}"

    def reader(self, bucket: str, path: str, endpoint: str | None = None, *, secret: str | None = None) -> StoreFolder:
        return Azure(self.url(bucket, path), lambda: access_to(endpoint or self.endpoint, key=secret or KEY))

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"{endpoint or self.endpoint}/{ACCOUNT}",
        }


def sas(permissions: str, *, end: str = _END) -> str:
    """Return a shared access signature of the account: the credentials and what they allow, as part of a URL."""
    fields = {"sp": permissions, "ss": "b", "srt": "sco", "se": end, "spr": "https,http", "sv": _VERSION}
    signed = (ACCOUNT, permissions, "b", "sco", "", end, "", "https,http", _VERSION)
    to_sign = "".join(f"{line}\n" for line in signed)
    signature = hmac.new(base64.b64decode(KEY), to_sign.encode(), hashlib.sha256).digest()
    return urlencode(fields | {"sig": base64.b64encode(signature).decode()})


def access_to(endpoint: str, **credentials: str) -> StoreAccess:
    """Access by `key` or by `sas`, as a connection string names them."""
    names = {"key": "AccountKey", "sas": "SharedAccessSignature"}
    given = {"AccountName": ACCOUNT, "BlobEndpoint": f"{endpoint}/{ACCOUNT}"}
    given |= {names[name]: value for name, value in (credentials or {"key": KEY}).items()}
    text = ";".join(f"{name}={value}" for name, value in given.items())
    return azure_access({"AZURE_STORAGE_CONNECTION_STRING": text}, ACCOUNT, "core.windows.net")


def program() -> Path | str:
    """Its file, or why there is none."""
    return PROGRAM if PROGRAM.exists() else "no Azurite: `make servers` brings it"


@contextmanager
def azurite(folder: Path) -> Iterator[AzureServer]:
    """A server until the end of the block; skips the test where there is none."""
    if isinstance(found := program(), str):
        pytest.skip(found)
    port = free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    command = [str(PROGRAM), *options, "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    accounts = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    with running(command, folder / "azurite.log", port=port, limit_s=_START_LIMIT_S, environ=accounts):
        yield AzureServer(port)
