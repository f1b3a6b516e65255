"""State variables are judged one by one: what is not as Spark writes it is refused by name, and no other is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.description import CheckpointDescription, describe
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.checkpoint.schemas import ColumnFamilySchema
from understudy_node.checkpoint.state_variables import StateVariable, state_variables
from understudy_node.stores.stores import StoreAlias, naming_of, served_stores
from understudy_shared.base.errors import CorruptFileError, UnsupportedError
from understudy_shared.base.words import StoreKind, StoreName
from understudy_shared.bus.messages import AnnouncedStore, Announcement
from understudy_shared.spark.types import parse_schema

PLAIN = '{"keyStateEncoderType":"NoPrefixKeyStateEncoderSpec"}'
PREFIXED = '{"keyStateEncoderType":"PrefixKeyScanStateEncoderSpec","numColsPrefixKey":1}'


def struct(**columns: object) -> dict[str, object]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return {"type": "struct", "fields": fields}


KEY, USER, VALUE = struct(word="string"), struct(place="string"), struct(n="long")
MAP_KEY, TIMER_KEY = struct(key=KEY, userKey=USER), struct(key=KEY, expiryTimestampMs="long")
WITH_TTL = struct(value=VALUE, ttlExpirationMs="long")
DUMMY = struct(__dummy__="void")
TIMERS = "$eventTimers_keyToTimestamp"


def family(name: str, key: object = KEY, value: object = VALUE, encoder: str = PLAIN) -> ColumnFamilySchema:
    return ColumnFamilySchema(name, 0, json.dumps(key), 0, json.dumps(value), encoder)


FAMILIES = (
    family("weather"),
    family("mood", value=WITH_TTL),
    family("trips"),
    family("places", MAP_KEY, encoder=PREFIXED),
    family(TIMERS, TIMER_KEY, DUMMY, PREFIXED),
    family("$rowCounter_trips"),
)
KINDS = {
    "weather": ("ValueState", False),
    "mood": ("ValueState", True),
    "trips": ("ListState", False),
    "places": ("MapState", False),
    TIMERS: ("TimerState", False),
}


def said(kinds: Mapping[str, tuple[str, bool]] = KINDS) -> dict[str, object]:
    variables = [
        {"stateName": name, "stateVariableType": kind, "ttlEnabled": has_ttl} for name, (kind, has_ttl) in kinds.items()
    ]
    return {"stateVariables": variables}


def judged(
    families: tuple[ColumnFamilySchema, ...] = FAMILIES, kinds: Mapping[str, tuple[str, bool]] = KINDS
) -> dict[str, StateVariable]:
    return {each.name: each for each in state_variables(said(kinds), families, where="here")}


def test_each_variable_has_its_kind_its_keys_and_its_value() -> None:
    found = judged()
    assert {name: each.kind for name, each in found.items()} == {
        "weather": StoreKind.VALUE,
        "mood": StoreKind.VALUE,
        "trips": StoreKind.LIST,
        "places": StoreKind.MAP,
        TIMERS: StoreKind.TIMERS,
    }
    assert all(each.unsupported is None for each in found.values())
    assert all(each.key == parse_schema(json.dumps(KEY)) for each in found.values())
    assert found["mood"].has_ttl
    assert found["mood"].value == found["weather"].value == parse_schema(json.dumps(VALUE))
    assert [column.name for column in parse_schema(found["places"].key_json).fields] == ["word", "place"]
    assert [column.name for column in parse_schema(found[TIMERS].key_json).fields] == ["word"]


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        (family("weather"), ("SetState", False), "unknown kind SetState"),
        (family("else"), ("ValueState", False), "no column family"),
        (family("weather"), ("ValueState", True), "do not fit a ValueState"),
        (family("weather"), ("MapState", False), "do not fit a MapState"),
        (family("weather", encoder=PREFIXED), ("ValueState", False), "do not fit a ValueState"),
        (family("weather", MAP_KEY), ("MapState", False), "do not fit a MapState"),
        (family("weather", TIMER_KEY, encoder=PREFIXED), ("TimerState", False), "do not fit a TimerState"),
        (family("weather", struct()), ("ValueState", False), "do not fit a ValueState"),
        (family("weather", value=struct(v="object")), ("ValueState", False), "variable weather has a"),
    ],
    ids=lambda part: part[0] if isinstance(part, tuple) else None,
)
def test_a_variable_that_is_not_as_spark_writes_it_is_refused_by_name_and_no_other(
    wrong: ColumnFamilySchema, kind: tuple[str, bool], says: str
) -> None:
    found = judged((wrong, *FAMILIES[1:]), {**KINDS, "weather": kind})
    reason = found.pop("weather").unsupported
    assert isinstance(reason, UnsupportedError)
    assert says in reason.what
    assert "weather" in reason.what
    assert reason.fix
    assert all(each.unsupported is None for each in found.values())


@pytest.mark.parametrize("properties", [{}, {"stateVariables": 7}, {"stateVariables": [{"stateName": "a"}]}])
def test_properties_that_do_not_say_the_variables_are_damage(properties: dict[str, object]) -> None:
    with pytest.raises(CorruptFileError):
        state_variables(properties, FAMILIES, where="here")


def checkpoint(
    root: Path,
    kinds: Mapping[int, Mapping[str, tuple[str, bool]]],
    families: tuple[ColumnFamilySchema, ...] = FAMILIES,
) -> CheckpointDescription:
    """A checkpoint whose operators have variables of these kinds."""
    content = {"metadata": b'{"id":"q"}', "offsets/0": spark.offsets(), "commits/0": spark.commit(1)}
    for operator_id, variables in kinds.items():
        metadata = spark.operator_metadata(
            operator_id, "transformWithStateInPySparkExec", tag="v2", schema_paths=["file:/far/away/0_a"]
        )
        body = json.loads(metadata.partition(b"\n")[2])
        body["operatorPropertiesJson"] = json.dumps(said(variables))
        content[f"state/{operator_id}/_metadata/v2/0"] = b"v2\n" + json.dumps(body).encode()
        content[f"state/{operator_id}/_stateSchema/default/0_a"] = schema_file(
            [each for each in families if each.name in variables]
        )
    for path, data in content.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return describe(open_checkpoint_files(root))


def schema_file(families: list[ColumnFamilySchema]) -> bytes:
    data = spark.utf("v3") + len(families).to_bytes(4, "big")
    for each in families:
        data += spark.utf(each.name) + b"\0\0" + spark.chunked(each.key_schema) + b"\0\0"
        data += spark.chunked(each.value_schema) + spark.chunked(each.key_encoder or "") + spark.chunked("{}")
    return data


def test_a_variable_goes_by_its_own_name_where_no_other_does(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, {0: KINDS, 1: {"weather": ("ValueState", False), TIMERS: ("TimerState", False)}})
    names = set(served_stores(found, {}))
    assert names == {"op0.weather", "op1.weather", "mood", "trips", "places", "op0.timers", "op1.timers"}
    aliased = served_stores(found, {"op1.weather": StoreAlias(name="forecast"), "op0.trips": StoreAlias(name="mood")})
    assert set(aliased) == {"op0.weather", "forecast", "op0.mood", "mood", "places", "op0.timers", "op1.timers"}


def test_a_variable_called_timers_keeps_its_name_and_the_timers_another(tmp_path: Path) -> None:
    kinds = {"timers": ("ValueState", False), TIMERS: ("TimerState", False)}
    stores = served_stores(checkpoint(tmp_path, {0: kinds}, (*FAMILIES, family("timers"))), {})
    assert {name: store.kind for name, store in stores.items()} == {
        "timers": StoreKind.VALUE,
        "op0.$timers": StoreKind.TIMERS,
    }


def test_what_is_refused_of_an_operator_is_listed_by_its_name(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, {0: {**KINDS, "trips": ("SetState", False)}})
    assert set(served_stores(found, {})) == {"weather", "mood", "places", "op0.timers"}
    ((name, reason),) = found.operators[0].refusals
    assert name == "op0.trips"
    assert "SetState" in reason.what


def test_an_operator_of_which_nothing_can_be_read_is_refused_for_what_is_wrong_with_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="unknown kind SetState"):
        checkpoint(tmp_path, {0: {"trips": ("SetState", False)}})


def test_columns_of_a_grouping_key_are_named_alone_or_with_those_of_the_user_key(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, {0: KINDS})
    for key, names in ((("who",), ("who", "place")), (("who", "where"), ("who", "where"))):
        alias = StoreAlias(name="map", key=key)
        store = next(each for each in served_stores(found, {"op0.places": alias}).values() if each.name == "map")
        assert store.codec.names == names


def test_an_announced_name_is_the_first_part_of_the_names_of_all_variables_and_its_key_names_their_columns(
    tmp_path: Path,
) -> None:
    found = checkpoint(tmp_path, {0: KINDS})
    said = AnnouncedStore(operator_id=0, name="visits", key=["who"])
    announcement = Announcement(application_id="a", query_id=found.query_id, stores=[said])
    naming = naming_of(found, {}, announcement)
    assert naming.left_out == []
    stores = served_stores(found, naming.aliases)
    assert set(stores) == {f"visits.{name}" for name in ("weather", "mood", "trips", "places", "timers")}
    columns = {name: store.codec.names for name, store in stores.items()}
    assert columns.pop(StoreName("visits.places")) == ("who", "place")
    assert set(columns.values()) == {("who",)}


@pytest.mark.parametrize("earlier", [b"", b"\0\2v9", None])
def test_an_earlier_schema_file_that_cannot_be_read_costs_no_more_than_its_line_of_history(
    tmp_path: Path, earlier: bytes | None
) -> None:
    checkpoint(tmp_path, {0: KINDS})
    operator = tmp_path / "state" / "0"
    metadata = (operator / "_metadata/v2/0").read_bytes()
    (operator / "_metadata/v2/0").write_bytes(metadata.replace(b"0_a", b"0_0").replace(b'0_0"]', b'0_0", "0_a"]'))
    if earlier is not None:
        (operator / "_stateSchema/default/0_0").write_bytes(earlier)
    (store,) = describe(open_checkpoint_files(tmp_path)).operators[0].stores
    assert (store.unsupported, [each.name for each in store.schema_files]) == (None, ["0_a"])
