"""The commit log, the offset log and the query id, as Spark writes them and as they break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.logs import batch_ids, parse_commit, parse_offsets, parse_query_id
from understudy_shared.base.errors import CorruptFileError, UnsupportedError

IDS = {"0": [["a", "b"], ["c", "d"]], "1": [["e"]]}


def test_the_query_id_is_read() -> None:
    assert parse_query_id(b'{"id":"5611247e"}\n') == "5611247e"


@pytest.mark.parametrize("data", [b"", b"{}", b'{"id":7}', b'{"id":""}', b'{"id":"5611', b"[]", b"\xff"])
def test_metadata_without_an_id_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="metadata"):
        parse_query_id(data)


def test_a_v1_commit_has_no_unique_ids() -> None:
    commit = parse_commit(spark.commit(42), 3)
    assert (commit.batch_id, commit.next_watermark_ms, commit.unique_ids) == (3, 42, None)


@pytest.mark.parametrize("tag", ["v2", "v3"])
def test_unique_ids_are_by_operator_partition_and_store(tag: str) -> None:
    commit = parse_commit(spark.commit(42, IDS, tag=tag), 3)
    assert commit.unique_ids is not None
    assert commit.unique_ids[0][1][0] == "c"
    assert commit.unique_ids[1] == (("e",),)


@given(cut=st.integers(0, len(spark.commit(42, IDS)) - 1))
def test_no_prefix_of_a_commit_is_accepted(cut: int) -> None:
    with pytest.raises(CorruptFileError, match="commits/3"):
        parse_commit(spark.commit(42, IDS)[:cut], 3)


def test_a_newer_commit_version_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="v4") as refusal:
        parse_commit(spark.commit(0, tag="v4"), 3)
    assert "v1, v2, v3" in refusal.value.fix


@pytest.mark.parametrize("data", [b'v1\n{"nextBatchWatermarkMs":true}', b"v1\n[]", b"7\n{}", b"v1\n\xff"])
def test_a_damaged_commit_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="commits/3"):
        parse_commit(data, 3)


def test_offsets_say_how_the_batch_wrote_its_state() -> None:
    entry = parse_offsets(
        spark.offsets(
            partitions=7,
            conf={
                "spark.sql.streaming.stateStore.compression.codec": "org.apache.spark.io.ZStdCompressionCodec",
                "spark.sql.streaming.stateStore.rowChecksum.enabled": "true",
                "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": "2",
            },
        ),
        9,
    )
    assert (entry.batch_id, entry.watermark_ms) == (9, 5)
    properties = entry.properties
    assert (properties.provider, properties.codec, properties.encoding_format) == ("rocksdb", "zstd", "unsaferow")
    assert (properties.row_checksum, properties.merge_operator_version, properties.shuffle_partitions) == (True, 2, 7)


def test_settings_that_older_sparks_did_not_record_have_their_old_values() -> None:
    properties = parse_offsets(spark.offsets(provider=spark.HDFS), 0).properties
    assert properties.provider == "hdfs"
    assert properties.row_checksum is False
    assert properties.merge_operator_version == 1


@pytest.mark.parametrize(
    ("said", "placement"),
    [("true", "by-hash"), (" True", "by-hash"), ("false", "scattered"), ("maybe", "scattered"), ("", "scattered")],
)
def test_keys_are_placed_by_their_hash_only_where_the_log_says_so(said: str, placement: str) -> None:
    strict = {"spark.sql.streaming.statefulOperator.useStrictDistribution": said}
    assert parse_offsets(spark.offsets(conf=strict), 0).properties.placement == placement


def test_a_log_that_lacks_the_setting_is_of_a_query_that_an_early_spark_began() -> None:
    with_it = b',"spark.sql.streaming.statefulOperator.useStrictDistribution":"true"'
    data = spark.offsets().replace(b": ", b":").replace(b", ", b",")
    assert with_it in data
    assert parse_offsets(data.replace(with_it, b""), 0).properties.placement == "scattered"


@pytest.mark.parametrize(("provider", "encoding"), [(spark.ROCKSDB, "avro"), (spark.HDFS, "unsaferow")])
def test_the_hdfs_backed_provider_writes_rows_whatever_the_encoding_setting_says(provider: str, encoding: str) -> None:
    conf = {"spark.sql.streaming.stateStore.encodingFormat": "Avro"}
    assert parse_offsets(spark.offsets(provider=provider, conf=conf), 0).properties.encoding_format == encoding


def test_another_provider_is_refused_by_its_class() -> None:
    with pytest.raises(UnsupportedError, match=r"com\.example\.MyProvider"):
        parse_offsets(spark.offsets(provider="com.example.MyProvider"), 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.shuffle.partitions", "0"),
        ("spark.sql.shuffle.partitions", "two"),
        ("spark.sql.streaming.stateStore.rowChecksum.enabled", "maybe"),
    ],
)
def test_a_setting_that_makes_no_sense_is_corruption(key: str, value: str) -> None:
    with pytest.raises(CorruptFileError, match=key):
        parse_offsets(spark.offsets(conf={key: value}), 0)


def test_only_batches_are_taken_from_a_listing() -> None:
    names = ["10", "9", "0", ".9.crc", "9.crc", ".9.uuid.tmp", "19.compact", "09", "-1", "metadata", "٣"]
    assert batch_ids(names) == [0, 9, 10]
