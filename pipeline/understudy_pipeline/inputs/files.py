"""Files as an input: a topic is a folder, its partitions are folders in it (0, 1, 2, ...) or the topic's folder itself.

A record's offset is `<file name>:<number of its line or row>`. Its ordinal counts records from the first file on.
A file that sorts before one that was read is an error if it appears while the query runs. If it appears while the query
is stopped, it goes unnoticed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from understudy_pipeline.inputs.folder_reader import FolderReader
from understudy_pipeline.inputs.folders import (
    FileTooShortError,
    check_file,
    count_partitions,
    file_names,
    folder_of,
    open_rows,
    unreadable,
)
from understudy_pipeline.inputs.protocol import ClientQueue, Fetched
from understudy_pipeline.inputs.records import Chunk, Cursor, TopicPartition
from understudy_pipeline.inputs.timestamps import TimestampRule, TimestampRules
from understudy_shared.base.errors import UnderstudyError

POLL_S = 0.02
REST_PER_LOOK = 4
"""Pause between two listings of a folder: POLL_S, or REST_PER_LOOK times as long as a listing takes if that is more."""


@dataclass(frozen=True, slots=True)
class FilesConfig:
    """Topics below one folder. For JSON lines `timestamp` must name a field; Parquet files can have a column for it."""

    root: Path
    topics: tuple[str, ...]
    timestamp: TimestampRules = field(default_factory=TimestampRules)
    fail_on_data_loss: bool = True

    @property
    def kind(self) -> str:
        return "files"

    @property
    def server(self) -> str:
        return str(self.root)


class FilesInput:
    """An input of files. Timeouts bound only the wait for new files: a call waits for a hanging file system."""

    def __init__(self, config: FilesConfig) -> None:
        self._config = config
        self._readers: dict[TopicPartition, FolderReader] = {}
        self._checked: set[Path] = set()
        self.client_queue: ClientQueue | None = None
        self._past_losses = 0
        """Losses of readers that were replaced."""

    @property
    def losses(self) -> int:
        return self._past_losses + sum(reader.losses for reader in self._readers.values())

    def partitions(self, *, timeout_ms: int) -> Mapping[str, int]:
        """Count partitions; check the first and last file of each folder once. Raises SettingsError for a bad one."""
        counts = {topic: count_partitions(self._config.root, topic) for topic in self._config.topics}
        for topic, count in counts.items():
            for partition in range(count):
                self._check(TopicPartition(topic, partition))
        return counts

    def topic_ids(self, topics: Collection[str], *, timeout_ms: int) -> Mapping[str, str]:
        return {}

    def ends(self, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
        return {tp: self._end_cursor(tp) for tp in partitions}

    def beginnings(self, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
        return {}

    def seek(self, cursors: Mapping[TopicPartition, Cursor], *, timeout_ms: int) -> None:
        readers: dict[TopicPartition, FolderReader] = {}
        try:
            for tp, cursor in cursors.items():
                config, rule = self._config, self._config.timestamp.of(tp.topic)
                readers[tp] = FolderReader(config.root, tp, cursor, rule, fail_on_data_loss=config.fail_on_data_loss)
        except BaseException:
            _close(readers)
            raise
        replaced = {tp: self._readers[tp] for tp in readers.keys() & self._readers.keys()}
        self._past_losses += sum(reader.losses for reader in replaced.values())
        _close(replaced)
        self._readers.update(readers)

    def fetch(self, wanted: Mapping[TopicPartition, int], *, timeout_ms: int) -> Fetched:
        """Fetch rows. If a folder cannot be read after others gave rows, the next call raises its error."""
        wanted = {tp: count for tp, count in wanted.items() if count > 0}
        end_s = time.monotonic() + timeout_ms / 1000
        while True:
            begin_s = time.monotonic()
            fetched = self._read_once(wanted)
            now_s = time.monotonic()
            if fetched.chunks or not wanted or now_s >= end_s:
                return fetched
            time.sleep(min(max(POLL_S, REST_PER_LOOK * (now_s - begin_s)), end_s - now_s))

    def close(self) -> None:
        _close(self._readers)
        self._readers.clear()

    def _read_once(self, wanted: Mapping[TopicPartition, int]) -> Fetched:
        chunks: list[Chunk] = []
        lags: dict[TopicPartition, int] = {}
        for tp, count in wanted.items():
            try:
                chunk, lag = self._readers[tp].read(count)
            except UnderstudyError:
                if not chunks:
                    raise
                continue
            if chunk is not None:
                chunks.append(chunk)
            if lag is not None:
                lags[tp] = lag
        return Fetched(chunks, lags)

    def _check(self, tp: TopicPartition) -> None:
        folder, rule = folder_of(self._config.root, tp), self._config.timestamp.of(tp.topic)
        names = file_names(folder, rule)
        for path in {folder / name for name in (*names[:1], *names[-1:])} - self._checked:
            check_file(path, rule)
            self._checked.add(path)

    def _end_cursor(self, tp: TopicPartition) -> Cursor:
        """Return the cursor behind the last row. It has no ordinal: counting rows would take reading every file."""
        folder, rule = folder_of(self._config.root, tp), self._config.timestamp.of(tp.topic)
        for name in reversed(file_names(folder, rule)):
            last = _last_row(folder / name, rule)
            if last is not None:
                return Cursor(f"{name}:{last}")
        return Cursor()


def _last_row(path: Path, rule: TimestampRule) -> int | None:
    try:
        opened = open_rows(path, rule)
    except (FileNotFoundError, FileTooShortError):
        return None
    try:
        return opened.last()
    except OSError as error:
        raise unreadable(path, error) from error
    finally:
        opened.close()


def _close(readers: Mapping[TopicPartition, FolderReader]) -> None:
    for reader in readers.values():
        reader.close()
