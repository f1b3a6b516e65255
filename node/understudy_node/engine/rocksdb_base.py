"""A read-only RocksDB snapshot as a base, opened in place: no key is read to open it.

The rule: records that RocksDB could leave out silently are an error here. The merge operator is checked before opening,
the number of records against the expected keys at opening, and every scan asks its iterator why it ended.

Options for an existing database are ignored in read-only mode, so the cache goes in through the loaded options. RocksDB
writes its LOG and LOCK next to the data: `directory` is private to this process, never the checkpoint.
"""

from __future__ import annotations

import re
import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final

from rocksdict import AccessType, Cache, Env, Options, Rdict, ReadOptions

from understudy_node.engine.base import (
    MAX_ROW_CACHE_BYTES,
    SHARE_OF_BLOCK_CACHE,
    Base,
    RowCache,
)
from understudy_shared.base.errors import CorruptFileError, UnsupportedError
from understudy_shared.settings import DEFAULT_CACHE_BYTES

_OPTION_LINE: Final = re.compile(r"^\s*(merge_operator|comparator)\s*=\s*(.*?)\s*$", re.MULTILINE)
_MERGE_OPERATORS: Final = re.compile(r"nullptr|\{id=StringAppendOperator;delimiter=.?;?\}")
_COMPARATOR: Final = "leveldb.BytewiseComparator"

READAHEAD_BYTES: Final = 256 * 1024
"""Bytes that a scan of a whole base reads from a file at once."""


class BlockCache:
    """The block cache that all RocksDB bases of a process share: least recently used goes first; 0 disables it.

    `rows` caches lately read rows of all bases, within a budget of its own.
    """

    def __init__(self, capacity_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.shared = Cache(capacity_bytes)
        self.rows = RowCache(min(capacity_bytes // SHARE_OF_BLOCK_CACHE, MAX_ROW_CACHE_BYTES))

    @property
    def used_bytes(self) -> int:
        return self.shared.get_usage()


class RocksBase(Base):
    """Spark's own files, opened. Dropping the last reference closes it; readers in flight keep it open."""

    def __init__(self, database: Rdict, directory: Path, expected_keys: int | None) -> None:
        self.directory = directory
        self._database = database
        self._expected_keys = expected_keys
        # With its column family resolved once, a handle answers 20 % sooner.
        self._column_family = database.get_column_family("default")
        self._get = self._column_family.get

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        cache: BlockCache,
        expected_keys: int | None,
    ) -> RocksBase:
        """Open the database with its CURRENT, MANIFEST, OPTIONS and tables in `directory`.

        `expected_keys` is the number of all keys, internal ones too, when the snapshot says it.
        """
        _check_options(directory)
        try:
            options, families = Options.load_latest(str(directory), Env(), True, cache.shared)
            for each in (options, *families.values()):
                # The log directory and descriptor limit of the writer do not apply here.
                each.set_db_log_dir(str(directory))
                each.set_wal_dir(str(directory))
                each.set_max_open_files(-1)  # unlimited: a table that is open cannot vanish
                each.set_keep_log_file_num(1)
            database = Rdict(str(directory), options, families, AccessType.read_only(False))
            base = cls(database, directory, expected_keys)
            base._check_record_count()
        except CorruptFileError:
            raise
        except Exception as error:  # rocksdict raises bare Exception for everything
            raise CorruptFileError(f"RocksDB cannot open it: {error}", where=str(directory), fix=_RESTORE) from error
        return base

    def __repr__(self) -> str:
        return f"RocksBase({self.directory}, {self.count()} keys)"

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._get(key)
        except Exception as error:
            raise self._unreadable(error) from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read in one batch. Unlike `get` it lets other threads run, so it is also the call for cold files."""
        try:
            return self._get(list(keys))  # type: ignore[return-value]  # a list for a list
        except Exception as error:
            raise self._unreadable(error) from error

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        bounds = _up_to(end)
        last: bytes | None = None
        for record in self._items(start, bounds):
            last = record[0]
            yield record
        self._check_end(last, start, bounds)

    def scan_flat(
        self, start: bytes | None, end: bytes | None, next_slice: Callable[[Iterator[bytes]], list[bytes]]
    ) -> Iterator[list[bytes]]:
        """Yield the same records in slices, as flat lists: key, value, key, value. Without a turn for each record it is
        a quarter faster. `next_slice` takes some of the next records, and nothing at the end.
        """
        bounds = _up_to(end)
        # Each block is read once, so that lookups keep theirs. The stubs lack the argument.
        bounds.fill_cache(False)  # type: ignore[call-arg]
        bounds.set_readahead_size(READAHEAD_BYTES)
        last: bytes | None = None
        flat = chain.from_iterable(self._items(start, bounds))
        while records := next_slice(flat):
            last = records[-2]
            yield records
        self._check_end(last, start, bounds)

    def count(self) -> int:
        """Count the keys: exactly if the snapshot has the number, else an estimate that counts overwritten ones too."""
        if self._expected_keys is not None:
            return self._expected_keys
        return self._database.property_int_value("rocksdb.estimate-num-keys") or 0

    @property
    def resident_bytes(self) -> int:
        """Size of indexes and filters of the open tables, which RocksDB holds outside the cache."""
        return self._database.property_int_value("rocksdb.estimate-table-readers-mem") or 0

    @cached_property
    def stored_bytes(self) -> int:
        """Size of its tables, as they are compressed."""
        return sum(table["size"] for table in self._database.live_files())

    def remove_when_unused(self) -> None:
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)

    def close(self) -> None:
        self._column_family.close()
        self._database.close()

    def _items(self, start: bytes | None, bounds: ReadOptions) -> Iterator[tuple[bytes, bytes]]:
        return self._column_family.items(from_key=start, read_opt=bounds)  # type: ignore[return-value]

    def _check_end(self, last: bytes | None, start: bytes | None, bounds: ReadOptions) -> None:
        """Raise if iteration ended at an error: only a new iterator set on `last` can distinguish that from the end."""
        probe = self._column_family.iter(bounds)
        if last is not None:
            probe.seek(last)
            if probe.valid():
                probe.next()
        elif start is not None:
            probe.seek(start)
        else:
            probe.seek_to_first()
        try:
            probe.status()
        except Exception as error:
            raise self._unreadable(error) from error
        if probe.valid():
            raise self._unreadable(f"iteration stopped after {last!r}, which is not the last key")

    def _check_record_count(self) -> None:
        """Require a live record for every key: fewer of those mean that tables are missing."""
        if self._expected_keys is None:
            return
        records = sum(table["num_entries"] - table["num_deletions"] for table in self._database.live_files())
        if records < self._expected_keys:
            raise CorruptFileError(
                f"its tables hold {records} records for {self._expected_keys} keys",
                where=str(self.directory),
                fix=_RESTORE,
            )

    def _unreadable(self, reason: object) -> CorruptFileError:
        return CorruptFileError(f"RocksDB cannot read its base: {reason}", where=str(self.directory), fix=_RESTORE)


def _up_to(end: bytes | None) -> ReadOptions:
    bounds = ReadOptions()
    if end is not None:
        bounds.set_iterate_upper_bound(end)
    return bounds


_RESTORE: Final = "Restore this partition again from the checkpoint"


def _check_options(directory: Path) -> None:
    """Refuse, before opening, a directory without a database, and a database whose merge operator would lose keys."""
    if not (directory / "CURRENT").is_file():
        # RocksDB and its binding would create the directory and find nothing in it.
        raise CorruptFileError("there is no RocksDB here: CURRENT is missing", where=str(directory), fix=_RESTORE)
    # RocksDB, too, takes the options file with the highest number.
    files = sorted(directory.glob("OPTIONS-*[0-9]"), key=lambda path: int(path.name.rpartition("-")[2]))
    if not files:
        raise CorruptFileError(
            "OPTIONS is missing, and without its merge operator RocksDB leaves keys out",
            where=str(directory),
            fix=_RESTORE,
        )
    options = dict(_OPTION_LINE.findall(files[-1].read_text("utf-8", errors="replace")))
    operator, comparator = options.get("merge_operator", ""), options.get("comparator", _COMPARATOR)
    if not _MERGE_OPERATORS.fullmatch(operator):
        raise UnsupportedError(
            f"merge operator {operator!r} lacks its delimiter, or is not Spark's",
            where=str(files[-1]),
            fix="Write the delimiter of the query's mergeOperatorVersion into OPTIONS before opening",
        )
    if comparator != _COMPARATOR:
        raise UnsupportedError(
            f"the key order is {comparator!r}", where=str(files[-1]), fix=f"Only {_COMPARATOR} is read"
        )
