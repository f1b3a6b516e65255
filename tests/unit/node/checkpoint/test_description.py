"""A checkpoint is described by what it holds; what is no checkpoint, or cannot be served, is refused with a way out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import HandmadeCheckpoint, schema_json

from understudy_node.checkpoint.description import CheckpointDescription, describe
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_shared.base.errors import CheckpointError, CorruptFileError, NotACheckpointError, UnsupportedError

KEY, VALUE = spark.struct_json("k"), spark.struct_json("count")
UUID = "aaaaaaaa-0000-4000-8000-000000000000"


def v2_schema(key: str = KEY, value: str = VALUE) -> bytes:
    return spark.utf("v2") + spark.chunked(key) + spark.chunked(value)


def aggregation(operator_id: int, key: str = KEY) -> dict[str, bytes]:
    base = f"state/{operator_id}"
    return {
        f"{base}/_metadata/metadata": spark.operator_metadata(operator_id),
        f"{base}/0/_metadata/schema": v2_schema(key),
        f"{base}/0/3.zip": b"",
        f"{base}/0/4.changelog": b"",
    }


def conf(**settings: str) -> dict[str, bytes]:
    """The offset log with settings of streaming; `__` stands for a dot."""
    names = {f"spark.sql.streaming.{name.replace('__', '.')}": value for name, value in settings.items()}
    return {"offsets/3": spark.offsets(partitions=6, conf=names)}


def named(operator_id: int, operator_name: str, **formats: str) -> dict[str, bytes]:
    """An operator by its metadata alone, and the state formats of the offset log."""
    metadata = spark.operator_metadata(operator_id, operator_name)
    logged = conf(**{f"{name}__stateFormatVersion": version for name, version in formats.items()})
    return {f"state/{operator_id}/_metadata/metadata": metadata, **logged}


def processor(operator_id: int) -> dict[str, bytes]:
    return named(operator_id, "mapElementsWithState")


BASE = {
    "metadata": b'{"id":"5611247e"}',
    "offsets/2": spark.offsets(),
    "offsets/3": spark.offsets(partitions=6),
    "offsets/4": spark.offsets(partitions=8),  # started, not committed
    "commits/2": spark.commit(1),
    "commits/3": spark.commit(2),
    "commits/.3.crc": b"",
}


def described(root: Path, content: Mapping[str, bytes]) -> CheckpointDescription:
    for path, data in content.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return describe(open_checkpoint_files(root))


def test_a_checkpoint_is_described_at_its_last_commit(tmp_path: Path) -> None:
    found = described(tmp_path, BASE | aggregation(0))
    assert (found.url, found.query_id) == (str(tmp_path), "5611247e")
    assert found.last_commit is not None
    assert (found.last_commit.batch_id, found.last_commit.next_watermark_ms) == (3, 2)
    assert found.properties is not None
    assert (found.properties.provider, found.properties.shuffle_partitions) == ("rocksdb", 6)
    assert (found.format_version, found.changelogs, found.retained_versions) == (1, True, (3, 4))
    (operator,) = found.operators
    assert (operator.operator_name, operator.partitions, operator.unsupported) == ("stateStoreSave", 6, None)
    (store,) = operator.stores
    assert (store.name, store.index, store.column_families[0].key_schema) == ("default", 0, KEY)
    assert store.directory(5) == "state/0/5"


def test_format_v2_is_seen_from_the_commit(tmp_path: Path) -> None:
    content = BASE | {"commits/3": spark.commit(2, {"0": [[UUID]]})} | aggregation(0)
    assert described(tmp_path, content).format_version == 2


def test_rocksdb_without_changelogs_is_seen_from_its_files(tmp_path: Path) -> None:
    content = BASE | aggregation(0)
    del content["state/0/0/4.changelog"]
    assert described(tmp_path, content).changelogs is False


def test_an_aggregation_without_keys_has_one_partition(tmp_path: Path) -> None:
    assert described(tmp_path, BASE | aggregation(0, spark.struct_json())).operators[0].partitions == 1


def test_metadata_v2_and_its_schema_file_are_found_beside_a_moved_checkpoint(tmp_path: Path) -> None:
    metadata = spark.operator_metadata(0, schema_paths=["s3://elsewhere/x/0_a", "s3://elsewhere/x/2_b"], tag="v2")
    content = BASE | {
        "state/0/_metadata/v2/0": b"not read",
        "state/0/_metadata/v2/2": metadata,
        "state/0/_metadata/v2/4": b"of a batch that is not committed",
        "state/0/_stateSchema/default/2_b": v3_schema("default"),
    }
    (store,) = described(tmp_path, content).operators[0].stores
    assert store.column_families[0].key_schema == KEY


def test_a_query_before_its_first_commit_is_described_without_one(tmp_path: Path) -> None:
    found = described(tmp_path, {"metadata": b'{"id":"x"}'})
    assert (found.last_commit, found.offsets, found.operators, found.retained_versions) == (None, None, (), None)
    found = described(tmp_path, {"offsets/0": spark.offsets(), **aggregation(0)})
    assert found.last_commit is None
    assert len(found.operators) == 1


@pytest.mark.parametrize(
    "path",
    ["state/0/1/.none", "state/0/0/_metadata/.none", "state/0/0/left-keyToNumValues/_metadata/schema"],
    ids=["state", "schema", "join"],
)
def test_an_operator_whose_schema_the_first_batch_is_still_to_write_is_left_out_until_its_commit(
    tmp_path: Path, path: str
) -> None:
    begun = {"metadata": b'{"id":"x"}', "offsets/0": spark.offsets(), path: v2_schema()}
    assert described(tmp_path, begun).operators == ()
    assert [each.operator_id for each in described(tmp_path, aggregation(1)).operators] == [1]
    refused, _ = described(tmp_path, {"commits/0": spark.commit(1)}).operators
    assert refused.unsupported is not None


def v3_schema(*families: str, encoder: str = "NoPrefixKeyStateEncoderSpec") -> bytes:
    encoding = spark.chunked(json.dumps({"keyStateEncoderType": encoder})) + spark.chunked("{    }")
    body = b"".join(
        spark.utf(name) + b"\0\0" + spark.chunked(KEY) + b"\0\0" + spark.chunked(VALUE) + encoding for name in families
    )
    return spark.utf("v3") + len(families).to_bytes(4, "big") + body


NESTED = '{"type":"array","elementType":' * 2000 + '"string"' + "}" * 2000


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (v2_schema(value=schema_json(("n", "long"), ("v", "object"))), "value has a column v: type object"),
        (v2_schema(key=schema_json(("v", "geometry(4326)"))), r"key has a column v .*struct<v:geometry\(4326\)>"),
        (v2_schema(key=schema_json(("v", "string collate UNICODE_CI"))), "key has columns with a collation: v"),
        (v2_schema(value=schema_json(("v", "X")).replace('"X"', NESTED)), "value .* nested too deeply"),
        (spark.utf("v9"), "Version 'v9' of the state schema"),
        (v3_schema("a", "b"), "2 column families"),
        (v3_schema("a", encoder="RangeKeyScanStateEncoderSpec"), "RangeKeyScanStateEncoderSpec"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_store_that_cannot_be_read_does_not_stop_the_others_and_is_named_with_its_column(
    tmp_path: Path, schema: bytes, says: str
) -> None:
    content = BASE | aggregation(0) | aggregation(1) | {"state/1/0/_metadata/schema": schema}
    served, refused = described(tmp_path, content).operators
    assert served.refusals == ()
    assert [store.name for store in served.served] == ["default"]
    assert (refused.served, refused.unsupported) == ((), None)
    ((name, reason),) = refused.refusals
    assert name == "op1"
    assert re.search(says, reason.what), reason
    assert reason.where.endswith("state/1/0/_metadata/schema")
    assert reason.fix
    only = BASE | aggregation(0) | {"state/0/0/_metadata/schema": schema}
    with pytest.raises(UnsupportedError, match=says):
        described(tmp_path / "alone", only)


def test_an_unsupported_operator_does_not_stop_the_others(tmp_path: Path) -> None:
    served, refused = described(tmp_path, BASE | aggregation(0) | processor(1)).operators
    assert served.unsupported is None
    assert served.stores
    assert not refused.stores
    assert refused.unsupported is not None
    assert "Operator 1 (mapElementsWithState)" in refused.unsupported.what
    assert "stateStoreSave" in refused.unsupported.fix


@pytest.mark.parametrize(
    ("content", "what", "fix"),
    [
        (processor(0), r"Operator 0 \(mapElementsWithState", "aggregations"),
        (processor(0) | processor(1), r"Operator 0 .*Operator 1 \(mapElementsWithState", "aggregations"),
        ({}, "keeps no state", "aggregation"),
        ({"state/0/0/1.delta": b""}, "neither metadata nor a schema", "Spark 3.1 or later"),
        (conf(stateStore__encodingFormat="protobuf"), "protobuf", "unsaferow or avro"),
        (
            aggregation(0) | conf(stateStore__encodingFormat="avro"),
            r"Operator 0 \(stateStoreSave\) .* in Avro",
            "Avro is read of transformWithState",
        ),
        ({"offsets/3": spark.offsets(provider="com.example.Mine")}, "com.example.Mine", "RocksDBStateStoreProvider"),
        (
            aggregation(0) | conf(stateStore__compression__codec="lzf", stateStore__providerClass=spark.HDFS),
            "lzf",
            "lz4, zstd or snappy",
        ),
        (aggregation(0) | conf(aggregation__stateFormatVersion="3"), "format 3", "stateFormatVersion"),
        (named(0, "symmetricHashJoin", join="5"), "symmetricHashJoin.* in format 5", "2, 3, 4"),
        (named(0, "sessionWindowStateStoreSaveExec", sessionWindow="2"), "in format 2", "sessionWindow"),
        (named(0, "flatMapGroupsWithState", flatMapGroupsWithState="3"), "in format 3", "1, 2"),
        (
            aggregation(0) | named(0, "symmetricHashJoin", join="2"),
            "The join has no table left-keyToNumValues",
            "newer Understudy",
        ),
        (aggregation(0) | named(0, "dedupe"), "do not fit dedupe: key struct<k:string>", "newer Understudy"),
        (aggregation(0) | {"commits/3": spark.commit(tag="v4")}, "v4", "newer Understudy"),
    ],
)
def test_what_cannot_be_served_is_refused_with_what_to_change(
    tmp_path: Path, content: dict[str, bytes], what: str, fix: str
) -> None:
    with pytest.raises(UnsupportedError, match=what) as refusal:
        described(tmp_path, BASE | content)
    assert fix in refusal.value.fix


def test_the_logs_of_spark_2_say_what_to_do_and_are_not_called_damaged(tmp_path: Path) -> None:
    """Spark 2.3 has commits without a watermark, 2.1 offsets without settings."""
    content = BASE | aggregation(0) | {"commits/3": b"v1\n{}"}
    assert described(tmp_path, content).last_commit is not None
    with pytest.raises(UnsupportedError, match="has no settings") as refusal:
        described(tmp_path, {"offsets/3": b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n2'})
    assert "Spark 3.1 or later" in refusal.value.fix


def test_the_newest_commit_without_its_offsets_is_a_copy_in_the_wrong_order(tmp_path: Path) -> None:
    files = HandmadeCheckpoint(tmp_path / "c").create().add(1, 2)
    (files.path / "offsets/1").unlink()
    with pytest.raises(CheckpointError, match="commits/1 is the newest commit, and offsets/1 is missing") as refusal:
        describe(open_checkpoint_files(files.path))
    assert "the folder `commits` first" in refusal.value.fix


def test_metadata_of_another_operator_is_corruption(tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match="belongs to operator 1"):
        described(tmp_path, BASE | {"state/0/_metadata/metadata": spark.operator_metadata(1)})


@pytest.mark.parametrize(
    ("content", "path", "what", "fix"),
    [
        ({}, "nowhere", "does not exist", "'metadata', 'offsets', 'commits' and 'state'"),
        ({"empty/x": b""}, "empty/x", "is not a directory", "checkpointLocation"),
        ({"t/_delta_log/0": b"", "t/part-0.parquet": b""}, "t", "table or a sink", "checkpointLocation"),
        ({"t/notes.txt": b""}, "t", "not a checkpoint", "checkpointLocation"),
        ({}, ".", "empty", "'metadata'"),
        ({f"all/q1/{name}": data for name, data in BASE.items()}, "all", "not a checkpoint", "all/q1"),
        ({f"q1/{name}": data for name, data in BASE.items()}, "q1/commits", "inside a checkpoint", "q1"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_a_hint(
    tmp_path: Path, content: dict[str, bytes], path: str, what: str, fix: str
) -> None:
    for name, data in content.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    with pytest.raises(NotACheckpointError, match=what) as refusal:
        describe(open_checkpoint_files(tmp_path / path))
    assert fix in refusal.value.fix
    assert refusal.value.where == str(tmp_path / path)
