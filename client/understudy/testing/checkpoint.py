"""A checkpoint on local disk, as Spark's HDFS-backed provider writes it, for the stores that a test declares.

Each store is a grouped aggregation with one value for each key: the store with number N is operator N.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cramjam

from understudy.testing.stores import Change, DeclaredStore
from understudy_shared.spark.json_values import RowParser, compile_json_parser
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.schema_json import schema_json
from understudy_shared.spark.unsafe_row import RowEncoder, compile_row_encoder

_CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.compression.codec": "zstd",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
}
_MAX_UTF_BYTES = 65_535
"""Longest text of Java's `writeUTF`; Spark cuts longer schemas."""

_MINUS_ONE = struct.pack(">i", -1)
"""The length of a value that is deleted, and the end of a delta."""

_Record = tuple[bytes, bytes | None]


class _Writer(NamedTuple):
    """The codecs of one store."""

    codec: KeyCodec
    parse_value: RowParser
    encode_value: RowEncoder

    def record(self, change: Change, partitions: int) -> tuple[int, _Record]:
        """Return the partition of a change, and the bytes that Spark would write. Raises BadKeyError."""
        key, value = change
        row = self.codec.parse_json(key)
        stored = None if value is None else self.encode_value(self.parse_value(value))
        return self.codec.partition(row, partitions), (self.codec.encode(row), stored)


class Checkpoint:
    """A checkpoint in a new folder. One thread commits; `version` is the last one."""

    def __init__(self, path: Path, stores: Mapping[str, DeclaredStore], partitions: int) -> None:
        """Write what comes before the first batch."""
        self.version = 0
        self._partitions = partitions
        self._path, self._elsewhere = path, path.with_name(f"{path.name}.away")
        self._folder = path
        self._writers = {
            name: _Writer(KeyCodec(each.key), compile_json_parser(each.value), compile_row_encoder(each.value))
            for name, each in stores.items()
        }
        for folder in ("commits", "offsets"):
            (path / folder).mkdir(parents=True)
        self._write("metadata", _json({"id": str(uuid.uuid4())}))
        for number, each in enumerate(stores.values()):
            for partition in range(partitions):
                (path / f"state/{number}/{partition}").mkdir(parents=True)
            operator = {
                "operatorInfo": {"operatorId": number, "operatorName": "stateStoreSave"},
                "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}],
            }
            self._write(f"state/{number}/_metadata/metadata", b"v1\n" + _json(operator))
            schema = _utf(b"v2") + _chunked(schema_json(each.key)) + _chunked(schema_json(each.value))
            self._write(f"state/{number}/0/_metadata/schema", schema)

    def commit(self, changes: Mapping[str, Sequence[Change]], *, wall_us: int) -> int:
        """Write the next version, with the changes of each store, and return it.

        Raises BadKeyError for a key or a value that does not fit; nothing is written then.
        """
        batch = self.version
        deltas: dict[str, bytes] = {}
        for number, (name, writer) in enumerate(self._writers.items()):
            parts: list[list[_Record]] = [[] for _ in range(self._partitions)]
            for change in changes.get(name, ()):
                partition, record = writer.record(change, self._partitions)
                parts[partition].append(record)
            deltas |= {f"state/{number}/{each}/{batch + 1}.delta": _delta(part) for each, part in enumerate(parts)}
        conf = {**_CONF, "spark.sql.shuffle.partitions": str(self._partitions)}
        offsets = {"batchWatermarkMs": 0, "batchTimestampMs": wall_us // 1000, "conf": conf}
        for path, data in deltas.items():
            self._write(path, data)
        self._write(f"offsets/{batch}", b"v1\n%b\n{}" % _json(offsets))
        draft = self._write("commit.draft", b"v1\n" + _json({"nextBatchWatermarkMs": 0}))
        os.utime(draft, ns=(wall_us * 1000, wall_us * 1000))
        draft.rename(self._folder / f"commits/{batch}")  # whole, as Spark does it: it is read at once
        self.version += 1
        return self.version

    def move_away(self, *, is_away: bool) -> None:
        """Take the folder from where it is read, as storage that is lost, or bring it back."""
        folder = self._elsewhere if is_away else self._path
        if folder != self._folder:
            self._folder = self._folder.rename(folder)

    def _write(self, path: str, data: bytes) -> Path:
        full = self._folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(data)
        return full


def _json(document: object) -> bytes:
    return json.dumps(document).encode("ascii")


def _delta(records: Iterable[_Record]) -> bytes:
    sized = b"".join(_sized(key) + _sized(value) for key, value in records)
    return bytes(cramjam.zstd.compress(sized + _MINUS_ONE))


def _sized(data: bytes | None) -> bytes:
    return _MINUS_ONE if data is None else struct.pack(">i", len(data)) + data


def _chunked(ascii_text: bytes) -> bytes:
    chunks = [ascii_text[at : at + _MAX_UTF_BYTES] for at in range(0, len(ascii_text), _MAX_UTF_BYTES)]
    return struct.pack(">i", len(chunks)) + b"".join(map(_utf, chunks))


def _utf(ascii_text: bytes) -> bytes:
    """Return a text as Java's `writeUTF` does: ASCII is the same in its UTF-8."""
    return struct.pack(">H", len(ascii_text)) + ascii_text
