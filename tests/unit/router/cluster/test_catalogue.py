"""A catalogue that cannot be used is refused with a reason, in bounded time, whatever is in it."""

from __future__ import annotations

from typing import Any

import pytest

from understudy_router.cluster.catalogue import stores_of
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.bus.messages import Catalogue, CatalogueStore

STRING = '"string"'


def struct(*types: str) -> str:
    fields = [f'{{"name":"c{at}","type":{each},"nullable":true,"metadata":{{}}}}' for at, each in enumerate(types)]
    return f'{{"type":"struct","fields":[{",".join(fields)}]}}'


def nested(levels: int, *, kind: str = "array") -> str:
    head, tail = {
        "array": ('{"type":"array","containsNull":true,"elementType":', "}"),
        "struct": ('{"type":"struct","fields":[{"name":"c","nullable":true,"metadata":{},"type":', "}]}"),
    }[kind]
    return head * levels + STRING + tail * levels


def catalogue(*stores: dict[str, Any], **fields: Any) -> Catalogue:
    defaults: dict[str, Any] = {
        "store": "s",
        "operator_id": 0,
        "operator": "stateStoreSave",
        "key_schema": struct(STRING),
        "key_names": ["c0"],
        "partitions": 1,
        "value": [],
    }
    made = [CatalogueStore(**{**defaults, **store}) for store in stores]
    return Catalogue(application_id="flights", lineage="l1", partitions=1, stores=made, **fields)


MANY = [f"c{at}" for at in range(5000)]
BAD = {
    "two names for one column": ({"key_names": ["c0", "c1"]},),
    "too few names": ({"key_schema": struct(STRING, STRING)},),
    "equal names": ({"key_schema": struct(STRING, STRING), "key_names": ["c", "c"]},),
    "900 levels of arrays": ({"key_schema": struct(nested(900))},),
    "900 levels of structs": ({"key_schema": struct(nested(900, kind="struct"))},),
    "65 levels of structs": ({"key_schema": struct(nested(65, kind="struct"))},),
    "5,000 columns": ({"key_schema": struct(*[STRING] * 2500), "key_names": MANY[:2500]},),
    "columns of many stores": tuple(
        {"store": f"s{at}", "key_schema": struct(*[STRING] * 1000), "key_names": MANY[:1000]} for at in range(5)
    ),
    "more hash columns than columns": ({"num_hash_columns": 2},),
    "no schema": ({"key_schema": "{"},),
    "another type": ({"key_schema": STRING},),
    "an unknown type": ({"key_schema": struct('"object"')},),
    "two stores of one name": ({}, {}),
}


@pytest.mark.parametrize("stores", BAD.values(), ids=BAD)
def test_a_catalogue_that_cannot_be_used_is_refused_by_a_reason(stores: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(UnderstudyError):
        stores_of(catalogue(*stores), "d")
