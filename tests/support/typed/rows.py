"""Rows of a served store as a typed client reads them."""

from __future__ import annotations

from typing import Any

from tests.support.typed.entries import module_of

from understudy.typed import bind
from understudy.typed.columns import read_entry
from understudy.typed.models import models_source


def assert_typed(entry: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Every key comes as plain values and as the generated model, and goes back as it was; values and results come."""
    source = models_source(read_entry(entry), pydantic=False)
    with module_of(source) as module:
        models = {name: each for name, each in vars(module).items() if isinstance(each, type)}
        found = {part: next((models[name] for name in models if name.endswith(part)), None) for part in PARTS}
        modelled = bind(entry, key=found["Key"], value=found["Value"], result=found["Result"])
    plain = bind(entry)
    for row in rows:
        for binding in (plain, modelled):
            assert binding.key_columns(binding.key(row["key"])) == row["key"], entry["store"]
            for element in (row, *(each for name in LISTS for each in row.get(name, ()))):
                for part, read in (("value", binding.value), ("result", binding.result)):
                    if element.get(part) is not None:
                        read(element[part])


PARTS = ("Key", "Value", "Result")
LISTS = ("sessions", "rows", "values", "entries")
