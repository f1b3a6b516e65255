"""Names: the file's, then the announced; two stores never get one name, and what does not fit breaks nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint, schema_json

from understudy_node.checkpoint.description import (
    CheckpointDescription,
    OperatorDescription,
    StoreDescription,
    describe,
)
from understudy_node.checkpoint.files import LocalFiles
from understudy_node.checkpoint.schemas import ColumnFamilySchema
from understudy_node.stores.results import ResultAlias
from understudy_node.stores.stores import AliasError, StoreAlias, naming_of, served_stores
from understudy_shared.base.errors import UnsupportedError
from understudy_shared.base.words import StoreName
from understudy_shared.bus.messages import AnnouncedStore, Announcement, ResultColumn


@pytest.fixture
def description(tmp_path: Path) -> CheckpointDescription:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    return describe(LocalFiles(checkpoint.path))


def announced(description: CheckpointDescription, *stores: AnnouncedStore) -> Announcement:
    return Announcement(application_id="words", query_id=description.query_id, stores=list(stores))


def test_each_part_is_the_files_if_it_has_it_and_else_the_announced(description: CheckpointDescription) -> None:
    file = {"op0": StoreAlias(value=("mine", "too"))}
    said = AnnouncedStore(
        operator_id=0,
        name="words",
        value=["a", "b"],
        result=[ResultColumn(name="n", function="count", buffers=[0], type="long")],
    )
    naming = naming_of(description, file, announced(description, said))
    assert naming.left_out == []
    alias = naming.aliases["op0"]
    assert (alias.name, alias.key, alias.value) == ("words", None, ("mine", "too"))
    assert alias.result == {"n": ResultAlias(function="count", buffers=(0,), type="long")}


def test_a_file_that_does_not_fit_is_an_error(description: CheckpointDescription) -> None:
    for alias, says in (
        (StoreAlias(key=("a", "b")), "2 key names"),
        (StoreAlias(result={"n": ResultAlias(function="sum", buffers=("absent",))}), "'absent'"),
    ):
        with pytest.raises(AliasError, match=says) as refused:
            naming_of(description, {"op0": alias}, None)
        assert "op0" in refused.value.where


@pytest.fixture
def with_join(description: CheckpointDescription) -> CheckpointDescription:
    """The same beside a join on one column."""
    key, value = ("field0", "string"), ("n", "long")
    columns = {
        "keyToNumValues": (schema_json(key), schema_json(("value", "long"))),
        "keyWithIndexToValue": (schema_json(key, ("index", "long")), schema_json(value, ("matched", "boolean"))),
    }
    names = [f"{side}-{table}" for side in ("left", "right") for table in columns]
    stores = tuple(
        StoreDescription(1, name, index, 0, (ColumnFamilySchema("default", 0, keys, 0, values),))
        for index, name in enumerate(names)
        for keys, values in [columns[name.partition("-")[2]]]
    )
    join = OperatorDescription(1, "symmetricHashJoin", 2, stores, None, "2")
    return replace(description, operators=(*description.operators, join))


def test_a_join_has_a_store_for_each_side_with_the_columns_that_the_side_got(with_join: CheckpointDescription) -> None:
    served = served_stores(with_join, {})
    assert [(store.name, str(store.kind)) for store in served.values()] == [
        ("op0", "value"),
        ("op1.left", "join-side"),
        ("op1.right", "join-side"),
    ]
    for store in list(served.values())[1:]:
        assert [column["name"] for column in store.codec.columns] == ["field0"]
        assert [column["name"] for column in store.value_columns()] == ["n"]


def test_the_sides_of_a_join_are_called_by_its_announced_name_and_share_its_key(
    with_join: CheckpointDescription,
) -> None:
    naming = naming_of(
        with_join, {}, announced(with_join, AnnouncedStore(operator_id=1, name="pairs", key=["aircraft"]))
    )
    assert (naming.left_out, naming.announced) == ([], ["op1.left", "op1.right"])
    served = served_stores(with_join, naming.aliases)
    assert list(served) == ["op0", "pairs.left", "pairs.right"]
    assert [column["name"] for column in served[StoreName("pairs.right")].codec.columns] == ["aircraft"]


def test_an_alias_for_an_operator_that_is_refused_keeps_no_other_store_away(description: CheckpointDescription) -> None:
    refused = OperatorDescription(1, "stateStoreSave", 1, (), UnsupportedError("several operators fit"))
    both = replace(description, operators=(*description.operators, refused))
    assert list(served_stores(both, {"op1": StoreAlias(name=StoreName("visits"))})) == ["op0"]
    with pytest.raises(AliasError, match="no store 'op2'"):
        served_stores(both, {"op2": StoreAlias(name=StoreName("visits"))})
