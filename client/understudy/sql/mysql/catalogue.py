"""Tables about tables: the information schema, SHOW and DESCRIBE of MySQL, as DuckDB answers them (pure).

A SHOW is a SELECT over tables of the information schema, so LIKE and WHERE hold for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlglot import expressions as exp

from understudy.sql.errors import SqlError
from understudy.sql.mysql.dialect import DATABASE, INFORMATION_SCHEMA, catalogue_name
from understudy.sql.table_columns import Table
from understudy_shared.base.printable import printable
from understudy_shared.base.suggest import did_you_mean
from understudy_shared.spark import types as t

Rows = Sequence[Sequence[Any]]
Described = tuple[str, Rows]
"""A table: the names of its columns, with spaces between them, and its rows."""

_CHARSET, _COLLATION = "utf8mb4", "utf8mb4_bin"
_ENGINE: Final = "Understudy"

_TYPES: Final[Mapping[type[t.SparkType], str]] = {
    t.BooleanType: "tinyint(1)",
    t.ByteType: "tinyint",
    t.ShortType: "smallint",
    t.IntType: "int",
    t.LongType: "bigint",
    t.FloatType: "float",
    t.DoubleType: "double",
    t.StringType: "longtext",
    t.BinaryType: "longblob",
    t.DateType: "date",
    t.TimestampType: "datetime(6)",
    t.TimestampNtzType: "datetime(6)",
    t.ArrayType: "json",
    t.StructType: "json",
    t.MapType: "json",
}


def type_text(spark_type: t.SparkType) -> str:
    """Return the type of MySQL that a column is said to have."""
    if isinstance(spark_type, t.DecimalType):
        return f"decimal({spark_type.precision},{spark_type.scale})"
    return _TYPES.get(type(spark_type), "longtext")


_EMPTY: Final = {
    "views": "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME VIEW_DEFINITION CHECK_OPTION IS_UPDATABLE DEFINER SECURITY_TYPE",
    "routines": "SPECIFIC_NAME ROUTINE_CATALOG ROUTINE_SCHEMA ROUTINE_NAME ROUTINE_TYPE DATA_TYPE ROUTINE_DEFINITION "
    "ROUTINE_COMMENT DEFINER CREATED LAST_ALTERED SECURITY_TYPE SQL_MODE",
    "parameters": "SPECIFIC_CATALOG SPECIFIC_SCHEMA SPECIFIC_NAME ORDINAL_POSITION PARAMETER_MODE PARAMETER_NAME "
    "DATA_TYPE DTD_IDENTIFIER ROUTINE_TYPE",
    "triggers": "TRIGGER_CATALOG TRIGGER_SCHEMA TRIGGER_NAME EVENT_MANIPULATION EVENT_OBJECT_SCHEMA EVENT_OBJECT_TABLE "
    "ACTION_STATEMENT ACTION_TIMING CREATED SQL_MODE DEFINER",
    "events": "EVENT_CATALOG EVENT_SCHEMA EVENT_NAME DEFINER EVENT_DEFINITION EVENT_TYPE STATUS",
    "referential_constraints": "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME UNIQUE_CONSTRAINT_SCHEMA "
    "UNIQUE_CONSTRAINT_NAME MATCH_OPTION UPDATE_RULE DELETE_RULE TABLE_NAME REFERENCED_TABLE_NAME",
    "check_constraints": "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME CHECK_CLAUSE",
    "partitions": "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME PARTITION_NAME PARTITION_METHOD PARTITION_EXPRESSION",
    "processlist": "ID USER HOST DB COMMAND TIME STATE INFO",
    "plugins": "PLUGIN_NAME PLUGIN_STATUS PLUGIN_TYPE PLUGIN_LIBRARY PLUGIN_LICENSE",
    "schema_privileges": "GRANTEE TABLE_CATALOG TABLE_SCHEMA PRIVILEGE_TYPE IS_GRANTABLE",
    "warnings": "Level Code Message",
    "status": "VARIABLE_NAME VARIABLE_VALUE",
}
_COLUMNS: Final = (
    "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME COLUMN_NAME ORDINAL_POSITION COLUMN_DEFAULT IS_NULLABLE DATA_TYPE "
    "CHARACTER_MAXIMUM_LENGTH CHARACTER_OCTET_LENGTH NUMERIC_PRECISION NUMERIC_SCALE DATETIME_PRECISION "
    "CHARACTER_SET_NAME COLLATION_NAME COLUMN_TYPE COLUMN_KEY EXTRA PRIVILEGES COLUMN_COMMENT GENERATION_EXPRESSION"
)
_TABLES: Final = (
    "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME TABLE_TYPE ENGINE VERSION ROW_FORMAT TABLE_ROWS AVG_ROW_LENGTH DATA_LENGTH "
    "MAX_DATA_LENGTH INDEX_LENGTH DATA_FREE AUTO_INCREMENT CREATE_TIME UPDATE_TIME CHECK_TIME TABLE_COLLATION CHECKSUM "
    "CREATE_OPTIONS TABLE_COMMENT"
)
_STATISTICS: Final = (
    "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME NON_UNIQUE INDEX_SCHEMA INDEX_NAME SEQ_IN_INDEX COLUMN_NAME COLLATION "
    "CARDINALITY SUB_PART PACKED NULLABLE INDEX_TYPE COMMENT INDEX_COMMENT IS_VISIBLE EXPRESSION"
)

_KEY_COLUMNS: Final = (
    "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME TABLE_CATALOG TABLE_SCHEMA TABLE_NAME COLUMN_NAME "
    "ORDINAL_POSITION POSITION_IN_UNIQUE_CONSTRAINT REFERENCED_TABLE_SCHEMA REFERENCED_TABLE_NAME "
    "REFERENCED_COLUMN_NAME"
)


def information_schema(tables: Sequence[Table], variables: Sequence[tuple[str, Any]]) -> dict[str, Described]:
    """Return the tables of the information schema, by their names in lower case."""
    described: dict[str, Described] = {
        "schemata": (
            "CATALOG_NAME SCHEMA_NAME DEFAULT_CHARACTER_SET_NAME DEFAULT_COLLATION_NAME SQL_PATH DEFAULT_ENCRYPTION",
            [("def", each, _CHARSET, _COLLATION, None, "NO") for each in (DATABASE, INFORMATION_SCHEMA)],
        ),
        "columns": (_COLUMNS, [row for table in tables for row in _column_rows(table)]),
        "statistics": (_STATISTICS, [row for table in tables for row in _index_rows(table)]),
        "key_column_usage": (
            _KEY_COLUMNS,
            [
                ("def", DATABASE, "PRIMARY", "def", DATABASE, table.name, each, at, None, None, None, None)
                for table in tables
                for at, each in enumerate(primary_key(table), 1)
            ],
        ),
        "table_constraints": (
            "CONSTRAINT_CATALOG CONSTRAINT_SCHEMA CONSTRAINT_NAME TABLE_SCHEMA TABLE_NAME CONSTRAINT_TYPE ENFORCED",
            [
                ("def", DATABASE, "PRIMARY", DATABASE, each.name, "PRIMARY KEY", "YES")
                for each in tables
                if primary_key(each)
            ],
        ),
        "engines": (
            "ENGINE SUPPORT COMMENT TRANSACTIONS XA SAVEPOINTS",
            [(_ENGINE, "DEFAULT", "Keyed state of Spark, read-only", "NO", "NO", "NO")],
        ),
        "character_sets": (
            "CHARACTER_SET_NAME DEFAULT_COLLATE_NAME DESCRIPTION MAXLEN",
            [(_CHARSET, _COLLATION, "UTF-8 Unicode", 4)],
        ),
        "collations": (
            "COLLATION_NAME CHARACTER_SET_NAME ID IS_DEFAULT IS_COMPILED SORTLEN PAD_ATTRIBUTE",
            [(_COLLATION, _CHARSET, 46, "Yes", "Yes", 1, "PAD SPACE")],
        ),
        "user_privileges": (
            "GRANTEE TABLE_CATALOG PRIVILEGE_TYPE IS_GRANTABLE",
            [("'reader'@'%'", "def", "SELECT", "NO")],
        ),
        "session_variables": ("VARIABLE_NAME VARIABLE_VALUE", [(name, _text(value)) for name, value in variables]),
        **{name: (columns, []) for name, columns in _EMPTY.items()},
    }
    own = [name for name in described if name not in ("session_variables", "status", "warnings")]
    described["tables"] = (_TABLES, [*map(_table_row, tables), *(_system_row(each) for each in (*own, "tables"))])
    described["global_variables"] = described["session_variables"]
    return described


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return None if value is None else str(value)


def _table_row(table: Table) -> tuple[Any, ...]:
    said = f"Store of Spark's state, kind {table.entry.kind}"
    return (
        "def",
        DATABASE,
        table.name,
        "BASE TABLE",
        _ENGINE,
        10,
        "Dynamic",
        *(None,) * 10,
        _COLLATION,
        None,
        "",
        said,
    )


def _system_row(name: str) -> tuple[Any, ...]:
    kind = ("SYSTEM VIEW", None, 10, None)
    return ("def", INFORMATION_SCHEMA, name.upper(), *kind, *(None,) * 10, None, None, "", "")


def primary_key(table: Table) -> list[str]:
    """Return the columns of the key; empty where one may be null, which MySQL has not."""
    key = {each.name: each.nullable for each in table.entry.key}
    if not key or any(nullable is not False for nullable in key.values()):
        return []
    return [each.name for each in table.columns if len(each.path) > 1 and each.path[0] == "key"]


def _column_rows(table: Table) -> Iterator[tuple[Any, ...]]:
    key = primary_key(table)
    for at, each in enumerate(table.columns, 1):
        kind = type_text(each.type)
        base, _, size = kind.partition("(")
        is_text = isinstance(each.type, t.StringType)
        length = 4294967295 if base in ("longtext", "longblob") else None
        precision, scale = [*map(int, size.rstrip(")").split(",")), None][:2] if base == "decimal" else (None, None)
        yield (
            *(
                "def",
                DATABASE,
                table.name,
                each.name,
                at,
                None,
                "NO" if each.name in key else "YES",
                base,
                length,
                length,
            ),
            *(
                precision,
                scale,
                6 if base == "datetime" else None,
                *((_CHARSET, _COLLATION) if is_text else (None, None)),
            ),
            *(kind, "PRI" if each.name in key else "", "", "select", each.type.name, ""),
        )


def _index_rows(table: Table) -> Iterator[tuple[Any, ...]]:
    for at, each in enumerate(primary_key(table), 1):
        head = ("def", DATABASE, table.name, 0, DATABASE, "PRIMARY", at, each, "A")
        yield (*head, None, None, None, "", "HASH", "", "", "YES", None)


# ---- SHOW


def _of(table: str, columns: str) -> str:
    return f'SELECT {columns} FROM "{catalogue_name(table)}"'  # noqa: S608  # names of this module


def _named(columns: Mapping[str, str]) -> str:
    return ", ".join(f'"{column}" AS "{name}"' for name, column in columns.items())


_FIELDS: Final = {
    "Field": "COLUMN_NAME", "Type": "COLUMN_TYPE", "Null": "IS_NULLABLE", "Key": "COLUMN_KEY",
    "Default": "COLUMN_DEFAULT", "Extra": "EXTRA",
}  # fmt: skip
_FULL_FIELDS: Final = {
    "Field": "COLUMN_NAME", "Type": "COLUMN_TYPE", "Collation": "COLLATION_NAME", "Null": "IS_NULLABLE",
    "Key": "COLUMN_KEY", "Default": "COLUMN_DEFAULT", "Extra": "EXTRA", "Privileges": "PRIVILEGES",
    "Comment": "COLUMN_COMMENT",
}  # fmt: skip
_INDEX: Final = {
    "Table": "TABLE_NAME", "Non_unique": "NON_UNIQUE", "Key_name": "INDEX_NAME", "Seq_in_index": "SEQ_IN_INDEX",
    "Column_name": "COLUMN_NAME", "Collation": "COLLATION", "Cardinality": "CARDINALITY", "Sub_part": "SUB_PART",
    "Packed": "PACKED", "Null": "NULLABLE", "Index_type": "INDEX_TYPE", "Comment": "COMMENT",
    "Index_comment": "INDEX_COMMENT", "Visible": "IS_VISIBLE", "Expression": "EXPRESSION",
}  # fmt: skip
_STATUS: Final = {
    "Name": "TABLE_NAME", "Engine": "ENGINE", "Version": "VERSION", "Row_format": "ROW_FORMAT", "Rows": "TABLE_ROWS",
    "Avg_row_length": "AVG_ROW_LENGTH", "Data_length": "DATA_LENGTH", "Max_data_length": "MAX_DATA_LENGTH",
    "Index_length": "INDEX_LENGTH", "Data_free": "DATA_FREE", "Auto_increment": "AUTO_INCREMENT",
    "Create_time": "CREATE_TIME", "Update_time": "UPDATE_TIME", "Check_time": "CHECK_TIME",
    "Collation": "TABLE_COLLATION", "Checksum": "CHECKSUM", "Create_options": "CREATE_OPTIONS",
    "Comment": "TABLE_COMMENT",
}  # fmt: skip
_VARIABLE: Final = {"Variable_name": "VARIABLE_NAME", "Value": "VARIABLE_VALUE"}
_SIMPLE: Final = {
    "DATABASES": ("schemata", {"Database": "SCHEMA_NAME"}),
    "VARIABLES": ("session_variables", _VARIABLE),
    "STATUS": ("status", _VARIABLE),
    "WARNINGS": ("warnings", {"Level": "Level", "Code": "Code", "Message": "Message"}),
    "ERRORS": ("warnings", {"Level": "Level", "Code": "Code", "Message": "Message"}),
    "ENGINES": (
        "engines",
        {"Engine": "ENGINE", "Support": "SUPPORT", "Comment": "COMMENT", "Transactions": "TRANSACTIONS", "XA": "XA",
         "Savepoints": "SAVEPOINTS"},
    ),
    "COLLATION": (
        "collations",
        {"Collation": "COLLATION_NAME", "Charset": "CHARACTER_SET_NAME", "Id": "ID", "Default": "IS_DEFAULT",
         "Compiled": "IS_COMPILED", "Sortlen": "SORTLEN"},
    ),
    "CHARACTER SET": (
        "character_sets",
        {"Charset": "CHARACTER_SET_NAME", "Description": "DESCRIPTION", "Default collation": "DEFAULT_COLLATE_NAME",
         "Maxlen": "MAXLEN"},
    ),
    "PROCESSLIST": ("processlist", {name.capitalize(): name for name in _EMPTY["processlist"].split()}),
    "PLUGINS": ("plugins", {"Name": "PLUGIN_NAME", "Status": "PLUGIN_STATUS", "Type": "PLUGIN_TYPE"}),
    "TRIGGERS": ("triggers", {"Trigger": "TRIGGER_NAME", "Event": "EVENT_MANIPULATION", "Table": "EVENT_OBJECT_TABLE"}),
    "EVENTS": ("events", {"Db": "EVENT_SCHEMA", "Name": "EVENT_NAME"}),
    "PROCEDURE STATUS": ("routines", {"Db": "ROUTINE_SCHEMA", "Name": "ROUTINE_NAME", "Type": "ROUTINE_TYPE"}),
    "FUNCTION STATUS": ("routines", {"Db": "ROUTINE_SCHEMA", "Name": "ROUTINE_NAME", "Type": "ROUTINE_TYPE"}),
}  # fmt: skip
_OF_TABLES: Final = ("TABLES", "TABLE STATUS")
_OF_A_TABLE: Final = ("COLUMNS", "INDEX", "CREATE TABLE")
_WORDS: Final = {"FIELDS": "COLUMNS", "KEYS": "INDEX", "INDEXES": "INDEX", "SCHEMAS": "DATABASES"}


def rewritten_show(text: str) -> str:
    """Return a SHOW by the word that sqlglot reads, where MySQL has another for the same."""
    words = text.split(maxsplit=3)
    return " ".join(_WORDS.get(each.upper(), each) if at in (1, 2) else each for at, each in enumerate(words))


def show_text(show: exp.Show, tables: Sequence[Table], database: str | None, like: str | None) -> str:
    """Return a SHOW as a SELECT of DuckDB. `like` is its pattern as a constant of DuckDB. Raises SqlError."""
    kind = show.name.upper()
    named = (show.text("db") or database or DATABASE).lower()
    if named not in (DATABASE, INFORMATION_SCHEMA):
        raise SqlError(
            f"there is no database {printable(named)}", where="SQL", fix=f"The stores are tables of {DATABASE}"
        )
    if kind in _SIMPLE:
        table, columns = _SIMPLE[kind]
        select = _of(table, _named(columns))
    elif kind in _OF_TABLES:
        select = _tables_text(show, kind, named)
    elif kind == "GRANTS":
        select = f"SELECT 'GRANT SELECT ON `{DATABASE}`.* TO `reader`@`%`' AS \"Grants\""
    elif kind in _OF_A_TABLE and named == DATABASE:
        select = _table_text(kind, _found(show.text("target"), tables), is_full=bool(show.args.get("full")))
    else:
        known = ", ".join(sorted((*_SIMPLE, *_OF_TABLES, *_OF_A_TABLE, "GRANTS")))
        raise SqlError(f"SHOW {printable(kind)} is not known", where="SQL", fix=f"Known are {known}")
    if like is not None:
        select = _like(select, like)
    where = show.args.get("where")
    if where is not None:
        condition = where.this.sql(dialect="duckdb", identify=True)
        select = f"SELECT * FROM ({select}) AS shown WHERE {condition}"  # noqa: S608  # parsed, and printed anew
    return select


def _like(select: str, like: str) -> str:
    name = select.split(' AS "', 1)[1].split('"', 1)[0]
    return f'SELECT * FROM ({select}) AS shown WHERE "{name}" ILIKE {like}'  # noqa: S608  # a constant


def _tables_text(show: exp.Show, kind: str, database: str) -> str:
    columns = _STATUS if kind == "TABLE STATUS" else {f"Tables_in_{database}": "TABLE_NAME"}
    if show.args.get("full"):
        columns = {**columns, "Table_type": "TABLE_TYPE"}
    return f'{_of("tables", _named(columns))} WHERE lower("TABLE_SCHEMA") = \'{database}\' ORDER BY "TABLE_NAME"'


def _table_text(kind: str, table: Table, *, is_full: bool) -> str:
    name = _constant(table.name)
    if kind == "CREATE TABLE":
        return f'SELECT {name} AS "Table", {_constant(create_table(table))} AS "Create Table"'
    if kind == "INDEX":
        return f'{_of("statistics", _named(_INDEX))} WHERE "TABLE_NAME" = {name} ORDER BY "SEQ_IN_INDEX"'
    columns = _FULL_FIELDS if is_full else _FIELDS
    return f'{_of("columns", _named(columns))} WHERE "TABLE_NAME" = {name} ORDER BY "ORDINAL_POSITION"'


def _found(name: str, tables: Sequence[Table]) -> Table:
    for each in tables:
        if each.name.casefold() == name.casefold():
            return each
    known = [each.name for each in tables]
    fix = did_you_mean(name, known).strip() or "SHOW TABLES lists them"
    raise SqlError(f"there is no table {printable(name)}", where="SQL", fix=fix)


def create_table(table: Table) -> str:
    """Return the statement that would create a table, which is how some tools read its columns."""
    key = primary_key(table)
    lines = [
        f"  {_quoted(each.name)} {type_text(each.type)}{' NOT NULL' if each.name in key else ' DEFAULT NULL'}"
        for each in table.columns
    ]
    if key:
        lines.append(f"  PRIMARY KEY ({','.join(map(_quoted, key))})")
    return (
        f"CREATE TABLE {_quoted(table.name)} (\n"
        + ",\n".join(lines)
        + f"\n) ENGINE={_ENGINE} DEFAULT CHARSET={_CHARSET}"
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _constant(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
