"""The servers of object stores that benchmarks start, by the name of the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.support.object_store.azurite import azurite
from tests.support.object_store.bucket import StoreServer
from tests.support.object_store.gcs_server import gcs_server
from tests.support.object_store.hdfs_server import Door, hdfs_server
from tests.support.object_store.minio_server import minio_server
from tests.support.object_store.s3_server import s3_server

STORES = ("s3", "minio", "azure", "gcs")
HDFS = ("hdfs", "webhdfs")

_NAMES = {
    "s3": "S3 (s3proxy)",
    "minio": "S3 (MinIO)",
    "azure": "Azure Storage (Azurite)",
    "gcs": "Google Cloud Storage (fake-gcs-server)",
    "hdfs": "HDFS",
    "webhdfs": "HDFS by HTTP",
}
_HEAP_MB = 1_024
"""The S3 server keeps its objects in memory."""


def named(kind: str) -> str:
    """Return the store and its server, for tables."""
    return _NAMES[kind]


def store_server(kind: str, folder: Path) -> AbstractContextManager[StoreServer]:
    """Start a server of an object store until the end of the block."""
    if kind == "s3":
        return s3_server(folder, heap_mb=_HEAP_MB)
    if kind == "azure":
        return azurite(folder)
    return gcs_server(folder) if kind == "gcs" else minio_server(folder)


@contextmanager
def hdfs_door(kind: str, folder: Path) -> Iterator[Door]:
    """Start an HDFS until the end of the block."""
    with hdfs_server(folder) as server:
        yield Door(server, "webhdfs" if kind == "webhdfs" else "hdfs")
