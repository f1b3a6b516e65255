"""A file that is read again when it changes. What cannot be used is said, and the last good content counts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from understudy_shared.auth.credentials import MAX_FILE_BYTES, CredentialsError
from understudy_shared.errors import UnderstudyError

log = logging.getLogger(__name__)

T = TypeVar("T")

_Signature = tuple[int, int, int, int]


class WatchedFile(Generic[T]):
    """`value` is what the file last said. `refused` is why its present content is not used; None while it is.

    Kubernetes replaces a mounted secret by another file, an operator's editor may write in place: both are noticed by
    what the file system says of the file.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], T]) -> None:
        """Raises CredentialsError for a file that cannot be used at the start. `parse` raises UnderstudyError."""
        self.path = path
        self.refused: str | None = None
        self._parse = parse
        try:
            self._signature, data = _read(path)
            self.value = parse(data)
        except (OSError, UnderstudyError) as error:
            raise _refusal(path, error) from None

    def __repr__(self) -> str:
        return f"WatchedFile({self.path}, {self.refused or 'used'})"

    def look(self) -> bool:
        """Read the file if it changed; True when there is a new value. It blocks."""
        try:
            if _signature_of(os.stat(self.path)) == self._signature and self.refused is None:  # noqa: PTH116
                return False
            signature, data = _read(self.path)
            if signature == self._signature and self.refused is None:
                return False
            value = self._parse(data)
        except (OSError, UnderstudyError) as error:
            self._refuse(str(_refusal(self.path, error)))
            return False
        self._signature, self.value, self.refused = signature, value, None
        log.info("%s was read again", self.path, extra={"action": "credentials-read"})
        return True

    def _refuse(self, why: str) -> None:
        if why != self.refused:
            log.error("%s. What it said before still counts", why, extra={"action": "credentials-refused"})
        self.refused = why


def _read(path: Path) -> tuple[_Signature, bytes]:
    """The content, and the signature from before it was read: what is written meanwhile is another one."""
    with path.open("rb") as file:
        signature = _signature_of(os.fstat(file.fileno()))
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise CredentialsError(f"the file has more than {MAX_FILE_BYTES} bytes")
    return signature, data


def _signature_of(status: os.stat_result) -> _Signature:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _refusal(path: Path, error: Exception) -> CredentialsError:
    if isinstance(error, UnderstudyError):
        where = f"{path}: {error.where}" if error.where else str(path)
        return CredentialsError(error.what, where=where, fix=error.fix)
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return CredentialsError(
        f"the file cannot be read: {why}", where=str(path), fix="Check the path and who may read it"
    )
