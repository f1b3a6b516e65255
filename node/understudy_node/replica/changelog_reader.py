"""Reads the changelog that a commit names, ahead of the commit where it can.

In format v2 the file is found by the unique id in the commit, and no other attempt's has its name. A file read before
its commit is used only if it is still the same file after the commit; in format v1 the file applied last is checked
again, so that a later rewrite is noticed. A re-run batch, a rewritten delta or a dead attempt never reaches a reader.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from understudy_node.checkpoint.changelog import Changelog, ChangelogOperation, Form, LineageItem, iter_changelog_slices
from understudy_node.checkpoint.compression import decompress
from understudy_node.checkpoint.files import FileStat
from understudy_node.checkpoint.snapshots import parse_state_files
from understudy_node.follow.history import CommitRecord
from understudy_node.replica.replica_context import StorePlace, Surroundings, file_name
from understudy_shared.base.errors import CheckpointError, VanishedError

MAX_CHANGELOG_BYTES = 4 << 30
"""Limit on a decompressed changelog: the changes of one micro-batch in one partition."""


class RewrittenError(CheckpointError):
    """A committed file changed after it was applied: the task is marked and rebuilt from the present files."""


@dataclass(frozen=True, slots=True)
class ReadChangelog:
    """A decoded changelog file, and its stat when it was read."""

    name: str
    stat: FileStat
    lineage: tuple[LineageItem, ...] | None
    changes: dict[bytes, bytes | None]
    operations: tuple[ChangelogOperation, ...]


class ChangelogReader:
    """The reader of one store's changelogs. It holds at most one changelog read ahead, and the identity of the last one
    applied.
    """

    def __init__(self, place: StorePlace, around: Surroundings) -> None:
        self._place = place
        self._around = around
        self._ahead: ReadChangelog | None = None
        self._applied: tuple[str, FileStat] | None = None
        self._listed: FileStat | None = None
        """The directory when it was listed last: until it changes there is nothing else in it."""

    def read(self, record: CommitRecord) -> Generator[None, None, ReadChangelog | None]:
        """Read the changelog of a committed version; None when there is no such file."""
        name = changelog_name(self._place, record)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.name == name and ahead.stat == self._stat(name):
            return ahead
        return (yield from self._decode(name, record))

    @property
    def has_read_ahead(self) -> bool:
        """Whether the next version's changelog was read before its commit."""
        return self._ahead is not None

    def read_ahead(self, latest: CommitRecord) -> Generator[None, None, None]:
        """Read the probable changelog of the version after `latest`, before its commit exists."""
        if self._ahead is not None:
            return
        names = self._uncommitted_names(latest)
        if len(names) != 1:  # absent, or several attempts: only the commit names the winner
            return
        try:
            # Whether it is still this file is looked at after the commit.
            self._ahead = yield from self._decode(names[0], latest)
        except CheckpointError:
            self._listed = None  # an uncommitted file may be incomplete: it is read again, after the commit at last

    def applied(self, read: ReadChangelog) -> None:
        """Remember the changelog that became part of the view; one with a lineage is the only one of its name."""
        self._applied = (read.name, read.stat) if read.lineage is None else None

    def forget(self) -> None:
        """Drop what was read: the view was rebuilt on a snapshot."""
        self._ahead = self._applied = self._listed = None

    def check_last_applied(self) -> None:
        """Raise RewrittenError when the file applied last has changed."""
        if self._applied is None:
            return
        name, stat = self._applied
        now = self._stat(name)
        if now is not None and now != stat:
            raise RewrittenError(
                f"{name} was rewritten after its commit",
                where=f"{self._around.files.url}/{self._place.directory}",
                fix="Use checkpoint format v2: spark.sql.streaming.stateStore.checkpointFormatVersion=2 with RocksDB",
            )

    def _decode(self, name: str, record: CommitRecord) -> Generator[None, None, ReadChangelog | None]:
        path = f"{self._place.directory}/{name}"
        try:
            (content,) = self._around.files.read_all([path])
        except VanishedError:
            if self._stat(name) is None:
                return None
            raise  # rewritten meanwhile
        raw = decompress(content.data, name=path, max_bytes=MAX_CHANGELOG_BYTES)
        form: Form = "delta" if name.endswith(".delta") else "changelog"
        row_checksum = record.offsets.properties.row_checksum
        slices: list[Changelog] = []
        for part in iter_changelog_slices(raw, name=path, form=form, row_checksum=row_checksum):
            if slices:
                yield
            slices.append(part)
        changes = slices[0].changes
        for part in slices[1:]:
            changes.update(part.changes)
        if self._place.order is not None:
            changes = self._place.order.changes(changes)
        operations = tuple(operation for part in slices for operation in part.operations)
        return ReadChangelog(name, content.stat, slices[0].lineage, changes, operations)

    def _uncommitted_names(self, latest: CommitRecord) -> list[str]:
        """Possible names of the next version's changelog; format v2 needs a listing."""
        version, kind = latest.version + 1, _kind(latest)
        if self._place.unique_id(latest) is None:
            return [file_name(version, None, kind)]
        files, directory = self._around.files, self._place.directory
        # A new file changes its directory's stat, which costs a tenth of a listing and does not grow with the files.
        # Where one comes within the resolution of the clock it is missed here, and read after its commit.
        now = files.stat(directory)
        if now is not None and now == self._listed:
            return []
        prefix = f"{version}_"
        names = [name for name in files.list(directory) or () if name.startswith(prefix)]
        self._listed = now
        return [file.name for file in parse_state_files(names) if file.version == version and file.kind == kind]

    def _stat(self, name: str) -> FileStat | None:
        return self._around.files.stat(f"{self._place.directory}/{name}")


def changelog_name(place: StorePlace, record: CommitRecord) -> str:
    """Return the name of the changelog that a commit refers to."""
    return file_name(record.version, place.unique_id(record), _kind(record))


def _kind(record: CommitRecord) -> str:
    return "delta" if record.offsets.properties.provider == "hdfs" else "changelog"
