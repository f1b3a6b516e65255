"""Operator metadata and schema files, from the bytes that Java writes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.logs import choose_metadata_batch, parse_operator_metadata
from understudy_node.checkpoint.schemas import parse_schema_file
from understudy_shared.base.errors import CorruptFileError, UnsupportedError

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


@pytest.mark.parametrize("version", list(FILES))
def test_no_prefix_of_a_schema_file_is_accepted(version: str) -> None:
    for cut in range(len(FILES[version])):
        with pytest.raises(CorruptFileError, match="schema"):
            parse_schema_file(FILES[version][:cut], name="schema")


@pytest.mark.parametrize("version", list(FILES))
def test_bytes_after_a_schema_are_refused(version: str) -> None:
    with pytest.raises(CorruptFileError, match="after the end"):
        parse_schema_file(FILES[version] + b"\0", name="schema")


def test_a_newer_schema_version_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="v4"):
        parse_schema_file(spark.utf("v4"), name="schema")


def test_operator_metadata_v1_names_operator_and_stores() -> None:
    metadata = parse_operator_metadata(spark.operator_metadata(3), name="metadata")
    assert (metadata.operator_id, metadata.operator_name) == (3, "stateStoreSave")
    assert [(store.name, store.schema_file_names) for store in metadata.stores] == [("default", ())]


def test_absolute_schema_paths_of_the_writer_are_reduced_to_file_names() -> None:
    paths = ["hdfs://nn:8020/ckpt/state/0/_stateSchema/default/0_x", "file:/a/b/4_y"]
    metadata = parse_operator_metadata(spark.operator_metadata(0, schema_paths=paths, tag="v2"), name="0")
    assert metadata.stores[0].schema_file_names == ("0_x", "4_y")
    assert metadata.properties == {"useVirtualColumnFamilies": True}


@pytest.mark.parametrize("path", ["file:/a/..", "file:/a/", ""])
def test_a_schema_path_without_a_file_name_is_refused(path: str) -> None:
    with pytest.raises(CorruptFileError, match="not a valid name"):
        parse_operator_metadata(spark.operator_metadata(0, schema_paths=[path], tag="v2"), name="0")


def test_no_prefix_of_operator_metadata_is_accepted() -> None:
    data = spark.operator_metadata(0, schema_paths=["a/b"], tag="v2")
    for cut in range(len(data)):
        with pytest.raises(CorruptFileError):
            parse_operator_metadata(data[:cut], name="0")


@pytest.mark.parametrize(("at_most", "chosen"), [(3, 0), (5, 5), (99, 12)])
def test_the_newest_metadata_not_above_the_batch_is_chosen(at_most: int, chosen: int) -> None:
    assert choose_metadata_batch(["0", "5", "12", ".12.crc"], at_most_batch_id=at_most) == chosen


def test_there_may_be_no_metadata_for_a_batch() -> None:
    assert choose_metadata_batch(["7"], at_most_batch_id=6) is None
