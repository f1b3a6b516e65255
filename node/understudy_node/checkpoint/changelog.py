"""Decodes the changes of one version: HDFS `.delta` files (`HDFSBackedStateStoreProvider`) and RocksDB `.changelog`
files, v1 to v4 (`StateStoreChangelogWriter`), once decompressed.

Rule: a file is decoded whole or refused; without its end mark, or with bytes after it, it is corrupt. Keys and values
stay the bytes that Spark stored (UnsafeRow; in RocksDB with their leading version byte and column family id), and only
row checksums are stripped. This is the catch-up path: runs of records of one size are split by C code, the others by a
tight loop. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

import google_crc32c

from understudy_node.checkpoint.logs import checked, field, parse_json
from understudy_shared.base.errors import CorruptFileError, UnsupportedError

Form = Literal["delta", "changelog"]
OperationKind = Literal["put", "delete", "merge", "delete-range"]

DEFAULT_SLICE_RECORDS: Final = 20_000
"""Number of records in a slice, about 10 ms of decoding: heartbeats and lookups do not notice it."""

_INT = struct.Struct(">i")
_END_OF_PLAIN: Final = b"\xff\xff\xff\xff"
_END_OF_TAGGED: Final = b"\x00"
_PUT, _DELETE, _MERGE, _DELETE_RANGE, _END = 0x01, 0x10, 0x11, 0x20, 0x00
_TAGS: Final = ("v2", "v3", "v4")
_FIRST_RUN = 8
_LONGEST_WAIT = 1024
_FIRST_WINDOW = 128
"""Number of records that are looked ahead at first: most commits change fewer in a partition."""


@dataclass(frozen=True, slots=True)
class LineageItem:
    """A version and the unique id of the attempt that wrote it."""

    version: int
    unique_id: str


@dataclass(frozen=True, slots=True)
class ChangelogOperation:
    """A record in file order. `value`: a merge's operand, a delete-range's exclusive end, `None` for a delete."""

    kind: OperationKind
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Changelog:
    """The changes of a file, or of a slice of it: first all of `changes` (`None` = deleted), then `operations` in
    order.

    `operations` is empty unless the file has merges or range deletes: it holds everything from the first of them on.
    `lineage` is the file's (format v2 only), from the last snapshot's version up to the version before this one.
    """

    lineage: tuple[LineageItem, ...] | None
    changes: dict[bytes, bytes | None]
    operations: tuple[ChangelogOperation, ...]
    record_count: int


@dataclass(frozen=True, slots=True)
class ChangelogHeader:
    """The part of a file before its first record."""

    tagged: bool
    lineage: tuple[LineageItem, ...] | None
    records_start: int


def iter_changelog_slices(
    raw: bytes, *, name: str, form: Form, row_checksum: bool = False, max_records: int = DEFAULT_SLICE_RECORDS
) -> Iterator[Changelog]:
    """Decode a file in slices of at most `max_records`, to be applied in order; at least one, possibly empty.

    A missing end mark raises before the first slice, other damage only when it is reached: publish nothing of the file
    until the iterator is exhausted.
    """
    header = parse_header(raw, name=name, form=form)
    # First, because it is cheap: a file that was cut short does not cost the decoding of all before the cut.
    if not raw.endswith(_END_OF_TAGGED if header.tagged else _END_OF_PLAIN):
        raise _corrupt("no end mark: the file is truncated", name=name, position=len(raw))
    decoder = _Decoder(raw, header.records_start, name=name, form=form, row_checksum=row_checksum)
    while not decoder.done:
        changes: dict[bytes, bytes | None] = {}
        before = decoder.record_count
        operations = decoder.decode(changes, max_records, tagged=header.tagged)
        yield Changelog(header.lineage, changes, tuple(operations), decoder.record_count - before)


def parse_header(raw: bytes, *, name: str, form: Form) -> ChangelogHeader:
    """Decode the header alone: enough to check a changelog's lineage before decoding it."""
    # A version line is Java's modified UTF-8: length 2, then "v2". In v1, without that line, the file begins with the
    # length of a key: these bytes would be one of 160 kB.
    if form == "delta" or not (raw.startswith(b"\x00\x02v") and raw[3:4].isdigit()):
        return ChangelogHeader(tagged=False, lineage=None, records_start=0)
    tag = raw[2:4].decode()
    if tag not in _TAGS:
        raise UnsupportedError(
            f"Changelog version {tag} is not supported",
            where=name,
            fix="Supported: v1, v2, v3, v4. A newer Spark wrote it: use a newer Understudy",
        )
    # v2 and v4 have tagged records, v1 and v3 plain ones; v3 and v4 begin with a lineage.
    if tag == "v2":
        return ChangelogHeader(tagged=True, lineage=None, records_start=4)
    end = 6 + int.from_bytes(raw[4:6], "big")
    if len(raw) < max(end, 6):
        raise _corrupt("ends inside the lineage", name=name, position=len(raw))
    items = checked(parse_json(raw[6:end], name=name), list, "the lineage", name=name)
    lineage = tuple(_lineage_item(item, name=name) for item in items)
    return ChangelogHeader(tagged=tag == "v4", lineage=lineage, records_start=end)


def _lineage_item(item: object, *, name: str) -> LineageItem:
    body = checked(item, dict, "a lineage item", name=name)
    return LineageItem(field(body, "version", int, name=name), field(body, "checkpointUniqueId", str, name=name))


def _corrupt(what: str, *, name: str, position: int, record: int | None = None) -> CorruptFileError:
    where = f"{name}, byte {position} of its content" + ("" if record is None else f", record {record}")
    return CorruptFileError(
        f"Corrupt state file: {what}", where=where, fix="The replica restores from the next committed snapshot"
    )


class _Decoder:
    """The decoder of one file from a position on; records are numbered from 1."""

    def __init__(self, raw: bytes, position: int, *, name: str, form: Form, row_checksum: bool) -> None:
        self._raw = raw
        self._position = position
        self._name = name
        self._row_checksum = row_checksum
        self._strip_value = strip_hdfs_value if form == "delta" else strip_rocksdb_value
        self._in_operations = False
        self.record_count = 0
        self.done = False

    def decode(self, changes: dict[bytes, bytes | None], max_records: int, *, tagged: bool) -> list[ChangelogOperation]:
        """Decode up to `max_records` more records; sets `done` once the file ends with the end mark."""
        if tagged:
            return self._decode_tagged(changes, max_records)
        # Two loops: files without checksums, which most are, pay nothing for those that have them.
        if self._row_checksum:
            self._decode_plain_checked(changes, max_records)
        else:
            self._decode_plain(changes, max_records)
        return []

    def _decode_plain(self, changes: dict[bytes, bytes | None], max_records: int) -> None:
        """Decode record by record; after several of equal size in a row, decode the whole run with `iter_unpack`."""
        raw, end, unpack = self._raw, len(self._raw), _INT.unpack_from
        position, left = self._position, max_records
        run_key_size, run_value_size, run, wait = -1, -1, 0, _FIRST_RUN
        while left:
            try:
                (key_size,) = unpack(raw, position)
                value_start = position + 8 + key_size
                (value_size,) = unpack(raw, value_start - 4)
            # The end of the file: fall through to `_measure`, which tells the end mark from damage.
            except struct.error:
                key_size = value_size = value_start = -2
            value_end = value_start + value_size
            if key_size < 0 or value_size < -1 or value_end > end:
                self._measure(position, max_records - left)  # accepts the end mark, raises on anything else
                break
            left -= 1
            if value_size < 0:
                changes[raw[position + 4 : value_start - 4]] = None
                position = value_start
                continue
            changes[raw[position + 4 : value_start - 4]] = raw[value_start:value_end]
            position = value_end
            if key_size != run_key_size or value_size != run_value_size:
                run_key_size, run_value_size, run = key_size, value_size, 0
                continue
            run += 1
            if run == wait:
                count = _count_run(raw, position, key_size, value_size, left)
                # A short run did not repay looking ahead: require a longer one before the next.
                run, wait = 0, (_FIRST_RUN if count >= 4 * wait else min(2 * wait, _LONGEST_WAIT))
                run_end = position + count * (8 + key_size + value_size)
                changes.update(struct.iter_unpack(f">4x{key_size}s4x{value_size}s", memoryview(raw)[position:run_end]))
                position = run_end
                left -= count
        self._position = position
        self.record_count += max_records - left

    def _decode_plain_checked(self, changes: dict[bytes, bytes | None], max_records: int) -> None:
        raw, position = self._raw, self._position
        for done in range(max_records):
            value_start, value_end = self._measure(position, done)
            if value_start < 0:
                self.record_count += done
                self._position = position
                return
            key, value = self._stripped(
                raw[position + 4 : value_start - 4], raw[value_start:value_end] if value_end >= 0 else None, done
            )
            changes[key] = value
            position = value_end if value_end >= 0 else value_start
        self.record_count += max_records
        self._position = position

    def _decode_tagged(self, changes: dict[bytes, bytes | None], max_records: int) -> list[ChangelogOperation]:
        raw, position = self._raw, self._position
        operations: list[ChangelogOperation] = []
        for done in range(max_records):
            kind = raw[position] if position < len(raw) else self._fail("ends before a record", position, done)
            if kind == _END:
                self._finish(position + 1, done)
                self.record_count += done
                return operations
            value_start, value_end = self._measure(position + 1, done)
            has_value = value_end >= 0
            if value_start < 0 or kind not in _KINDS or has_value != (kind != _DELETE):
                self._fail(f"impossible record of type 0x{kind:02x}", position, done)
            key, value = raw[position + 5 : value_start - 4], raw[value_start:value_end] if has_value else None
            if self._row_checksum and kind != _DELETE_RANGE:
                key, value = self._stripped(key, value, done)
            # Order matters from the first merge or range delete on: until then the last change of a key is enough.
            self._in_operations = self._in_operations or kind in {_MERGE, _DELETE_RANGE}
            if self._in_operations:
                operations.append(ChangelogOperation(_KINDS[kind], key, value))
            else:
                changes[key] = value
            position = value_end if has_value else value_start
        self.record_count += max_records
        self._position = position
        return operations

    def _measure(self, position: int, done: int) -> tuple[int, int]:
        """Return start and end of the value of the record at `position`; end -1: a delete, both -1: the end mark."""
        raw, end = self._raw, len(self._raw)
        if position + 4 > end:
            self._fail("ends inside a key's length", end, done)
        key_size: int = _INT.unpack_from(raw, position)[0]
        if key_size == -1:
            self._finish(position + 4, done)
            return -1, -1
        value_start = position + 8 + key_size
        if key_size < -1 or value_start > end:
            self._fail(f"key of {key_size} bytes does not fit", position, done)
        value_size: int = _INT.unpack_from(raw, value_start - 4)[0]
        if value_size < -1 or value_start + value_size > end:
            self._fail(f"value of {value_size} bytes does not fit", value_start - 4, done)
        return value_start, (-1 if value_size == -1 else value_start + value_size)

    def _stripped(self, key: bytes, value: bytes | None, done: int) -> tuple[bytes, bytes | None]:
        try:
            if value is None:
                return strip_deleted_key(key), None
            return key, self._strip_value(key, value)
        except ChecksumError as error:
            return self._fail(str(error), self._position, done)

    def _finish(self, position: int, done: int) -> None:
        if position != len(self._raw):
            self._fail("bytes after the end mark", position, done)
        self.done = True

    def _fail(self, what: str, position: int, done: int) -> NoReturn:
        raise _corrupt(what, name=self._name, position=position, record=self.record_count + done + 1)


_KINDS: Final[dict[int, OperationKind]] = {
    _PUT: "put",
    _DELETE: "delete",
    _MERGE: "merge",
    _DELETE_RANGE: "delete-range",
}


def _count_run(raw: bytes, position: int, key_size: int, value_size: int, most: int) -> int:
    """Count the records from `position` on with exactly these sizes, looking ahead in growing windows."""
    size = 8 + key_size + value_size
    most = min(most, (len(raw) - position) // size)
    lengths = [*enumerate(_INT.pack(key_size)), *enumerate(_INT.pack(value_size), 4 + key_size)]
    # Each byte of the two lengths as a column over all records of the window, the low bytes first: they differ soonest.
    columns = [(offset, bytes((byte,))) for offset, byte in reversed(lengths)]
    count, window = 0, _FIRST_WINDOW
    while count < most:
        same = width = min(window, most - count)
        start, end = position + count * size, position + (count + width) * size
        for offset, byte in columns:
            same = min(same, width - len(raw[start + offset : end : size].lstrip(byte)))
        count += same
        if same < width:
            break
        window *= 8
    return count


_CRC = struct.Struct("<I")
_CRC_AND_LENGTH = struct.Struct("<Ii")


class ChecksumError(ValueError):
    """A row does not match its checksum, or has no room for one. The caller knows file and record."""


def strip_deleted_key(stored: bytes) -> bytes:
    """Return the key of a delete record without its leading 4 bytes."""
    key = stored[_CRC.size :]
    if len(stored) < _CRC.size or google_crc32c.value(key) != _CRC.unpack_from(stored)[0]:
        raise ChecksumError("the deleted key does not match its checksum")
    return key


def strip_hdfs_value(key: bytes, stored: bytes) -> bytes:
    """Return the value row without its leading 4 bytes."""
    row = stored[_CRC.size :]
    if len(stored) < _CRC.size or google_crc32c.value(key + row) != _CRC.unpack_from(stored)[0]:
        raise ChecksumError("the row does not match its checksum")
    return row


def strip_rocksdb_value(key: bytes, stored: bytes, *, delimiter: bytes = b"") -> bytes:
    """Return the value without the 8 bytes before each merged part; also for values read from Spark's own SST files.

    `delimiter` is the merge operator's (`,` for merge operator version 1); it stays between the parts.
    """
    end = len(stored)
    parts: list[bytes] = []
    position = 0
    while True:
        start = position + _CRC_AND_LENGTH.size
        if start > end:
            raise ChecksumError("the value ends inside a checksum")
        crc, length = _CRC_AND_LENGTH.unpack_from(stored, position)
        position = start + length
        if length < 0 or position > end:
            raise ChecksumError("the value is shorter than its recorded length")
        part = stored[start:position]
        if google_crc32c.value(key + part) != crc:
            raise ChecksumError("the row does not match its checksum")
        # Nearly always: a value that was never merged.
        if position == end and not parts:
            return part
        parts.append(part)
        if position == end:
            return delimiter.join(parts)
        # An empty delimiter is always there.
        if not stored.startswith(delimiter, position):
            raise ChecksumError("merged values have no delimiter between them")
        position += len(delimiter)
