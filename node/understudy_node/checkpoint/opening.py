"""Chooses how a checkpoint's files are reached: on local disk, in an object store, or by fsspec."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_shared.base.errors import CheckpointError, NotACheckpointError
from understudy_shared.base.extras import install_fix
from understudy_shared.base.masking import has_login, masked_location

if TYPE_CHECKING:
    from understudy_node.checkpoint.object_store import ObjectStore

_OBJECT_STORES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),  # s3a and s3n are Hadoop's names of it
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "wasb", "wasbs"), "azure"),
}
"""The extra that reads the URLs of a scheme."""

_NAMES = {"s3": "S3", "gcs": "Google Cloud Storage", "azure": "Azure Storage"}


def open_checkpoint_files(url_or_path: str | Path) -> CheckpointFiles:
    """Open the files of the checkpoint at a local path or a URL; existence is not checked here."""
    text = os.fspath(url_or_path)
    scheme, separator, rest = text.partition(":")
    if separator and scheme in {"file", "local"} and rest.startswith("/"):
        # Hadoop prints file:/x, other tools file:///x.
        return LocalFiles("/" + rest.lstrip("/"))
    if rest.startswith("//") and scheme in _OBJECT_STORES:
        return _object_store_files(text, _OBJECT_STORES[scheme])
    if "://" in text or "::" in text:
        # fsspec costs 0.1 s to import: only remote checkpoints pay.
        from understudy_node.checkpoint.remote import FsspecFiles  # noqa: PLC0415

        return FsspecFiles(text)
    if has_login(text):
        raise NotACheckpointError(
            "The location is neither a path nor a URL",
            where=masked_location(text),
            fix="Write a URL with ://, as in s3://bucket/path, and ./ before a relative path that has @ and : in it",
        )
    return LocalFiles(text)


def _object_store_files(url: str, extra: str) -> CheckpointFiles:
    try:  # the library is an extra: only who reads an object store needs it
        from understudy_node.checkpoint.azure import Azure  # noqa: PLC0415
        from understudy_node.checkpoint.gcs import GCS  # noqa: PLC0415
        from understudy_node.checkpoint.object_store import ObjectStoreFiles  # noqa: PLC0415
        from understudy_node.checkpoint.s3 import S3  # noqa: PLC0415
    except ImportError as error:
        raise CheckpointError(
            f"The library for {_NAMES[extra]} is not installed: {error}", fix=install_fix(f"node,{extra}")
        ) from error
    stores: dict[str, Callable[[str], ObjectStore]] = {"s3": S3, "gcs": GCS, "azure": Azure}
    return ObjectStoreFiles(stores[extra](url))
