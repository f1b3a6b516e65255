"""JSON lines: each line that is not blank is a record's value, and its number, from 0 on, is the row's.

The last line counts even without a line break. A line that is not JSON is a poison record.
"""

from __future__ import annotations

import os
from pathlib import Path

from understudy_pipeline.inputs.arrays import binaries, optional_numbers
from understudy_pipeline.inputs.columns import times_in_values
from understudy_pipeline.inputs.file_rows import FileRows
from understudy_pipeline.inputs.timestamps import TimestampRule
from understudy_shared.base.errors import SettingsError

BLOCK_BYTES = 1 << 20
"""Bytes that one read asks for, unless a line is longer."""


class JsonLines:
    """An open file of JSON lines. Raises OSError."""

    def __init__(self, path: Path, rule: TimestampRule) -> None:
        self._rule = rule
        self._file = path.open("rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size
        self.next_index = 0
        self._lines: list[bytes] = []
        self._taken = 0
        """The number of `_lines` that were read."""
        self._rest = b""
        """The incomplete line after `_lines`."""
        self._is_read = False

    @property
    def remaining(self) -> int:
        return len(self._lines) - self._taken or int(not self._is_read)

    def skip(self, index: int) -> bool:
        while self.next_index < index:
            if not self._has_lines():
                return False
            self._advance(min(index - self.next_index, len(self._lines) - self._taken))
        return True

    def take(self, count: int) -> FileRows | None:
        if not self._has_lines():
            return None
        first = self.next_index
        lines = self._advance(min(count, len(self._lines) - self._taken))
        numbered = [(first + at, line) for at, line in enumerate(lines) if line and not line.isspace()]
        if not numbered:
            return None
        indices, values = zip(*numbered, strict=True)
        times = times_in_values(self._rule, values)
        return FileRows(optional_numbers(indices), times, None, binaries(values))

    def last(self) -> int | None:
        found = None
        while self._has_lines():
            first = self.next_index
            lines = self._advance(len(self._lines) - self._taken)
            found = max((first + at for at, line in enumerate(lines) if line and not line.isspace()), default=found)
        return found

    def close(self) -> None:
        self._file.close()

    def _advance(self, count: int) -> list[bytes]:
        lines = self._lines[self._taken : self._taken + count]
        self._taken += count
        self.next_index += count
        if self._taken == len(self._lines) and not self._is_read:
            self._read_block()  # read ahead, so that `remaining` is 0 as soon as the last line is read
        return lines

    def _has_lines(self) -> bool:
        while self._taken == len(self._lines) and not self._is_read:
            self._read_block()
        return self._taken < len(self._lines)

    def _read_block(self) -> None:
        """Read at least a block. A line longer than a block doubles the read, so that its cost stays linear."""
        block = self._file.read(max(BLOCK_BYTES, len(self._rest)))
        self._is_read = not block
        text = self._rest + block
        lines = text.split(b"\n")
        self._rest = b"" if self._is_read else lines.pop()
        if self._is_read and not lines[-1]:
            lines.pop()  # there is no line behind the last line break
        self._lines = [line.removesuffix(b"\r") for line in lines] if b"\r" in text else lines
        self._taken = 0


def check_json_rule(path: Path, rule: TimestampRule) -> None:
    """Raise SettingsError unless the timestamp comes from a field: JSON lines have no other."""
    if rule.is_record_time:
        raise SettingsError(
            "JSON lines have no timestamp outside their values",
            where=str(path),
            fix="Set the option timestamp to json:<field>, a field of every line",
        )
