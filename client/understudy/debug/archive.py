"""Writes the bundle: a zip file that only its owner may read, whole or not at all."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy.debug.asking import Entry
from understudy.debug.redaction import Redaction
from understudy.terminal.exits import CommandError, ExitCode

MAX_LOG_BYTES = 8 * 1024 * 1024
"""Limit on a log: its end counts."""

_MAX_LINE = 16 * 1024


@contextmanager
def new_archive(path: Path) -> Iterator[Callable[[str, bytes], None]]:
    """Give the function that adds a file. Raises CommandError when the file exists or cannot be written."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists():
            raise FileExistsError(f"{path} exists")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w+b") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            yield archive.writestr
        part.rename(path)
    except OSError as error:
        raise CommandError(
            f"the bundle cannot be written: {error.strerror or error}",
            where=str(path), fix="Name another file with --output", exit_code=ExitCode.REFUSED,
        ) from None  # fmt: skip
    finally:
        part.unlink(missing_ok=True)


def logs(paths: Iterable[Path], redaction: Redaction) -> Iterator[Entry]:
    """Yield the end of each log, without secrets. A log that cannot be read is a note."""
    for number, path in enumerate(paths, 1):
        name = f"logs/{number:02}-{path.name[-80:]}"
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MAX_LOG_BYTES))
                content = file.read(MAX_LOG_BYTES)
        except OSError as error:
            yield Entry(name, str(path), None, f"it cannot be read: {error.strerror or error}")
            continue
        note = f"its last {MAX_LOG_BYTES} bytes of {size}" if size > MAX_LOG_BYTES else ""
        lines = (line[:_MAX_LINE] for line in content.decode(errors="replace").splitlines())
        yield Entry(name, str(path), redaction.text("\n".join(lines)).encode(), note)
