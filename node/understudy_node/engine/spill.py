"""Changes moved out of memory: a private RocksDB between the dict tiers and the base, used while no newer base comes.

The rule: a spill is as immutable as a tier. The next one starts from hard links to its files and adds what is new, so
that there is one spill at a time, its cost is that of the new changes, and readers in flight keep the old one.

Values carry a tag byte, which distinguishes a deleted key from a key that the spill does not have.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from understudy_node.engine.rocksdb_base import BlockCache, RocksBase
from understudy_node.engine.tier import Tier
from understudy_shared.base.errors import CorruptFileError

_LIVE: Final = b"\x01"
_DELETED: Final = b"\x00"
# rocksdict's write holds the GIL, 0.8 us per record: a batch of this size holds it for under 1 ms.
_BATCH_RECORDS: Final = 1_000
# Each spill adds a file; beyond this many, lookups of absent keys would pay for it, and they are compacted into one.
_FILES_MAX: Final = 8
_RANGE_FILE: Final = "versions.json"


class Word(NamedTuple):
    """A key's last change in a spill: a value, or None for a delete."""

    value: bytes | None


class Spill:
    """The last change of every key touched in `first_version..last_version`."""

    __slots__ = ("_database", "first_version", "last_version")

    def __init__(self, database: RocksBase, *, first_version: int, last_version: int) -> None:
        self._database = database
        self.first_version = first_version
        self.last_version = last_version

    @classmethod
    def open(cls, directory: Path, *, cache: BlockCache) -> Spill:
        """Open a finished spill of this or an earlier process."""
        try:
            first, last = json.loads((directory / _RANGE_FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise CorruptFileError("this spill was never finished", where=str(directory), fix="Delete it") from error
        database = RocksBase.open(directory, cache=cache, expected_keys=None)
        return cls(database, first_version=first, last_version=last)

    def __repr__(self) -> str:
        return f"Spill({self.first_version}..{self.last_version}, {self._database.directory})"

    @property
    def directory(self) -> Path:
        return self._database.directory

    @property
    def resident_bytes(self) -> int:
        return self._database.resident_bytes

    @property
    def stored_bytes(self) -> int:
        return self._database.stored_bytes

    @property
    def open_files(self) -> int:
        return self._database.open_files

    def find(self, key: bytes) -> Word | None:
        """Return the key's last change; None when the spill does not have the key."""
        return _untagged(self._database.get(key))

    def find_many(self, keys: Sequence[bytes]) -> list[Word | None]:
        return [_untagged(tagged) for tagged in self._database.get_many(keys)]

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        return (
            (key, tagged[1:] if tagged.startswith(_LIVE) else None) for key, tagged in self._database.scan(start, end)
        )

    def remove_when_unused(self) -> None:
        """Delete the directory once the last view and reader of this spill is gone."""
        self._database.remove_when_unused()

    def close(self) -> None:
        self._database.close()


def write_spill(tiers: Sequence[Tier], directory: Path, *, below: Spill | None) -> Iterator[int]:
    """Write `tiers` (newest first) over what `below` holds into the new `directory`, in bounded steps.

    Yields the records written so far; only when it is exhausted can `Spill.open` open the directory. Views go on
    publishing meanwhile: `View.with_spill` drops exactly the tiers that are in it.
    """
    assert tiers, "a spill needs tiers"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    if below is not None:
        _link_tables(below.directory, directory)
    database = Rdict(str(directory), _writing_options())
    unlogged = WriteOptions()
    unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # a property, its stub says method
    written = 0
    for tier in reversed(tiers):
        records = iter(tier.changes.items())
        while chunk := list(islice(records, _BATCH_RECORDS)):
            batch = WriteBatch(raw_mode=True)
            for key, value in chunk:
                batch.put(key, _DELETED if value is None else _LIVE + value)
            database.write(batch, unlogged)
            written += len(chunk)
            yield written
    database.flush()
    if len(database.live_files()) > _FILES_MAX:
        database.compact_range(None, None)
    database.close()
    first = below.first_version if below is not None else tiers[-1].first_version
    (directory / _RANGE_FILE).write_text(json.dumps([first, tiers[0].last_version]))
    yield written


def _untagged(tagged: bytes | None) -> Word | None:
    if tagged is None:
        return None
    return Word(tagged[1:] if tagged.startswith(_LIVE) else None)


def _link_tables(source: Path, target: Path) -> None:
    """Link tables, copy files that RocksDB rewrites in place, and leave out those that belong to the old copy."""
    for path in source.iterdir():
        if path.suffix == ".sst":
            os.link(path, target / path.name)
        elif path.name not in {_RANGE_FILE, "LOCK"} and not path.name.startswith("LOG"):
            shutil.copyfile(path, target / path.name)


def _writing_options() -> Options:
    table = BlockBasedOptions()
    table.set_bloom_filter(10, block_based=False)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_disable_auto_compactions(True)
    options.set_keep_log_file_num(1)
    return options
