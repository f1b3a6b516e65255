"""Files of a service that are private to its user, and files of an operator that are read again when they change.

A service's files hold state that other users may not be allowed to read. Hard links share the mode of the checkpoint's
files, which a service must not change: the private folder around them keeps other users out. Of a watched file unusable
content is logged, and the last good content stays in use.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.throttles import Reminder

PRIVATE_FOLDER = 0o700
PRIVATE_UMASK = 0o077


def keep_files_private() -> None:
    """Make all later files of this process private, those of libraries too. A service's `main` calls it."""
    os.umask(PRIVATE_UMASK)


def private_folder(folder: Path) -> None:
    """Make a folder that only this user may enter, and close one that is open to others.

    Only for folders that Understudy names, never for a folder that an operator names. Raises OSError.
    """
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o777 != PRIVATE_FOLDER:
        with suppress(PermissionError):  # another user owns it and lets this user write
            folder.chmod(PRIVATE_FOLDER)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock, so that only one change in a folder runs at a time: two at once would lose one."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file anew, whole or not at all; a symbolic link stays one."""
    target = path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # it is private from the start
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


log = logging.getLogger(__name__)

MAX_FILE_BYTES = 4 * 1024 * 1024

T = TypeVar("T")

_Signature = tuple[int, int, int, int, int]


class WatchedFile(Generic[T]):
    """A file with its parsed content in `value`. `refused` says why its present content is not used; None while it is.

    Kubernetes replaces a mounted secret by another file, an operator's editor may write in place: the file system's
    signature of the file shows both. Each change has a line in the audit log.
    """

    def __init__(
        self, path: Path, parse: Callable[[bytes], T], *, max_bytes: int = MAX_FILE_BYTES, clock: Clock | None = None
    ) -> None:
        """Read the file for the first time. Raises SettingsError if it cannot be used; `parse` raises
        UnderstudyError.
        """
        self.path = path
        self.refused: str | None = None
        self._parse = parse
        self._max_bytes = max_bytes
        self._clock: Clock = clock or SystemClock()
        self._reminder = Reminder()
        try:
            self._signature, data = _read(path, max_bytes)
            self.value = parse(data)
        except (OSError, UnderstudyError) as error:
            raise _refusal(path, error) from None

    def __repr__(self) -> str:
        return f"WatchedFile({self.path}, {self.refused or 'used'})"

    def look(self) -> bool:
        """Read the file if it changed; return True when there is a new value. It blocks."""
        try:
            if _signature_of(os.stat(self.path)) == self._signature and self.refused is None:  # noqa: PTH116
                return False
            signature, data = _read(self.path, self._max_bytes)
            if signature == self._signature and self.refused is None:
                return False
            value = self._parse(data)
        except (OSError, UnderstudyError) as error:
            self._refuse(str(_refusal(self.path, error)))
            return False
        self._signature, self.value, self.refused = signature, value, None
        log.warning("%s was read again", self.path, extra={**self._said, "outcome": "used"})
        return True

    def _refuse(self, why: str) -> None:
        if why != self.refused:
            self._reminder.reset()
        if self._reminder.is_due(self._clock.monotonic_ms()):
            log.error("%s. Its previous content stays in use", why, extra={**self._said, "outcome": "refused"})
        self.refused = why

    @property
    def _said(self) -> dict[str, str]:
        return {"action": "audit-config", "file": str(self.path)}


def _read(path: Path, max_bytes: int) -> tuple[_Signature, bytes]:
    """Read the content, with a signature taken before: a write in between then shows as another signature."""
    with path.open("rb") as file:
        signature = _signature_of(os.fstat(file.fileno()))
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise SettingsError(f"the file has more than {max_bytes} bytes", fix="Check that it is the right file")
    return signature, data


def _signature_of(status: os.stat_result) -> _Signature:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _refusal(path: Path, error: Exception) -> SettingsError:
    if isinstance(error, UnderstudyError):
        where = f"{path}: {error.where}" if error.where else str(path)
        kind = type(error) if isinstance(error, SettingsError) else SettingsError
        return kind(error.what, where=where, fix=error.fix)
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return SettingsError(f"the file cannot be read: {why}", where=str(path), fix="Check the path and who may read it")
