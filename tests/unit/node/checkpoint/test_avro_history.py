"""The schemas by which records of Avro state were written: read all, and refused by name where one cannot be."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.description import CheckpointDescription, describe
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.checkpoint.state_variables import StateVariable
from understudy_node.stores.parts import MAX_SHOWN_CHARACTERS, schema_history
from understudy_shared.base.errors import CorruptFileError, UnsupportedError
from understudy_shared.bus.messages import MAX_SCHEMAS

STATE = "spark.sql.streaming.stateStore"
PLAIN = '{"keyStateEncoderType":"NoPrefixKeyStateEncoderSpec"}'
PREFIXED = '{"keyStateEncoderType":"PrefixKeyScanStateEncoderSpec","numColsPrefixKey":1}'
KINDS = {
    "weather": "ValueState",
    "trips": "ListState",
    "places": "MapState",
    "$procTimers_keyToTimestamp": "TimerState",
}
Family = tuple[int, Mapping[str, object], int, Mapping[str, object], str]


def columns(*, nullable: bool = True, **kinds: object) -> dict[str, object]:
    fields = [{"name": name, "type": kind, "nullable": nullable, "metadata": {}} for name, kind in kinds.items()]
    return {"type": "struct", "fields": fields}


def longs(names: Sequence[str]) -> dict[str, object]:
    kinds: dict[str, Any] = dict.fromkeys(names, "long")
    return columns(**kinds)


KEY = columns(word="string")
OLD, NEW = columns(n="integer", gone="string"), columns(note="string", n="long")
DUMMY = columns(__dummy__="void")


def families(number: int, value: Mapping[str, object]) -> dict[str, Family]:
    map_key = columns(key=KEY, userKey=columns(place="string"))
    timer_key = columns(key=KEY, expiryTimestampMs="long")
    return {
        "weather": (0, KEY, number, value, PLAIN),
        "trips": (0, KEY, number, value, PLAIN),
        "places": (0, map_key, number, value, PREFIXED),
        "$procTimers_keyToTimestamp": (0, timer_key, 0, DUMMY, PREFIXED),
    }


def schema_file(found: Mapping[str, Family]) -> bytes:
    data = spark.utf("v3") + struct.pack(">i", len(found))
    for name, (key_id, key, value_id, value, encoder) in found.items():
        data += spark.utf(name) + struct.pack(">h", key_id) + spark.chunked(json.dumps(key))
        data += struct.pack(">h", value_id) + spark.chunked(json.dumps(value))
        data += spark.chunked(encoder) + spark.chunked("{}")
    return data


def described(root: Path, files: Sequence[bytes | None], merge_version: str | None = "2") -> CheckpointDescription:
    """A query whose state is Avro, with these schema files; None is one that is gone."""
    names = [f"{at}_a" for at in range(len(files))]
    paths = [f"file:/far/away/{name}" for name in names]
    metadata = spark.operator_metadata(0, "transformWithStateInPySparkExec", tag="v2", schema_paths=paths)
    body = json.loads(metadata.partition(b"\n")[2])
    variables = [{"stateName": name, "stateVariableType": kind, "ttlEnabled": False} for name, kind in KINDS.items()]
    body["operatorPropertiesJson"] = json.dumps({"stateVariables": variables})
    merging = {} if merge_version is None else {f"{STATE}.rocksdb.mergeOperatorVersion": merge_version}
    content: dict[str, bytes | None] = {
        "metadata": b'{"id":"q"}',
        "offsets/0": spark.offsets(conf={f"{STATE}.encodingFormat": "avro", **merging}),
        "commits/0": spark.commit(1),
        "state/0/_metadata/v2/0": b"v2\n" + json.dumps(body).encode(),
        **{f"state/0/_stateSchema/default/{name}": data for name, data in zip(names, files, strict=True)},
    }
    for path, data in content.items():
        if data is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
    return describe(open_checkpoint_files(root))


def variables_of(found: CheckpointDescription) -> dict[str, StateVariable]:
    return {each.name: each for each in found.operators[0].variables}


def test_a_key_whose_names_or_nulls_have_changed_is_the_same_key(tmp_path: Path) -> None:
    newest = families(1, NEW) | {"weather": (0, columns(nullable=False, name="string"), 1, NEW, PLAIN)}
    found = variables_of(described(tmp_path, [schema_file(families(0, OLD)), schema_file(newest)]))
    assert found["weather"].unsupported is None


def test_all_schemas_of_a_variable_are_known_by_their_numbers(tmp_path: Path) -> None:
    found = variables_of(described(tmp_path, [schema_file(families(0, OLD)), schema_file(families(1, NEW))]))
    for name in ("weather", "trips", "places"):
        assert found[name].unsupported is None
        rows = found[name].avro
        assert rows is not None
        assert {number: each.name for number, each in rows.written.items()} == {
            0: "struct<n:int,gone:string>",
            1: "struct<note:string,n:long>",
        }
        assert found[name].value.name == "struct<note:string,n:long>"
    parts = {name: each.avro and (each.avro.first.name, each.avro.rest.name) for name, each in found.items()}
    assert parts == {
        "weather": ("struct<word:string>", "struct<>"),
        "trips": ("struct<word:string>", "struct<>"),
        "places": ("struct<key:struct<word:string>>", "struct<userKey:struct<place:string>>"),
        "$procTimers_keyToTimestamp": ("struct<key:struct<word:string>>", "struct<expiryTimestampMs:long>"),
    }


def test_versions_before_a_change_keep_the_columns_that_they_had(tmp_path: Path) -> None:
    files = [schema_file(families(0, OLD)), schema_file(families(0, OLD)), schema_file(families(1, NEW))]
    found = variables_of(described(tmp_path, files))
    for name in ("weather", "trips", "places"):
        (earlier,) = found[name].earlier
        assert earlier.last_version == 2, "the file of batch 2 is the first with new columns"
        assert earlier.variable.value.name == "struct<n:int,gone:string>"
        assert earlier.variable.avro is not None
        assert set(earlier.variable.avro.written) == {0}
    assert found["$procTimers_keyToTimestamp"].earlier == ()


def test_the_history_of_a_variable_has_each_change_once_with_its_first_batch(tmp_path: Path) -> None:
    files = [schema_file(families(0, OLD)), schema_file(families(0, OLD)), schema_file(families(1, NEW))]
    (store,) = described(tmp_path, files).operators[0].stores
    history = schema_history(store, "weather")
    assert [(each["schema_id"], each["from_batch"]) for each in history] == [(0, 0), (1, 2)]
    assert history[0]["value"] == [
        {"name": "n", "type": "int", "nullable": True},
        {"name": "gone", "type": "string", "nullable": True},
    ]
    assert [column["name"] for column in history[0]["key"]] == ["word"]
    assert [each["from_batch"] for each in schema_history(store, "$procTimers_keyToTimestamp")] == [0]
    assert schema_history(store, "nothing") == ()


def test_of_a_long_history_the_newest_part_is_shown(tmp_path: Path) -> None:
    count = MAX_SCHEMAS + 3
    files = [schema_file(families(at, longs([f"n{at}"]))) for at in range(count)]
    (store,) = described(tmp_path, files).operators[0].stores
    assert [each["schema_id"] for each in schema_history(store, "weather")] == list(range(3, count))


def test_of_wide_schemas_only_as_many_are_shown_as_have_room(tmp_path: Path) -> None:
    width = MAX_SHOWN_CHARACTERS // 400
    names = [f"c{each:04}{'x' * 160}" for each in range(width)]
    files = [schema_file(families(at, longs([f"{name}_{at}" for name in names]))) for at in range(4)]
    (store,) = described(tmp_path, files).operators[0].stores
    assert [each["schema_id"] for each in schema_history(store, "weather")] == [2, 3]


@pytest.mark.parametrize(("version", "separator"), [(None, b","), ("1", b","), ("2", b"")])
def test_the_records_of_a_list_are_separated_as_the_spark_that_began_the_checkpoint_does(
    tmp_path: Path, version: str | None, separator: bytes
) -> None:
    files = [schema_file(families(0, OLD)), schema_file(families(1, NEW))]
    trips = variables_of(described(tmp_path, files, version))["trips"]
    before = [each.variable for each in trips.earlier]
    assert [each.avro and each.avro.separator for each in (*before, trips)] == [separator, separator]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ((0, KEY, 1, columns(n="short"), PLAIN), "type short is not read, column n"),
        ((0, KEY, 1, columns(gone="long"), PLAIN), "a string that became a long is not read, column gone"),
        ((0, KEY, 0, NEW, PLAIN), "two schemas have one number, schema 0"),
        ((0, columns(word="long"), 1, NEW, PLAIN), "its keys have changed"),
        ((1, KEY, 1, NEW, PLAIN), "its keys have changed"),
    ],
)
def test_a_variable_whose_schemas_do_not_fit_is_refused_by_name_and_no_other(
    tmp_path: Path, changed: Family, says: str
) -> None:
    newest = families(1, NEW) | {"weather": changed}
    found = described(tmp_path, [schema_file(families(0, OLD)), schema_file(newest)])
    ((name, reason),) = found.operators[0].refusals
    assert name == "op0.weather"
    assert "State variable weather" in reason.what
    assert says in reason.what
    assert reason.fix


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-9], lambda data: b"", lambda data: data.replace(b"struct", b"strukt")]
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_damaged_schema_file_is_named_and_nothing_is_read_by_it(
    tmp_path: Path, at: int, harm: Callable[[bytes], bytes]
) -> None:
    files = [schema_file(families(0, OLD)), schema_file(families(1, NEW))]
    files[at] = harm(files[at])
    with pytest.raises((CorruptFileError, UnsupportedError)) as refusal:
        described(tmp_path, files)
    assert f"{at}_a" in str(refusal.value) or "strukt" in str(refusal.value)


def test_a_schema_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="0_a") as refusal:
        described(tmp_path, [None, schema_file(families(1, NEW))])
    assert "gone" in refusal.value.what
