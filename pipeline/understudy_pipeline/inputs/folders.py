"""The layout of a root folder: its topics, their partitions and files, and checks of the rules they must keep.

Rule: a file is complete when it appears (write it under a name that begins with "." or "_" and rename it), appears
behind the files that were there, and never changes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from understudy_pipeline.inputs.file_rows import RowFile
from understudy_pipeline.inputs.json_lines import JsonLines, check_json_rule
from understudy_pipeline.inputs.parquet_files import ParquetRows, check_schema
from understudy_pipeline.inputs.protocol import InputError, UnknownTopicError
from understudy_pipeline.inputs.records import TopicPartition
from understudy_pipeline.inputs.timestamps import TimestampRule
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.printable import printable

JSON_LINES = (".jsonl", ".json")
PARQUET = ".parquet"


class FileTooShortError(Exception):
    """A file ends before a row that was read from it earlier."""


class FilePlace(NamedTuple):
    """A position just before a row of a file. The name "" is the position before every file."""

    name: str
    row: int


def place_after(offset: str) -> FilePlace | None:
    """Return the place behind the row that an offset names. None if it is not an offset of a file."""
    if not offset:
        return FilePlace("", 0)
    name, colon, index = offset.rpartition(":")
    return FilePlace(name, int(index) + 1) if colon and name and index.isdecimal() else None


def count_partitions(root: Path, topic: str) -> int:
    """Count the partitions of a topic. Raises UnknownTopicError, SettingsError and InputError."""
    folder = root / topic
    if not folder.is_dir():
        there = sorted(each.name for each in _entries(root) if each.is_dir()) if root.is_dir() else []
        fix = f"There are: {printable(', '.join(there[:20]))}" if there else "Create a folder of that name there"
        raise UnknownTopicError(f"there is no folder '{topic}'", where=str(root), fix=fix)
    entries = _entries(folder)
    folders = {entry.name for entry in entries if entry.is_dir()}
    if not folders:
        return 1
    if len(folders) < len(entries) or folders != {str(p) for p in range(len(folders))}:
        raise SettingsError(
            f"the topic's folder holds {printable(', '.join(sorted(each.name for each in entries)[:20]))}",
            where=str(folder),
            fix="Give it files, or one folder for each partition: 0, 1, 2, ...; names with '.' or '_' do not count",
        )
    return len(folders)


def folder_of(root: Path, tp: TopicPartition) -> Path:
    """Return a partition's folder. Partition 0 of a topic without partition folders is the topic's folder."""
    folder = root / tp.topic / str(tp.partition)
    return folder if tp.partition or folder.is_dir() else folder.parent


def file_names(folder: Path, rule: TimestampRule, known: Collection[str] = ()) -> list[str]:
    """List a folder's files in reading order. Raises SettingsError for a file that cannot hold records, and InputError.

    Files that are `known` are not checked again.
    """
    names = sorted(entry.name for entry in _entries(folder) if not entry.is_dir())
    if names == known:
        return names
    for name in set(names).difference(known):
        if not name.endswith((*JSON_LINES, PARQUET)) or not _is_text(name):
            raise SettingsError(
                f"'{printable(name)}' is not a file of records",
                where=str(folder),
                fix="Records are in .jsonl, .json or .parquet files; hide others by a name that begins with '.' or '_'",
            )
        if not name.endswith(PARQUET):
            check_json_rule(folder / name, rule)
    return names


def check_file(path: Path, rule: TimestampRule) -> None:
    """Check the schema of a Parquet file. Raises SettingsError if it does not fit, and InputError."""
    if path.name.endswith(PARQUET):
        try:
            check_schema(path, rule)
        except FileNotFoundError:
            return
        except OSError as error:
            raise unreadable(path, error) from error


def open_rows(path: Path, rule: TimestampRule, *, index: int = 0) -> RowFile:
    """Open a file at row `index`, which may be its end.

    Raises FileNotFoundError, FileTooShortError, SettingsError for a file that does not have the format of its name, and
    InputError if the file system fails.
    """
    try:
        opened: RowFile = ParquetRows(path, rule) if path.name.endswith(PARQUET) else JsonLines(path, rule)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        is_there = opened.skip(index)
    except OSError as error:
        opened.close()
        raise unreadable(path, error) from error
    if not is_there:
        opened.close()
        raise FileTooShortError
    return opened


def unreadable(path: Path, error: OSError) -> InputError:
    """Make the InputError for an error of the file system."""
    why = error.strerror or str(error)
    return InputError(f"cannot be read: {why}", where=str(path), fix="Check that it is there and may be read from here")


def find_violation(names: Sequence[str], known: Sequence[str], at: FilePlace, *, is_finished: bool) -> str | None:
    """Return which rule a folder breaks that has `names` now and had `known` before. None if it breaks no rule.

    Files before the one at `at` were read, and that one was read to its end if `is_finished`.
    """
    if names == known:
        return None
    now = set(names)
    late = sorted(name for name in now.difference(known) if name < at.name)
    if late:
        late_name, read_name = printable(late[0]), printable(at.name)
        return f"the file '{late_name}' appeared after '{read_name}' was read, although its name comes first"
    gone = sorted(
        name for name in set(known).difference(now) if name > at.name or (name == at.name and not is_finished)
    )
    return f"the file '{printable(gone[0])}' is gone, and was not read to its end" if gone else None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith((".", "_"))]
    except OSError as error:
        raise unreadable(folder, error) from error


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
