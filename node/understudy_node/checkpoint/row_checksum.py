"""Verifies and strips Spark's per-row checksums (`stateStore.rowChecksum.enabled`, Spark 4.2 and later;
`KeyValueChecksumEncoder`).

CRC32C over key and value as stored. HDFS-backed: `crc | row`. RocksDB: `crc | length | value`, repeated when values
were merged. A deleted key is `crc | key` in both. Integers are little-endian. Rule: a row that fails its checksum is
never returned. Pure.
"""

from __future__ import annotations

import struct

import google_crc32c

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
