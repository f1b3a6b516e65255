"""Chooses how a checkpoint's files are reached: on local disk, in an object store, or in HDFS."""

from __future__ import annotations

import os
import re
from pathlib import Path

from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_shared.base.errors import CheckpointError, NotACheckpointError
from understudy_shared.base.extras import install_fix
from understudy_shared.base.masking import has_login, masked_location

_BY_HTTP = ("webhdfs", "swebhdfs")
_EXTRAS = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),  # s3a and s3n are Hadoop's names of it
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "wasb", "wasbs"), "azure"),
    "hdfs": "hdfs",
}
"""The extra that reads the URLs of a scheme."""

_NAMES = {"s3": "S3", "gcs": "Google Cloud Storage", "azure": "Azure Storage", "hdfs": "HDFS"}
_SCHEME = re.compile(r"[A-Za-z0-9+.-]{1,32}")


def open_checkpoint_files(url_or_path: str | Path) -> CheckpointFiles:
    """Open the files of the checkpoint at a local path or a URL; existence is not checked here."""
    text = os.fspath(url_or_path)
    scheme, separator, rest = text.partition(":")
    if separator and scheme in {"file", "local"} and rest.startswith("/"):
        # Hadoop prints file:/x, other tools file:///x.
        return LocalFiles("/" + rest.lstrip("/"))
    if rest.startswith("//") and scheme in _EXTRAS:
        return _remote_files(text, scheme)
    if "://" in text or "::" in text:
        raise _unknown(text, scheme)
    if has_login(text):
        raise NotACheckpointError(
            "The location is neither a path nor a URL",
            where=masked_location(text),
            fix="Write a URL with ://, as in s3://bucket/path, and ./ before a relative path that has @ and : in it",
        )
    return LocalFiles(text)


def _remote_files(url: str, scheme: str) -> CheckpointFiles:
    """Open a reader whose library is an extra: only who reads such a store needs it."""
    extra = _EXTRAS[scheme]
    try:
        return _hadoop_files(url) if extra == "hdfs" else _object_store_files(url, extra)
    except ImportError as error:
        raise CheckpointError(
            f"The library for {_NAMES[extra]} is not installed: {error}", fix=install_fix(f"node,{extra}")
        ) from error


def _object_store_files(url: str, extra: str) -> CheckpointFiles:
    from understudy_node.checkpoint.azure import Azure  # noqa: PLC0415
    from understudy_node.checkpoint.gcs import GCS  # noqa: PLC0415
    from understudy_node.checkpoint.object_store import ObjectStoreFiles  # noqa: PLC0415
    from understudy_node.checkpoint.s3 import S3  # noqa: PLC0415

    return ObjectStoreFiles(S3(url) if extra == "s3" else GCS(url) if extra == "gcs" else Azure(url))


def _hadoop_files(url: str) -> CheckpointFiles:
    from understudy_node.checkpoint.hadoop_files import HadoopFiles  # noqa: PLC0415
    from understudy_node.checkpoint.hdfs import Hdfs  # noqa: PLC0415

    return HadoopFiles(Hdfs(url))


def _unknown(url: str, scheme: str) -> NotACheckpointError:
    if scheme in _BY_HTTP:
        return NotACheckpointError(
            f"{scheme}:// is not read: HDFS is, by Hadoop's own protocol",
            where=masked_location(url),
            fix=f"Write hdfs://nameservice/path, or hdfs://namenode:8020/path. {install_fix('node,hdfs')}",
        )
    extras = {extra: [each for each, needed in _EXTRAS.items() if needed == extra] for extra in _NAMES}
    readable = "; ".join(f"{', '.join(names)} (extra {extra})" for extra, names in extras.items())
    named = f"{scheme}:// is" if _SCHEME.fullmatch(scheme) else "This URL's scheme is"
    return NotACheckpointError(
        f"{named} no storage that a checkpoint can be read from",
        where=masked_location(url),
        fix=f"Give a local path, or a URL of one of these: file; {readable} (docs/object-stores.md)",
    )
