"""Entries of `GET /v1/stores` for made-up schemas, and modules of generated source."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from understudy_shared.spark.types import Field, SparkType, StructType, unique_names


def entry_of(value: StructType, key: StructType | None = None, kind: str = "value", **others: Any) -> dict[str, Any]:
    """An entry whose key and value have these columns."""
    found = {"store": "flights", "kind": kind, "operator": "stateStoreSave", "value": columns_of(value)}
    of_key = [{"name": each["name"], "type": each["type"]} for each in columns_of(value if key is None else key)]
    return {**found, "key": of_key, **others}


def columns_of(schema: StructType) -> list[dict[str, Any]]:
    names = unique_names(each.name for each in schema.fields)
    return [
        {"name": name, "type": each.type.name, "nullable": each.nullable}
        for name, each in zip(names, schema.fields, strict=True)
    ]


def struct(**types: SparkType) -> StructType:
    """A struct with nullable fields of these names."""
    return StructType(tuple(Field(name, each) for name, each in types.items()))


@contextmanager
def module_of(source: str, name: str = "generated_models") -> Iterator[ModuleType]:
    """Give a module of this source."""
    module = ModuleType(name)
    sys.modules[name] = module
    try:
        exec(compile(source, name, "exec"), module.__dict__)
        yield module
    finally:
        del sys.modules[name]
