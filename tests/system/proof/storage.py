"""Where the checkpoint of a run lives: how Spark writes it, how each node reads it, and when a commit appears there.

In a folder each node has a view of its own (views.py). Elsewhere each node has a proxy of its own before the server, of
HDFS before the NameNode; Spark and the watcher speak with the server itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.support.object_store import abfs, azurite, hdfs_server, s3_server, s3a
from tests.support.object_store.bucket import Bucket, StoreServer
from tests.support.object_store.hdfs_server import Door
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

    def copy(self, folder: Path) -> None:
        """Copy the checkpoint to a folder for Spark's reader, if Spark is given a URL."""


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

    def copy(self, folder: Path) -> None:
        """It is one."""


class StoreStorage:
    """A bucket of a real server, or a folder of a real HDFS. Spark and the watcher ask it without a proxy."""

    def __init__(
        self,
        server: StoreServer | Door,
        bucket: Bucket,
        *,
        location: str,
        conf: Mapping[str, str],
        ports: Mapping[str, int],
    ) -> None:
        """`location` and `conf` are Spark's; `ports` are those of each node's proxy."""
        self.location, self.session_conf = location, conf
        self.server, self.bucket = server, bucket
        self.views: Mapping[str, View] = {}
        self.look_every_s = 0.01
        self._name = location.rpartition("/")[2]
        self._ports = ports

    def location_for(self, node: str) -> str:
        """The URL, as a node's user writes it; of HDFS at the node's own proxy."""
        url = self.server.url(self.bucket.name, self._name)
        return url.replace(f":{self.server.port}/", f":{self._ports[node]}/") if isinstance(self.server, Door) else url

    def variables_for(self, node: str) -> Mapping[str, str]:
        """Keys, and the node's own proxy as the endpoint."""
        if isinstance(self.server, Door):
            return {}
        return self.server.environment(f"http://127.0.0.1:{self._ports[node]}")

    def committed_us(self, version: int) -> int | None:
        """See `Storage.committed_us`."""
        written = self.bucket.written(f"{self._name}/commits/{version - 1}")
        return None if written is None else int(written.timestamp() * 1_000_000)

    def copy(self, folder: Path) -> None:
        """Copy the checkpoint, which is at rest."""
        self.bucket.copy_folder(self._name, folder)


def store_proxy(node: str) -> str:
    """The proxy between a node and the server."""
    return f"{node}-store"


def missing(kind: StorageKind) -> str:
    """Why a run cannot have its checkpoint there; empty when it can."""
    needed: Mapping[StorageKind, Sequence[Callable[[], Path | str]]] = {
        "folder": (),
        "s3": (s3_server.jars, s3a.jars),
        "azure": (azurite.program, abfs.jars),
        "hdfs": (hdfs_server.jars,),
    }
    return next((found for find in needed[kind] if isinstance(found := find(), str)), "")


@contextmanager
def storage(
    kind: StorageKind, folder: Path, name: str, nodes: Sequence[str], proxies: Proxies
) -> Iterator[FolderStorage | StoreStorage]:
    """An empty storage for the checkpoint `name`, until the end of the block; its own files are below `folder`."""
    if kind == "folder":
        views = {node: View(folder / "views" / node / name, folder / name) for node in nodes}
        try:
            yield FolderStorage(folder / name, views)
        finally:
            for view in views.values():
                view.heal()
        return
    (folder / kind).mkdir()
    with _server(kind, folder / kind) as (server, scheme, conf):
        ports = {node: proxies.open(store_proxy(node), server.port) for node in nodes}
        bucket = server.new_bucket()
        place = server.url(bucket.name, name).partition("://")[2]
        yield StoreStorage(server, bucket, location=f"{scheme}://{place}", conf=conf, ports=ports)


@contextmanager
def _server(kind: StorageKind, folder: Path) -> Iterator[tuple[StoreServer | Door, str, Mapping[str, str]]]:
    """A server, and the scheme and the settings with which Spark asks it."""
    if kind == "hdfs":
        with hdfs_server.hdfs_server(folder) as hdfs:
            yield Door(hdfs), "hdfs", {}
    elif kind == "azure":
        with azurite.azurite(folder) as azure:
            yield azure, "abfs", abfs.session_conf(_there(abfs.jars()), azure)
    else:
        with s3_server.s3_server(folder, heap_mb=HEAP_MB) as s3:
            yield s3, "s3a", s3a.session_conf(_there(s3a.jars()), s3)


def _there(found: Path | str) -> Path:
    assert isinstance(found, Path), found
    return found
