"""The Avro schemas of a state variable: the newest, by which values are shown, and earlier ones, by which records were
written.

Spark writes a schema file when a query starts with other columns, and never changes one. Each record has the number of
the schema that it was written with. Keys never change their columns; where the files show other ones, the variable is
refused. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from understudy_node.checkpoint.avro_keys import compile_avro_encoder
from understudy_node.checkpoint.avro_records import compile_avro_decoder, is_written_alike
from understudy_node.checkpoint.schemas import ColumnFamilySchema, SchemaFile
from understudy_shared.base.errors import UnsupportedError
from understudy_shared.spark.types import StructType, parse_schema

_FIX: Final = "Start the query on a new checkpoint, or use a newer Understudy"


@dataclass(frozen=True, slots=True)
class AvroHistory:
    """All schema files of a store, oldest first. `separator` is between two records of a list."""

    files: tuple[SchemaFile, ...]
    where: str
    separator: bytes


@dataclass(frozen=True, slots=True)
class AvroRows:
    """The encoding of a variable's records.

    `first` are the columns of a key, or of the part of it that a scan begins with; `rest` those behind it. `written`
    has the columns of values by the number of their schema. `separator` is between two records of a list.
    """

    first: StructType
    rest: StructType
    key_schema_id: int
    written: Mapping[int, StructType]
    separator: bytes


def avro_rows(history: AvroHistory, name: str, key: StructType, *, is_prefixed: bool, has_values: bool) -> AvroRows:
    """Return how the variable's records are encoded. Raises UnsupportedError where some would be doubtful."""
    families = [family for file in history.files for family in file.families if family.name == name]
    split = 1 if is_prefixed else len(key.fields)
    first, rest = StructType(key.fields[:split]), StructType(key.fields[split:])
    try:
        _require_one_key(families, key)
        for part in (first, rest) if is_prefixed else (first,):
            # Compiled only to refuse here, by name, what no lookup could read; readers compile their own.
            compile_avro_encoder(part)
            compile_avro_decoder(part, part)
        written = _written(families) if has_values else {}
    except UnsupportedError as error:
        raise UnsupportedError(
            f"State variable {name} cannot be read: {error.what}, {error.where}", where=history.where, fix=error.fix
        ) from None
    return AvroRows(first, rest, families[-1].key_schema_id, MappingProxyType(written), history.separator)


def _require_one_key(families: Sequence[ColumnFamilySchema], key: StructType) -> None:
    """Require that keys of all schemas are the same bytes: a lookup finds keys by them."""
    for family in families:
        is_other = family.key_schema_id != families[-1].key_schema_id
        if is_other or not is_written_alike(parse_schema(family.key_schema), key):
            raise UnsupportedError("its keys have changed", where=f"key schema {family.key_schema_id}", fix=_FIX)


def _written(families: Sequence[ColumnFamilySchema]) -> dict[int, StructType]:
    """Return the columns by the number of their schema, each readable as those of the newest."""
    shown = parse_schema(families[-1].value_schema)
    written: dict[int, StructType] = {}
    for family in families:
        columns = parse_schema(family.value_schema)
        known = written.setdefault(family.value_schema_id, columns)
        if known != columns or not is_written_alike(known, columns):
            raise UnsupportedError("two schemas have one number", where=f"schema {family.value_schema_id}", fix=_FIX)
        # To know now, and not at the first such record, whether it can be read.
        compile_avro_decoder(columns, shown)
    return written
