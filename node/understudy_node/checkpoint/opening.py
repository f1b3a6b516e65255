"""Chooses how a checkpoint's files are reached: on local disk, in an object store, or by fsspec."""

from __future__ import annotations

import os
from pathlib import Path

from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_shared.base.errors import CheckpointError, NotACheckpointError
from understudy_shared.base.extras import install_fix
from understudy_shared.base.masking import has_login, masked_location


def open_checkpoint_files(url_or_path: str | Path) -> CheckpointFiles:
    """Open the files of the checkpoint at a local path or a URL; existence is not checked here."""
    text = os.fspath(url_or_path)
    scheme, separator, rest = text.partition(":")
    if separator and scheme in {"file", "local"} and rest.startswith("/"):
        # Hadoop prints file:/x, other tools file:///x.
        return LocalFiles("/" + rest.lstrip("/"))
    if text.startswith(("s3://", "s3a://", "s3n://")):  # s3a and s3n are Hadoop's names of it
        return _object_store_files(text)
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


def _object_store_files(url: str) -> CheckpointFiles:
    try:  # the library is an extra: only who reads S3 needs it
        from understudy_node.checkpoint.object_store import ObjectStoreFiles  # noqa: PLC0415
        from understudy_node.checkpoint.s3 import S3  # noqa: PLC0415
    except ImportError as error:
        raise CheckpointError(f"The library for S3 is not installed: {error}", fix=install_fix("node,s3")) from error
    return ObjectStoreFiles(S3(url))
