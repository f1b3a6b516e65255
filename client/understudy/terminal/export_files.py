"""The files that an export is written into: bytes as they come, an Arrow stream, or Parquet; whole, or not there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from understudy.terminal.exits import CommandError, ExitCode
from understudy_shared.base.extras import install_fix

GROUP_BYTES = 128 * 1024 * 1024
"""Size of the batches that become one row group of a Parquet file."""


def form_by_ending(out: str, forms: Mapping[str, str]) -> str | None:
    """Return the form for the extension of a file's name; None without one. Raises CommandError for an unknown
    extension.
    """
    suffix = Path(out).suffix.lower()
    if suffix and suffix not in forms:
        fix = f"Choose one of {', '.join(forms)}, or give --format"
        raise CommandError(f"nothing is written as {suffix}", where=out, fix=fix, exit_code=ExitCode.USAGE)
    return forms.get(suffix)


class Written:
    """A file that rows are written into: here bytes, as they come."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._writer: Any = None

    def write(self, content: Any) -> None:
        self._file.write(content)

    def finish(self) -> None:
        """Write what follows the rows."""
        if self._writer is not None:
            self._writer.close()

    def restart(self) -> None:
        """End what was written; the file is emptied afterwards."""
        Written.finish(self)
        self._writer = None


class WrittenArrow(Written):
    """An Arrow IPC stream."""

    def write(self, content: Any) -> None:
        import pyarrow as pa  # noqa: PLC0415

        for batch in content:
            if self._writer is None:
                self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), batch.schema)
            if batch.num_rows:
                self._writer.write_batch(batch)


class WrittenParquet(Written):
    """A Parquet file, compressed with zstd."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._held: list[Any] = []

    def write(self, content: Any) -> None:
        self._held += content
        if sum(batch.nbytes for batch in self._held) >= GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        self._write_group()
        super().finish()

    def restart(self) -> None:
        super().restart()
        self._held = []

    def _write_group(self) -> None:
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415

        if not self._held:
            return
        table = pa.Table.from_batches(self._held)
        try:
            if self._writer is None:
                self._writer = parquet.ParquetWriter(pa.PythonFile(self._file, "w"), table.schema, compression="zstd")
            if table.num_rows:
                self._writer.write_table(table)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise CommandError(
                f"Parquet cannot hold these columns: {error}", fix="Write --format arrow", exit_code=ExitCode.REFUSED
            ) from None
        self._held = []


@contextmanager
def written_whole(out: str) -> Iterator[BinaryIO]:
    """Give the file to write. It gets its name when the block ends without an error, else it is removed. `-` is the
    standard output.
    """
    if out == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(out)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise CommandError(
            f"the file cannot be written: {error.strerror or error}",
            where=out,
            fix="Name another file with --out",
            exit_code=ExitCode.REFUSED,
        ) from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def require_pyarrow(form: str) -> None:
    """Raise CommandError where pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401, PLC0415
    except ImportError:
        raise CommandError(
            f"{form} needs pyarrow, which is not installed",
            where="--format",
            fix=f"{install_fix('arrow')}, or write --format ndjson or csv",
            exit_code=ExitCode.USAGE,
        ) from None
