"""The logs of a checkpoint and the schema files, as each release of Spark writes them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.logs import (
    batch_ids,
    choose_metadata_batch,
    parse_commit,
    parse_offsets,
    parse_operator_metadata,
    parse_query_id,
)
from understudy_node.checkpoint.schemas import parse_schema_file
from understudy_shared.base.errors import CorruptFileError

IDS = {"0": [["a", "b"], ["c", "d"]], "1": [["e"]]}


@pytest.mark.parametrize("data", [b"", b"{}", b'{"id":7}', b'{"id":""}', b'{"id":"5611', b"[]", b"\xff"])
def test_metadata_without_an_id_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="metadata"):
        parse_query_id(data)


@pytest.mark.parametrize("tag", ["v2", "v3"])
def test_unique_ids_are_by_operator_partition_and_store(tag: str) -> None:
    commit = parse_commit(spark.commit(42, IDS, tag=tag), 3)
    assert commit.unique_ids is not None
    assert commit.unique_ids[0][1][0] == "c"
    assert commit.unique_ids[1] == (("e",),)


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


KEY, VALUE = spark.struct_json("k"), spark.struct_json("count", "sum")
ENCODER = '{"keyStateEncoderType":"NoPrefixKeyStateEncoderSpec"}'
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def family(name: str, key: bytes, value: bytes, user_key: str) -> bytes:
    short = struct.pack(">h", 1)
    return spark.utf(name) + short + key + short + value + spark.chunked(ENCODER) + spark.chunked(user_key)


V3 = spark.utf("v3") + struct.pack(">i", 2)
V3 += family("a", spark.chunked(KEY), spark.chunked(VALUE), "{    }")
V3 += family("b", spark.chunked(KEY), spark.chunked(VALUE), KEY)
FILES = {
    "v1": spark.utf("v1") + spark.utf(KEY) + spark.utf(VALUE),
    "v2": spark.utf("v2") + spark.chunked(KEY[:9], KEY[9:]) + spark.chunked(VALUE),
    "v3": V3,
}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_schema_file_has_one_unnamed_family(version: str) -> None:
    (found,) = parse_schema_file(FILES[version], name="schema")
    assert (found.name, found.key_schema, found.value_schema, found.key_encoder) == ("default", KEY, VALUE, None)


def test_a_v3_schema_file_has_a_family_per_state_variable() -> None:
    first, second = parse_schema_file(FILES["v3"], name="schema")
    assert (first.name, first.key_schema_id, first.key_schema, first.value_schema) == ("a", 1, KEY, VALUE)
    assert first.key_encoder == ENCODER
    assert first.user_key_schema is None
    assert second.user_key_schema == KEY


@given(text=texts, cut=st.integers(0, 30))
def test_any_text_survives_modified_utf8_and_any_cut_into_chunks(text: str, cut: int) -> None:
    """Java cuts between UTF-16 units, also in the middle of a character outside the BMP."""
    units = text.encode("utf-16-be")
    at = 2 * min(cut, len(units) // 2)
    parts = [part.decode("utf-16-be", "surrogatepass") for part in (units[:at], units[at:])]
    (found,) = parse_schema_file(spark.utf("v2") + spark.chunked(*parts) + spark.chunked(VALUE), name="schema")
    assert found.key_schema == text


PARSERS: list[tuple[Callable[[bytes], object], bytes]] = [
    (lambda data: parse_commit(data, 3), spark.commit(42, IDS)),
    (lambda data: parse_operator_metadata(data, name="0"), spark.operator_metadata(0, schema_paths=["a/b"], tag="v2")),
    *((lambda data: parse_schema_file(data, name="schema"), data) for data in FILES.values()),
]


@pytest.mark.parametrize(("parse", "data"), PARSERS, ids=["commit", "metadata", *FILES])
def test_no_prefix_of_a_file_is_accepted(parse: Callable[[bytes], object], data: bytes) -> None:
    for cut in range(len(data)):
        with pytest.raises(CorruptFileError):
            parse(data[:cut])


@pytest.mark.parametrize("data", [b'v1\n{"nextBatchWatermarkMs":true}', b"v1\n[]", b"7\n{}", b"v1\n\xff"])
def test_a_damaged_commit_is_refused_by_its_path(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="commits/3"):
        parse_commit(data, 3)


@pytest.mark.parametrize("version", list(FILES))
def test_bytes_after_a_schema_are_refused(version: str) -> None:
    with pytest.raises(CorruptFileError, match="after the end"):
        parse_schema_file(FILES[version] + b"\0", name="schema")


@pytest.mark.parametrize("path", ["file:/a/..", "file:/a/", ""])
def test_a_schema_path_without_a_file_name_is_refused(path: str) -> None:
    with pytest.raises(CorruptFileError, match="not a valid name"):
        parse_operator_metadata(spark.operator_metadata(0, schema_paths=[path], tag="v2"), name="0")


@pytest.mark.parametrize(("at_most", "chosen"), [(0, None), (3, 1), (5, 5), (99, 12)])
def test_the_newest_metadata_not_above_the_batch_is_chosen(at_most: int, chosen: int | None) -> None:
    assert choose_metadata_batch(["1", "5", "12", ".12.crc"], at_most_batch_id=at_most) == chosen
