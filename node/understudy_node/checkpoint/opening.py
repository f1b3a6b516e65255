"""Chooses how a checkpoint's files are reached: `LocalFiles` for a local path, `FsspecFiles` for any other URL."""

from __future__ import annotations

import os
from pathlib import Path

from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles


def open_checkpoint_files(url_or_path: str | Path) -> CheckpointFiles:
    """Files of the checkpoint at a local path or an fsspec URL; existence is not checked here."""
    text = os.fspath(url_or_path)
    scheme, separator, rest = text.partition(":")
    if separator and scheme in {"file", "local"} and rest.startswith("/"):
        # Hadoop prints file:/x, other tools file:///x.
        return LocalFiles("/" + rest.lstrip("/"))
    if "://" in text or "::" in text:
        # fsspec costs 0.1 s to import: only remote checkpoints pay.
        from understudy_node.checkpoint.remote import FsspecFiles  # noqa: PLC0415

        return FsspecFiles(text)
    return LocalFiles(text)
