"""The servers of stores that benchmarks start, by the name of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.support.object_store.azurite import azurite
from tests.support.object_store.bucket import StoreServer
from tests.support.object_store.gcs_server import gcs_server
from tests.support.object_store.hdfs_server import Door, hdfs_server
from tests.support.object_store.minio_server import minio_server
from tests.support.object_store.s3_server import s3_server

STORES = ("s3", "minio", "azure", "gcs", "hdfs")

_NAMES = {
    "s3": "S3 (s3proxy)",
    "minio": "S3 (MinIO)",
    "azure": "Azure Storage (Azurite)",
    "gcs": "Google Cloud Storage (fake-gcs-server)",
    "hdfs": "HDFS",
}
_HEAP_MB = 1_024
"""The S3 server keeps its objects in memory."""


def named(kind: str) -> str:
    """Return the store and its server, for tables."""
    return _NAMES[kind]


@contextmanager
def store_server(kind: str, folder: Path) -> Iterator[StoreServer | Door]:
    """Start a server until the end of the block."""
    if kind == "hdfs":
        with hdfs_server(folder) as hdfs:
            yield Door(hdfs)
        return
    starts: dict[str, Callable[[Path], AbstractContextManager[StoreServer]]] = {
        "s3": lambda folder: s3_server(folder, heap_mb=_HEAP_MB),
        "minio": minio_server,
        "azure": azurite,
        "gcs": gcs_server,
    }
    with starts[kind](folder) as store:
        yield store
