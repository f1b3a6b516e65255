"""The settings of a node in memory, and the names and results of its stores as an alias file has them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from understudy_node.settings import NodeSettings
from understudy_node.stores.stores import AliasError
from understudy_shared.base.errors import SettingsError
from understudy_shared.spark.types import StructType

DeclaredStore = tuple[StructType, StructType, Mapping[str, object]]
"""The columns of a store's key, those of its value, and its results as an alias file has them."""


class OwnSettings(NodeSettings):
    """Settings that no variable and no file of the machine changes."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


@contextmanager
def blaming_results(stores: Sequence[str]) -> Iterator[None]:
    """Name the store as it was declared in errors about its result."""
    try:
        yield
    except AliasError as error:
        place = error.where.rpartition(": ")[2]
        where = re.sub(r"\bop(\d+)\b", lambda found: f"store {stores[int(found[1])]}", place)
        raise SettingsError(error.what, where=where, fix=error.fix) from None


def alias_lines(stores: Mapping[str, DeclaredStore]) -> Iterator[str]:
    """Yield the lines of an alias file."""
    for number, (name, (_, _, results)) in enumerate(stores.items()):
        yield f"[op{number}]\nname = {_toml(name)}"
        if results:
            yield f"[op{number}.result]"
            yield from (f"{_toml(column)} = {_toml(made)}" for column, made in results.items())


def _toml(value: object) -> str:
    """Return a value as TOML; a string of JSON is one of TOML."""
    match value:
        case Mapping():
            return "{" + ", ".join(f"{_toml(str(name))} = {_toml(each)}" for name, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
