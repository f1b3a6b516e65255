"""Where the checkpoint of a run lives: how Spark writes it, how each node reads it, and when a commit appears there.

In a folder each node has a view of its own (views.py). In S3 each node has a proxy of its own before the server; Spark
and the watcher speak with the server itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.support.object_store import s3_server, s3a
from tests.support.object_store.bucket import Bucket
from tests.support.object_store.s3_server import S3Server
from tests.system.proof.processes import Proxies
from tests.system.proof.schedule import StorageKind
from tests.system.proof.views import View

HEAP_MB = 1024
"""The server keeps its objects in memory, and a long run writes many."""


class Storage(Protocol):
    """`location` is what Spark is given, with `session_conf`; `views` are those of nodes, where they have any."""

    location: str
    session_conf: Mapping[str, str]
    views: Mapping[str, View]
    look_every_s: float
    """How often the watcher may look for a commit."""

    def location_for(self, node: str) -> str:
        """What a node is given."""

    def variables_for(self, node: str) -> Mapping[str, str]:
        """What a node finds in its environment, beside what all have."""

    def committed_us(self, version: int) -> int | None:
        """When the commit that made `version` was written, by the storage; None when it is not there."""


class FolderStorage:
    """A folder of this machine."""

    def __init__(self, checkpoint: Path, views: Mapping[str, View]) -> None:
        self.location = str(checkpoint)
        self.session_conf: Mapping[str, str] = {}
        self.views = views
        self.look_every_s = 0.002
        self._commits = checkpoint / "commits"

    def location_for(self, node: str) -> str:
        """The node's view."""
        return str(self.views[node].path)

    def variables_for(self, node: str) -> Mapping[str, str]:  # a protocol's
        """Nothing."""
        return {}

    def committed_us(self, version: int) -> int | None:
        """See `Storage.committed_us`."""
        try:
            return (self._commits / str(version - 1)).stat().st_mtime_ns // 1000
        except FileNotFoundError:
            return None


class S3Storage:
    """A bucket of a real server. It counts time in whole seconds, for nodes and for the watcher alike."""

    def __init__(self, server: S3Server, bucket: Bucket, name: str, endpoints: Mapping[str, str]) -> None:
        found = s3a.jars()
        assert isinstance(found, Path), found
        self.location = f"s3a://{bucket.name}/{name}"
        self.session_conf: Mapping[str, str] = s3a.session_conf(found, server)
        self.views: Mapping[str, View] = {}
        self.look_every_s = 0.01
        self._server = server
        self._bucket = bucket
        self._name = name
        self._endpoints = endpoints

    def location_for(self, node: str) -> str:  # a protocol's
        """The URL, as a node's user writes it."""
        return f"s3://{self._bucket.name}/{self._name}"

    def variables_for(self, node: str) -> Mapping[str, str]:
        """Keys, and the node's own proxy as the endpoint."""
        return self._server.environment(self._endpoints[node])

    def committed_us(self, version: int) -> int | None:
        """See `Storage.committed_us`."""
        written = self._bucket.written(f"{self._name}/commits/{version - 1}")
        return None if written is None else int(written.timestamp() * 1_000_000)


def store_proxy(node: str) -> str:
    """The proxy between a node and the S3 server."""
    return f"{node}-store"


def missing(kind: StorageKind) -> str:
    """Why a run cannot have its checkpoint there; empty when it can."""
    if kind == "folder":
        return ""
    return next((found for found in (s3_server.jars(), s3a.jars()) if isinstance(found, str)), "")


@contextmanager
def storage(
    kind: StorageKind, folder: Path, name: str, nodes: Sequence[str], proxies: Proxies
) -> Iterator[FolderStorage | S3Storage]:
    """An empty storage for the checkpoint `name`, until the end of the block; its own files are below `folder`."""
    if kind == "folder":
        views = {node: View(folder / "views" / node / name, folder / name) for node in nodes}
        try:
            yield FolderStorage(folder / name, views)
        finally:
            for view in views.values():
                view.heal()
        return
    (folder / "s3").mkdir()
    with s3_server.s3_server(folder / "s3", heap_mb=HEAP_MB) as server:
        ports = {node: proxies.open(store_proxy(node), server.port) for node in nodes}
        endpoints = {node: f"http://127.0.0.1:{port}" for node, port in ports.items()}
        yield S3Storage(server, server.new_bucket(), name, endpoints)
