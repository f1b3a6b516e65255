"""The committed history: the commit log's and the offset log's record of each version.

Records are read on demand and cached, within a bound; purged versions are cached as purged. Every record was read after
its commit file existed, so it never changes; a re-created or rewound checkpoint gets another `CommitHistory`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from threading import Lock

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.logs import (
    MAX_LOG_BYTES,
    Commit,
    OffsetEntry,
    batch_ids,
    no_offsets,
    parse_commit,
    parse_offsets,
)
from understudy_shared.base.errors import CorruptFileError, UnderstudyError, VanishedError
from understudy_shared.bus.messages import NEWEST, SeenCommit

MAX_RECORDS = 4096
"""Number of cached versions. Spark retains 100 commits by default; a record is about 1 KiB plus its unique ids."""

MAX_UNIQUE_IDS = 100_000
"""Number of unique ids in all cached records, about 15 MB: format v2 has one for each store partition of a version."""

MAX_PURGED = 4096
"""Number of versions cached as purged: readers may send any old position."""


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One committed version: its commit file, the file's modification time, and the offsets its batch ran with."""

    version: int
    commit: Commit
    offsets: OffsetEntry
    committed_at_ns: int
    digest: str = ""
    """The digest of the commit file's content: format v2 names every attempt in it."""

    @property
    def committed_at_us(self) -> int:
        return self.committed_at_ns // 1000

    @property
    def seen(self) -> SeenCommit | None:
        """The commit for other nodes to compare; None if the storage gives no times."""
        if self.committed_at_us < 1:
            return None
        return SeenCommit(version=self.version, committed_at_us=self.committed_at_us, digest=self.digest)

    @property
    def unique_ids(self) -> int:
        """The number of its unique ids; 0 in format v1."""
        operators = (self.commit.unique_ids or {}).values()
        return sum(len(stores) for partitions in operators for stores in partitions)

    def unique_id(self, operator_id: int, partition: int, store_index: int) -> str | None:
        """Format v2: the id of the attempt that won this version; None in format v1."""
        ids = self.commit.unique_ids
        if ids is None:
            return None
        partitions = ids.get(operator_id, ())
        if partition >= len(partitions):
            return None
        stores = partitions[partition]
        if store_index >= len(stores):
            raise CorruptFileError(
                f"partition {partition} of operator {operator_id} has ids of {len(stores)} stores, at least "
                f"{store_index + 1} are needed",
                where=f"commits/{self.commit.batch_id}",
                fix="The operator's metadata and the commit log disagree: report it with both files",
            )
        return stores[store_index]


class CommitHistory:
    """The cache of commit records: `record(v)` is the commit that made version v, None when Spark purged it."""

    def __init__(self, files: CheckpointFiles, taken_back: Mapping[int, int] | None = None) -> None:
        """Start empty. `taken_back`: times of commits that a rewind took away, in us, by version."""
        self.taken_back = taken_back or {}
        self._files = files
        self._records: OrderedDict[int, CommitRecord] = OrderedDict()
        self._unique_ids = 0
        """Number of unique ids in the cached records."""
        self._purged: OrderedDict[int, None] = OrderedDict()
        self._times_us: dict[int, int] = {}
        """The commit times that `newest_at` has read, by version: of retained versions only."""
        self._lock = Lock()

    def record(self, version: int) -> CommitRecord | None:
        """Return the record of a committed version. Raises CorruptFileError when its files do not parse."""
        with self._lock:
            known = self._records.get(version)
        if known is not None or version < 1:
            return known
        read = self._read(version)
        if read is not None:
            with self._lock:
                if version not in self._records:  # another thread may have read it meanwhile
                    self._records[version] = read
                    self._unique_ids += read.unique_ids
                while len(self._records) > 1 and (
                    len(self._records) > MAX_RECORDS or self._unique_ids > MAX_UNIQUE_IDS
                ):
                    self._unique_ids -= self._records.popitem(last=False)[1].unique_ids
        return read

    def nearest(self, version: int) -> CommitRecord:
        """Return the record of `version`, or of the oldest version after it that is not purged."""
        later = (batch + 1 for batch in batch_ids(self._files.list("commits") or []) if batch + 1 > version)
        for candidate in chain((version,), later):
            record = self.record(candidate)
            if record is not None:
                return record
        raise VanishedError(
            f"the commit log has nothing from version {version} on",
            where=f"{self._files.url}/commits",
            fix="Wait for the next commit",
        )

    def retained(self) -> tuple[int, int] | None:
        """Return the first and the last version with a commit in the checkpoint; None without any. Lists the log."""
        ids = batch_ids(self._files.list("commits") or [])
        return (min(ids) + 1, max(ids) + 1) if ids else None

    def newest_at(self, at_us: int) -> tuple[int, int] | None:
        """Return the newest version that was committed at that moment or before, and its time in us; None for a moment
        before the first version that is retained.

        The highest such version counts, not the latest time: file times may be equal, step back, or be a copy's. Lists
        the log, and reads the times that are not known yet: they never change.
        """
        versions = [batch + 1 for batch in batch_ids(self._files.list("commits") or [])]
        with self._lock:
            times = {version: self._times_us[version] for version in versions if version in self._times_us}
        unknown = [version for version in versions if version not in times]
        stats = self._files.stats([f"commits/{version - 1}" for version in unknown])
        found = zip(unknown, stats, strict=True)
        times |= {version: stat.mtime_ns // 1000 for version, stat in found if stat is not None}
        with self._lock:
            self._times_us = times
        newest = max((version for version, time_us in times.items() if time_us <= at_us), default=None)
        return None if newest is None else (newest, times[newest])

    def commit_time_ns(self, version: int) -> int | None:
        """Return c(v): the modification time of the commit file that made `version`, None when purged or unreadable."""
        try:
            record = self.record(version)
        except UnderstudyError:
            return None  # the replica that applies the version reports the error; readers keep the version before
        return None if record is None else record.committed_at_ns

    def learn_commit_time(self, version: int) -> None:
        """Read c(v) of a version that is known to have been committed; cache that it was purged, too."""
        try:
            is_purged = self.record(version) is None
        except UnderstudyError:
            return  # The storage failed: the file may exist, so the next call reads it again.
        if is_purged:
            with self._lock:
                self._purged[version] = None
                while len(self._purged) > MAX_PURGED:
                    self._purged.popitem(last=False)

    def is_commit_time_learned(self, version: int) -> bool:
        """Whether storage need not be read for a committed version: its time was read, or is known to be purged."""
        if version < 1:
            return True
        with self._lock:
            return version in self._records or version in self._purged

    def known_commit_time_ns(self, version: int) -> int | None:
        """Return c(v) if it was read already; never touch the storage, so that lookups may call it."""
        with self._lock:
            known = self._records.get(version)
        return None if known is None else known.committed_at_ns

    def known_above(self, version: int) -> dict[int, int]:
        """Return the times, in us, of the commits above `version` that were read, or that a rewind took away before."""
        with self._lock:
            read = {each: record.committed_at_us for each, record in self._records.items()}
        return {each: time_us for each, time_us in {**self.taken_back, **read}.items() if each > version}

    def seen(self, version: int) -> SeenCommit | None:
        """Return the commit of `version` if it was read already, for comparisons with other nodes."""
        with self._lock:
            known = self._records.get(version)
        return None if known is None else known.seen

    def newest(self, end_version: int) -> list[SeenCommit]:
        """Return the newest commits up to `end_version` that were read already, the newest first."""
        versions = range(end_version, max(0, end_version - NEWEST), -1)
        return [commit for commit in map(self.seen, versions) if commit is not None]

    def _require_purged(self, batch: int) -> None:
        """Raise for a commit without offsets that is the newest: Spark purges old ones, offsets first."""
        commit, offsets, after = self._files.stats([f"commits/{batch}", f"offsets/{batch}", f"commits/{batch + 1}"])
        if commit is not None and offsets is None and after is None:
            raise no_offsets(batch, self._files.url)

    def _read(self, version: int) -> CommitRecord | None:
        batch = version - 1
        try:
            committed, ran_with = self._files.read_all([f"commits/{batch}", f"offsets/{batch}"], MAX_LOG_BYTES)
        except VanishedError:
            self._require_purged(batch)
            return None
        commit, offsets = parse_commit(committed.data, batch), parse_offsets(ran_with.data, batch)
        digest = hashlib.sha256(committed.data).hexdigest()[:16]
        return CommitRecord(version, commit, offsets, committed.stat.mtime_ns, digest)
