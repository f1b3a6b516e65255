"""One version of a store partition: dict tiers of changes over an optional spill over a read-only base.

The rule: nothing that a view refers to is ever changed. Publishing a version is swapping one reference, and a reader in
flight keeps the version it started with by keeping its view. A layer that spans the base's version may stay on top of
it: each of its entries is newer than the base's, or equal.

Small tiers are merged into new ones so that a lookup probes few of them. No merge is large enough to hold up the
process: merging copies dicts at C speed, but holds the GIL while it does. A spill holds changes moved out of memory: a
private RocksDB that is used until a newer base comes. The next one starts from hard links to its files, so it costs
only the new changes, and readers in flight keep the old one.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from pathlib import Path
from sys import getsizeof
from typing import Final

from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from understudy_node.engine.base import UNKNOWN, Base, Found
from understudy_node.engine.rocksdb_base import BlockCache, RocksBase
from understudy_shared.base.errors import CorruptFileError


def newer_over_older(
    newer: Iterator[tuple[bytes, bytes | None]], older: Iterator[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Merge two streams in key order; keeps deletes, because they may hide records of a lower layer."""
    above = next(newer, None)
    if above is None:
        yield from older
        return
    for record in older:
        while above is not None and above[0] < record[0]:
            yield above
            above = next(newer, None)
        if above is None:
            yield record
            break
        if above[0] == record[0]:
            yield above
            above = next(newer, None)
        else:
            yield record
    if above is not None:
        yield above
        yield from newer
    else:
        yield from older


def records_of(
    newer: Iterator[tuple[bytes, bytes | None]], base: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Merge the changes of all layers over the lowest one in key order, without what they deleted."""
    key, value = next(newer, _END)
    for record in base:
        is_changed = False
        while key is not None and key <= record[0]:
            is_changed = key == record[0]
            if value is not None:
                yield key, value
            key, value = next(newer, _END)
        if not is_changed:
            yield record
        if key is None:
            break
    while key is not None:
        if value is not None:
            yield key, value
        key, value = next(newer, _END)
    yield from base


_END: tuple[None, None] = None, None


# 0.1 us per entry: one merge stays below 5 ms. Tiers beyond this size stay apart, at 0.04 us per tier and lookup
# (a base costs 3 us or more); the overlay's budget in bytes bounds their number.
TIER_ENTRIES_MAX: Final = 32_768
# Two bytes objects of 33 bytes plus content, each rounded up to 16 by the allocator: 2 x (33 + 8) on average.
_ENTRY_OVERHEAD_BYTES: Final = 82
_POINTER_BYTES: Final = 8
# One C call over this many entries holds the GIL for well below a millisecond.
_MEASURE_STEP_ENTRIES: Final = 4_096


class Tier:
    """The last change of every key touched in `first_version..last_version`; None is a delete."""

    __slots__ = ("_changes_bytes", "changes", "first_version", "last_version", "sorted_keys")

    def __init__(self, changes: Mapping[bytes, bytes | None], *, first_version: int, last_version: int) -> None:
        self.changes = changes
        self.first_version = first_version
        self.last_version = last_version
        self.sorted_keys: list[bytes] | None = None
        self._changes_bytes = measured_bytes(changes)

    def __repr__(self) -> str:
        return (
            f"Tier({self.first_version}..{self.last_version}, {len(self.changes)} entries, {self.resident_bytes} bytes)"
        )

    @property
    def resident_bytes(self) -> int:
        """Its own memory: table, keys, values, and the key order once a scan needed it."""
        return self._changes_bytes + (_POINTER_BYTES * len(self.changes) if self.sorted_keys is not None else 0)

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        keys = self.prepare_scan()
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if end is None else bisect_left(keys, end)
        changes = self.changes
        return ((keys[at], changes[keys[at]]) for at in range(first, last))

    def prepare_scan(self) -> list[bytes]:
        """Return the keys in order, sorted once."""
        # Two threads may both sort: the lists are equal, and either may be kept.
        keys = self.sorted_keys
        if keys is None:
            keys = self.sorted_keys = sorted(self.changes)
        return keys


def with_newest(tiers: tuple[Tier, ...], newest: Tier) -> tuple[Tier, ...]:
    """Put `newest` on top (tiers are newest first), merged down while it is at least half as large as the next."""
    rest = list(tiers)
    while rest:
        size, next_size = len(newest.changes), len(rest[0].changes)
        if size * 2 < next_size or size + next_size > TIER_ENTRIES_MAX:
            break
        older = rest.pop(0)
        newest = Tier(
            {**older.changes, **newest.changes}, first_version=older.first_version, last_version=newest.last_version
        )
    return (newest, *rest)


def without_settled(tiers: tuple[Tier, ...], version: int) -> tuple[Tier, ...]:
    """Return the tiers with changes after `version`. One that spans it stays whole: old entries equal the base's."""
    return tuple(tier for tier in tiers if tier.last_version > version)


def measured_bytes(changes: Mapping[bytes, bytes | None]) -> int:
    keys, values = iter(changes), filter(None, changes.values())
    content = 0
    for _ in range(0, len(changes), _MEASURE_STEP_ENTRIES):
        content += sum(map(len, islice(keys, _MEASURE_STEP_ENTRIES)))
        content += sum(map(len, islice(values, _MEASURE_STEP_ENTRIES)))
    return getsizeof(changes) + content + _ENTRY_OVERHEAD_BYTES * len(changes)


def release_tiers(tiers: list[Tier]) -> Generator[None, None, None]:
    """Drop replaced tiers one step at a time: freeing 100,000 entries at once would hold the GIL for 10 ms.

    Pass `list(old_view.tiers)`, publish the new view, then let a worker exhaust this generator.
    """
    while tiers:
        tiers.pop()
        yield


_LIVE: Final = b"\x01"
_DELETED: Final = b"\x00"
# rocksdict's write holds the GIL, 0.8 us per record: a batch of this size holds it for under 1 ms.
_BATCH_RECORDS: Final = 1_000
# Each spill adds a file; beyond this many, lookups of absent keys would pay for it, and they are compacted into one.
_FILES_MAX: Final = 8
_RANGE_FILE: Final = "versions.json"


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

    def find(self, key: bytes) -> Found:
        """Return the key's last change, None for a delete; UNKNOWN when the spill does not have the key."""
        return _untagged(self._database.get(key))

    def find_many(self, keys: Sequence[bytes]) -> list[Found]:
        return [_untagged(tagged) for tagged in self._database.get_many(keys)]

    def scan(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        return (
            (key, tagged[1:] if tagged.startswith(_LIVE) else None) for key, tagged in self._database.scan(start, end)
        )

    def remove_when_unused(self) -> None:
        self._database.remove_when_unused()

    def close(self) -> None:
        self._database.close()


def write_spill(tiers: Sequence[Tier], directory: Path, *, below: Spill | None) -> Iterator[int]:
    """Write `tiers` (newest first) over what `below` holds into the new `directory`, in bounded steps.

    Yields the records written so far; only when it is exhausted can `Spill.open` open the directory. Views go on
    publishing meanwhile: `StateView.with_spill` drops exactly the tiers that are in it.
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


def _untagged(tagged: bytes | None) -> Found:
    if tagged is None:
        return UNKNOWN
    return tagged[1:] if tagged.startswith(_LIVE) else None


def _link_tables(source: Path, target: Path) -> None:
    """Link tables, copy files that RocksDB rewrites in place, and skip files that belong to the old copy."""
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


class StateView:
    """The state at `version`: `base` as of `base_version`, and the changes since."""

    __slots__ = ("_dicts", "base", "base_version", "spill", "tiers", "version")

    def __init__(
        self, base: Base, *, version: int, base_version: int, tiers: tuple[Tier, ...] = (), spill: Spill | None = None
    ) -> None:
        assert base_version <= version, f"a base at {base_version} is ahead of its view at {version}"
        self.base = base
        self.base_version = base_version
        self.version = version
        self.tiers = tiers
        """The tiers, newest first."""
        self.spill = spill
        self._dicts = tuple(tier.changes for tier in tiers)

    @classmethod
    def of(cls, base: Base, version: int) -> StateView:
        return cls(base, version=version, base_version=version)

    def __repr__(self) -> str:
        spill = f", {self.spill!r}" if self.spill else ""
        return f"StateView(version={self.version}, base={self.base_version}{spill}, tiers={list(self.tiers)})"

    @property
    def overlay_bytes(self) -> int:
        """Memory of the changes, which a new base or a spill would free."""
        return sum(tier.resident_bytes for tier in self.tiers)

    @property
    def resident_bytes(self) -> int:
        """Overlay, spill and base together; the block cache that bases share is not in it."""
        return self.overlay_bytes + (self.spill.resident_bytes if self.spill else 0) + self.base.resident_bytes

    @property
    def stored_bytes(self) -> int:
        """Size of its records, in files and memory: about what a new replica has to read."""
        return self.overlay_bytes + (self.spill.stored_bytes if self.spill else 0) + self.base.stored_bytes

    def get(self, key: bytes) -> bytes | None:
        for changes in self._dicts:
            if key in changes:
                return changes[key]
        if self.spill is not None:
            spilled = self.spill.find(key)
            if spilled is not UNKNOWN:
                return spilled
        return self.base.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return values in the order of `keys`. Keys that the overlay lacks are read from the base in one call."""
        if self.spill is None and all(changes.keys().isdisjoint(keys) for changes in self._dicts):
            return self.base.get_many(keys)
        answers: list[bytes | None] = [None] * len(keys)
        unknown: list[int] = []
        # Tiers, spill and base in one function: calls between them would cost every batch.
        for position, key in enumerate(keys):
            for changes in self._dicts:
                if key in changes:
                    answers[position] = changes[key]
                    break
            else:
                unknown.append(position)
        if self.spill is not None and unknown:
            found = self.spill.find_many([keys[position] for position in unknown])
            asked, unknown = unknown, []
            for position, spilled in zip(asked, found, strict=True):
                if spilled is UNKNOWN:
                    unknown.append(position)
                else:
                    answers[position] = spilled
        if unknown:
            values = self.base.get_many([keys[position] for position in unknown])
            for position, value in zip(unknown, values, strict=True):
                answers[position] = value
        return answers

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield records with `start <= key < end` in byte order, all of this version however long the reader takes."""
        layers: list[Iterator[tuple[bytes, bytes | None]]] = [tier.scan(start, end) for tier in self.tiers]
        if self.spill is not None:
            layers.append(self.spill.scan(start, end))
        base = self.base.scan(start, end)
        if not layers:
            return base
        # The small layers first, so that a record of the base, the long one, passes through one merge only.
        return records_of(reduce(newer_over_older, layers), base)

    def changes_since(self, version: int) -> tuple[Mapping[bytes, bytes | None], ...] | None:
        """Return mappings with every key that changed after a version, and some that did not; None if the base or the
        spill may hold such a change.
        """
        spilled = 0 if self.spill is None else self.spill.last_version
        if max(self.base_version, spilled) > version:
            return None
        return tuple(tier.changes for tier in without_settled(self.tiers, version))

    @property
    def is_prepared(self) -> bool:
        """Whether a scan has nothing to sort first."""
        return not self.base.has_background_work and None not in [tier.sorted_keys for tier in self.tiers]

    def prepare_scan(self) -> None:
        """Sort the keys for the first scan now, in this thread, so that no reader waits for it."""
        for tier in self.tiers:
            tier.prepare_scan()
        self.base.prepare_scan()

    def with_changes(self, changes: Mapping[bytes, bytes | None], version: int) -> StateView:
        """Return the view after one or several more versions. `changes` is given away: never change it again."""
        assert version > self.version, f"version {version} is not newer than {self.version}"
        tiers = self.tiers
        if changes:
            tiers = with_newest(tiers, Tier(changes, first_version=self.version + 1, last_version=version))
        return StateView(self.base, version=version, base_version=self.base_version, tiers=tiers, spill=self.spill)

    def with_base(self, base: Base, base_version: int) -> StateView:
        """Return the same version on a newer base; layers that the base already contains are dropped."""
        assert self.base_version <= base_version <= self.version, (
            f"a base at {base_version} does not fit between {self.base_version} and {self.version}"
        )
        spill = self.spill if self.spill is not None and self.spill.last_version > base_version else None
        tiers = without_settled(self.tiers, base_version)
        return StateView(base, version=self.version, base_version=base_version, tiers=tiers, spill=spill)

    def with_spill(self, spill: Spill) -> StateView:
        """Return the same version with `spill`, written from an earlier version of this view, in place of the tiers it
        holds.

        When a newer base overtook the spill while it was written, the view is returned unchanged.
        """
        assert spill.last_version <= self.version, f"a spill up to {spill.last_version} is ahead of {self.version}"
        held = self.spill.last_version if self.spill is not None else self.base_version
        if spill.last_version <= max(held, self.base_version):
            return self
        tiers = without_settled(self.tiers, spill.last_version)
        return StateView(self.base, version=self.version, base_version=self.base_version, tiers=tiers, spill=spill)


_FAMILY: Final = struct.Struct("<h")
FAMILY_BYTES: Final = _FAMILY.size


@dataclass(frozen=True, slots=True)
class StateTable:
    """A store of its own, or a column family of one."""

    store: str
    family: str | None = None

    def __str__(self) -> str:
        return self.family or self.store

    def is_in(self, view: StateView) -> bool:
        """Whether there is such a table. Spark makes the families of state variables with a partition's first row, and
        a version that brings one is not shown before its snapshot was read: so a missing one is empty.
        """
        return self.family is None or self.family in view.base.families

    def first_bytes(self, view: StateView) -> bytes:
        """Return the prefix of its keys: the id of the family, which only a snapshot has."""
        if self.family is None:
            return b""
        family_id = view.base.families.get(self.family)
        if family_id is None:
            raise CorruptFileError(f"the snapshot has no column family {self.family}", where=f"store {self.store}")
        return _FAMILY.pack(family_id)


def brings_families(known: Mapping[str, int], keys: Iterable[bytes]) -> bool:
    """Whether there are keys of families other than the known ones."""
    return not {key[:FAMILY_BYTES] for key in keys} <= {_FAMILY.pack(family_id) for family_id in known.values()}
