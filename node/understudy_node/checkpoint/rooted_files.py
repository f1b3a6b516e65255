"""A checkpoint below a folder that its links may not leave: another process chose its location."""

from __future__ import annotations

import os
from pathlib import Path

from understudy_node.checkpoint.files import (
    DEFAULT_MAX_READ_BYTES,
    FetchMethod,
    FileStat,
    LocalFiles,
    refuse_escape,
)
from understudy_shared.base.errors import CheckpointError


class RootedFiles(LocalFiles):
    """A checkpoint on a mounted file system. Each call resolves the symbolic links of its path, and of the root."""

    def __init__(self, root: str, location: str) -> None:
        super().__init__(location)
        self._allowed = root

    def stat(self, path: str) -> FileStat | None:
        self._require_inside(path)
        return super().stat(path)

    def list(self, path: str) -> list[str] | None:
        self._require_inside(path)
        return super().list(path)

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        self._require_inside(path)
        return super().read(path, max_bytes)

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        self._require_inside(path)
        return super().fetch(path, destination)

    def _require_inside(self, path: str) -> None:
        refuse_escape(path)
        allowed, found = os.path.realpath(self._allowed), os.path.realpath(self._prefix + path)
        if os.path.commonpath((allowed, found)) != allowed:
            raise CheckpointError(
                "The file is outside of the checkpoint root: a symbolic link leads there",
                where=self._prefix + path,
                fix="Name the folder that it leads to with --checkpoint-root, or list the application",
            )
