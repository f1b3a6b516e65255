"""Keys in exact form, from Python values. The parser of the servers says whether it is a key (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from understudy.typed.columns import Column
from understudy.typed.models import columns_of
from understudy.typed.plain import MISMATCHES
from understudy.typed.to_json import to_json
from understudy_shared.base.errors import BadKeyError
from understudy_shared.spark.json_values import compile_json_parser, example_of, shown
from understudy_shared.spark.types import ArrayType, Field, StructType


class KeyWriter:
    """A writer of keys with these columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = {each.name: to_json(each.type) for each in columns}
        self._types = {each.name: each.type for each in columns}
        self._parse = compile_json_parser(
            StructType(tuple(Field(each.name, each.type) for each in columns)), list(self._columns)
        )
        self._names = self._types.keys()

    def write(self, key: object) -> dict[str, Any]:
        """Return a key by column, as JSON. Raises BadKeyError for a key that does not fit the store."""
        given = self._given(key)
        written = {}
        for name, value in given.items():
            convert = self._columns.get(name)
            try:
                written[name] = value if value is None or convert is None else convert(value)
            except MISMATCHES as error:
                spark_type = self._types[name]
                raise BadKeyError(
                    f"{shown(value)} does not fit: {error}",
                    where=f"column {name} ({spark_type.name})",
                    fix=f"In JSON it is like {shown(example_of(spark_type), 400)}",
                ) from None
        self._parse(written)
        return written

    def takes(self, key: object) -> bool:
        """Whether a key has as many columns as this writer."""
        if isinstance(key, list | tuple):
            return len(key) == len(self._names)
        columns = columns_of(key)
        return len(self._names) == 1 if columns is None else columns.keys() == self._names

    def _given(self, key: object) -> Mapping[str, Any]:
        """Return the values of a key by column. A key of one column may be its value alone."""
        only = next(iter(self._types.items())) if len(self._types) == 1 else None
        if only is not None and isinstance(only[1], ArrayType) and isinstance(key, list):
            return {only[0]: key}
        if isinstance(key, list | tuple) and not (only is not None and len(key) != 1):
            if len(key) == len(self._types):
                return dict(zip(self._types, key, strict=True))
            return self._refused(key, f"it has {len(key)} values for {len(self._types)} columns")
        columns = columns_of(key)
        if columns is not None and (only is None or columns.keys() == self._names):
            return columns
        if only is not None:
            return {only[0]: key}
        return self._refused(key, f"it is one value for {len(self._types)} columns")

    def _refused(self, key: object, reason: str) -> Mapping[str, Any]:
        names = ", ".join(f"{name} {each.name}" for name, each in self._types.items())
        raise BadKeyError(
            f"{shown(key)} is not a key of this store: {reason}",
            where=f"columns ({names})",
            fix="Give a tuple in this order, a dict by column, or a model; a single column's value may stand alone",
        )
