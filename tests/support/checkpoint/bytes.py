"""Writes the bytes of Spark's checkpoint files, independently of the code that reads them.

Rule: nothing is imported from the reading side, so that an error there cannot hide here.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence

import cramjam
import google_crc32c
import xxhash

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

Record = tuple[bytes, bytes | None]
TypedRecord = tuple[int, bytes, bytes | None]
END_OF_PLAIN = struct.pack(">i", -1)
END_OF_TAGGED = b"\x00"


def sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def plain(records: Iterable[Record]) -> bytes:
    """A delta, an HDFS snapshot, or the records of a v1 or v3 changelog."""
    return b"".join(sized(key) + sized(value) for key, value in records) + END_OF_PLAIN


def tagged(records: Iterable[TypedRecord]) -> bytes:
    """The records of a v2 or v4 changelog."""
    return b"".join(bytes([kind]) + sized(key) + sized(value) for kind, key, value in records) + END_OF_TAGGED


def utf(text: str) -> bytes:
    """`DataOutputStream.writeUTF`: zero as two bytes, characters outside the BMP as two surrogates of three bytes."""
    units = text.encode("utf-16-be", "surrogatepass")
    encoded = b"".join(
        chr(int.from_bytes(units[i : i + 2], "big")).encode("utf-8", "surrogatepass") for i in range(0, len(units), 2)
    ).replace(b"\x00", b"\xc0\x80")
    return struct.pack(">H", len(encoded)) + encoded


def chunked(*chunks: str) -> bytes:
    return struct.pack(">i", len(chunks)) + b"".join(utf(chunk) for chunk in chunks)


def lineage(items: Sequence[tuple[int, str]]) -> bytes:
    return utf(json.dumps([{"version": version, "checkpointUniqueId": unique_id} for version, unique_id in items]))


def crc(data: bytes) -> bytes:
    return struct.pack("<I", google_crc32c.value(data))


def hdfs_checked(key: bytes, value: bytes | None) -> Record:
    return (crc(key) + key, None) if value is None else (key, crc(key + value) + value)


def rocksdb_checked(key: bytes, value: bytes | None) -> Record:
    if value is None:
        return crc(key) + key, None
    return key, crc(key + value) + struct.pack("<i", len(value)) + value


def lz4(raw: bytes, *, block_bytes: int = 1 << 15, stored: bool = False) -> bytes:
    """An LZ4Block stream with its end block, each block with its xxhash32."""
    out = b""
    for start in range(0, len(raw), block_bytes):
        block = raw[start : start + block_bytes]
        packed = block if stored else bytes(cramjam.lz4.compress_block(block, store_size=False))
        token = (0x10 if stored else 0x20) | (block_bytes.bit_length() - 11)
        checksum = xxhash.xxh32_intdigest(block, 0x9747B28C) & 0x0FFFFFFF
        out += b"LZ4Block" + struct.pack("<Biii", token, len(packed), len(block), checksum)
        out += packed
    return out + b"LZ4Block" + struct.pack("<Biii", 0x10 | (block_bytes.bit_length() - 11), 0, 0, 0)


def zstd(raw: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(raw))


def snappy(raw: bytes, *, chunk_bytes: int = 1 << 15) -> bytes:
    """Compress with Snappy, in Xerial framing."""
    out = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for start in range(0, len(raw), chunk_bytes):
        out += sized(bytes(cramjam.snappy.compress_raw(raw[start : start + chunk_bytes])))
    return out


def commit(
    watermark_ms: int = 0, unique_ids: Mapping[str, list[list[str]]] | None = None, *, tag: str | None = None
) -> bytes:
    body: dict[str, object] = {"nextBatchWatermarkMs": watermark_ms}
    if unique_ids is not None:
        body["stateUniqueIds"] = dict(unique_ids)
    return f"{tag or ('v1' if unique_ids is None else 'v2')}\n{json.dumps(body)}".encode()


def offsets(*, provider: str = ROCKSDB, partitions: int = 2, conf: Mapping[str, str] | None = None) -> bytes:
    settings = {
        "spark.sql.streaming.stateStore.providerClass": provider,
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.compression.codec": "lz4",
        "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
        "spark.sql.streaming.aggregation.stateFormatVersion": "2",
        "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
        **(conf or {}),
    }
    body = {"batchWatermarkMs": 5, "batchTimestampMs": 1_700_000_000_000, "conf": settings}
    return f'v1\n{json.dumps(body)}\n{{"logOffset":3}}'.encode()


def struct_json(*columns: str) -> str:
    fields = [{"name": column, "type": "string", "nullable": True, "metadata": {}} for column in columns]
    return json.dumps({"type": "struct", "fields": fields})


def operator_metadata(
    operator_id: int,
    operator_name: str = "stateStoreSave",
    *,
    schema_paths: Sequence[str] = (),
    tag: str = "v1",
    prefix_columns: int = 0,
) -> bytes:
    store: dict[str, object] = {"storeName": "default", "numColsPrefixKey": prefix_columns, "numPartitions": 2}
    if tag == "v2":
        store["stateSchemaFilePaths"] = list(schema_paths)
    body: dict[str, object] = {
        "operatorInfo": {"operatorId": operator_id, "operatorName": operator_name},
        "stateStoreInfo": [store],
    }
    if tag == "v2":
        body["operatorPropertiesJson"] = '{"useVirtualColumnFamilies":true}'
    return f"{tag}\n{json.dumps(body)}".encode()


def snapshot_zip(
    *,
    sst_files: Sequence[tuple[str, str, int]] = (("000008.sst", "000008-ab.sst", 1822),),
    num_keys: int = 27,
    merge_operator: str = "StringAppendOperator",
    extra: Mapping[str, bytes] | None = None,
    families: Mapping[str, int] | None = None,
) -> bytes:
    """`families`: the ids of the column families; one that begins with a dollar is internal."""
    families = families or {"default": 1, "$ttl_a": 2}
    metadata = {
        "sstFiles": [
            {"localFileName": local, "dfsSstFileName": remote, "sizeBytes": size} for local, remote, size in sst_files
        ],
        "numKeys": num_keys,
        "numInternalKeys": 3,
        "columnFamilyMapping": dict(families),
        "columnFamilyTypeMap": {name: name.startswith("$") for name in families},
        "maxColumnFamilyId": max(families.values()),
    }
    members = {
        "MANIFEST-000005": b"manifest",
        "CURRENT": b"MANIFEST-000005\n",
        "000004.log": b"",
        "OPTIONS-000007": f"[CFOptions]\n  max_merge_width=1\n  merge_operator={merge_operator}\n  x=y\n".encode(),
        "metadata": f"v1\n{json.dumps(metadata)}".encode(),
        **(extra or {}),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()
