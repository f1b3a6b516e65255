"""Statements of MySQL as DuckDB has them (pure). It imports sqlglot.

Rule: what cannot be said in DuckDB with the same meaning is an error, and no other statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlglot
from sqlglot import expressions as exp
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError, TokenError

from understudy.sql.errors import SqlError
from understudy_shared.base.printable import clipped, printable

DATABASE: Final = "understudy"
"""The one database, whose tables are the stores."""

INFORMATION_SCHEMA: Final = "information_schema"
MYSQL: Final = "mysql"
MAX_STATEMENT_CHARS: Final = 256 * 1024
_READS: Final = (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)
_BLOCKING: Final = ("SLEEP_MS",)
_ALLOWED: Final = "Write a SELECT, SHOW, DESCRIBE, EXPLAIN, USE or SET of a session's variable"


def parse(text: str) -> exp.Expr:
    """Read one statement. Raises SqlError."""
    if len(text) > MAX_STATEMENT_CHARS:
        what = f"the statement has {len(text)} characters, and {MAX_STATEMENT_CHARS} are read"
        raise SqlError(what, where="SQL", fix="Ask for fewer values at once")
    try:
        found = [each for each in sqlglot.parse(text, read=MYSQL) if each is not None]
    except ParseError as error:
        raise _syntax_error(error) from None
    except (TokenError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SqlError(f"the statement cannot be read: {clipped(why)}", where="SQL", fix=_ALLOWED) from None
    if len(found) != 1:
        what = f"the text has {len(found)} statements" if found else "there is no statement"
        raise SqlError(what, where="SQL", fix="Send one at a time")
    return found[0]


def _syntax_error(error: ParseError) -> SqlError:
    first: Mapping[str, Any] = error.errors[0] if error.errors else {}
    near = printable(str(first.get("highlight") or ""))
    place = f"line {first.get('line', 1)}, column {first.get('col', 1)}"
    what = f"You have an error in your SQL syntax: {printable(str(first.get('description') or 'it cannot be read'))}"
    return SqlError(f"{what}{f', near {near!r}' if near else ''}", where=place, fix=_ALLOWED)


def require_read(expression: exp.Expr) -> exp.Expr:
    """Return a statement that reads; of an EXPLAIN that of a SELECT. Raises SqlError for any other."""
    asked = expression.this if isinstance(expression, exp.Describe) else expression
    if isinstance(asked, _READS) and asked.find(exp.Into) is None:
        return expression
    if isinstance(expression, (exp.Condition, exp.Alias)):
        shown = printable(clipped(expression.sql(dialect=MYSQL)))
        raise SqlError(f"You have an error in your SQL syntax: {shown} is no statement", where="SQL", fix=_ALLOWED)
    kind = expression.key.upper() if not isinstance(expression, exp.Command) else str(expression.this).upper()
    raise SqlError(f"{printable(kind)} is not allowed: statements read stores, and nothing else", fix=_ALLOWED)


def reads_information_schema(expression: exp.Expr) -> bool:
    """Whether a statement reads the tables that describe tables."""
    return any(each.db.lower() == INFORMATION_SCHEMA for each in expression.find_all(exp.Table))


def duckdb_text(expression: exp.Expr, database: str | None, *, max_rows: int | None = None) -> str:
    """Return a statement as DuckDB's. `database` is the one that names without any are of; `max_rows` is a limit for a
    statement that has none of its own. Raises SqlError.
    """
    statement = expression.copy()
    subject = statement.this if isinstance(statement, exp.Describe) else statement
    if isinstance(subject, exp.Select):
        _name_columns(subject)
    if max_rows is not None and isinstance(subject, exp.Query) and subject.args.get("limit") is None:
        subject.set("limit", exp.Limit(expression=exp.Literal.number(max_rows)))
    explained = "EXPLAIN " if isinstance(statement, exp.Describe) else ""
    subject = subject.transform(lambda node: _translated(node, database), copy=False)
    try:
        text = subject.sql(dialect="duckdb", identify=True, unsupported_level=ErrorLevel.RAISE)
    except SqlglotError as error:
        raise SqlError(
            f"the statement has no form in DuckDB: {printable(clipped(str(error)))}",
            where="SQL",
            fix="Write it simpler",
        ) from None
    except RecursionError:
        raise SqlError("the statement is nested too deeply", where="SQL", fix="Write it simpler") from None
    return explained + text


def _name_columns(select: exp.Select) -> None:
    """Name the columns of a result that have no name, as MySQL does: by their text."""
    select.set(
        "expressions",
        [
            exp.alias_(each, each.sql(dialect=MYSQL), quoted=True, copy=False) if _is_nameless(each) else each
            for each in select.expressions
        ],
    )


def _is_nameless(expression: exp.Expr) -> bool:
    return not isinstance(expression, (exp.Alias, exp.Column, exp.Star)) and not expression.is_star


def _translated(node: exp.Expr, database: str | None) -> exp.Expr:
    match node:
        case exp.Table():
            return _table(node, database)
        case exp.Column() if node.args.get("db") is not None:
            node.set("db", None)
            node.set("catalog", None)
        case exp.Select():
            node.set("locks", None)
            node.set("operation_modifiers", None)  # advice for MySQL's planner
        case exp.Collate() | exp.Introducer():
            inner: exp.Expr = node.this if isinstance(node, exp.Collate) else node.expression
            return inner
        case exp.Cast() if node.to.this is exp.DataType.Type.CHARACTER_SET:
            return exp.cast(node.this, "text", copy=False)
        case exp.Add() | exp.Sub() if isinstance(node.expression, exp.Interval) and node.this.is_string:
            node.set("this", exp.cast(node.this, "timestamp", copy=False))
        case exp.UnixToTime() if node.args.get("format") is not None:
            return exp.func("DATE_FORMAT", exp.func("FROM_UNIXTIME", node.this), node.args["format"], dialect=MYSQL)
        case exp.Func():
            if _function_name(node) in _BLOCKING:
                raise SqlError(
                    f"{_function_name(node)} is not allowed: it cannot be stopped", where="SQL", fix=_ALLOWED
                )
            made = _FUNCTIONS.get(_function_name(node))
            return node if made is None else made(node)
    return node


def _table(table: exp.Table, database: str | None) -> exp.Expr:
    """Return a table without its database. Those of the information schema have names of their own."""
    if not isinstance(table.this, exp.Identifier):
        raise SqlError("a function is not allowed as a table", where="SQL", fix=_ALLOWED)
    named = table.db.lower() or (database or DATABASE).lower()
    if table.catalog or named not in (DATABASE, INFORMATION_SCHEMA):
        shown = printable(table.catalog or table.db or named)
        raise SqlError(f"there is no database {shown}", where="SQL", fix=f"The stores are tables of {DATABASE}")
    table.set("db", None)
    if named == INFORMATION_SCHEMA:
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        table.set("this", exp.to_identifier(catalogue_name(table.name), quoted=True))
    return table


def catalogue_name(table: str) -> str:
    """Return the name of a table of the information schema in DuckDB, which has one of its own."""
    return f"{INFORMATION_SCHEMA} {table.lower()}"


def _function_name(node: exp.Func) -> str:
    return node.name.upper() if isinstance(node, exp.Anonymous) else node.sql_name()


def _argument(node: exp.Func) -> exp.Expr | None:
    found = node.expressions if isinstance(node, exp.Anonymous) else [node.this]
    return found[0] if found and found[0] is not None else None


def _template(text: str) -> Callable[[exp.Func], exp.Expr]:
    """Return a function that puts a call's arguments in place of `@0`, `@1` in an expression of DuckDB."""

    def made(node: exp.Func) -> exp.Expr:
        given = node.expressions if isinstance(node, exp.Anonymous) else [node.this]
        parsed = sqlglot.parse_one(text, read="duckdb")

        def placed(inner: exp.Expr) -> exp.Expr:
            if not isinstance(inner, exp.Column) or not inner.name.startswith("arg_"):
                return inner
            at = int(inner.name.removeprefix("arg_"))
            if at >= len(given) or given[at] is None:
                what = f"{_function_name(node)} has too few arguments"
                raise SqlError(what, where="SQL", fix="Give it what MySQL's has")
            return exp.paren(given[at], copy=True)

        return exp.paren(parsed.transform(placed), copy=False)

    return made


def _unix_timestamp(node: exp.Func) -> exp.Expr:
    if _argument(node) is None:
        return sqlglot.parse_one("CAST(EPOCH(NOW()) AS BIGINT)", read="duckdb")
    return _template("CAST(FLOOR(EPOCH(CAST(arg_0 AS TIMESTAMP))) AS BIGINT)")(node)


_FUNCTIONS: Final[Mapping[str, Callable[[exp.Func], exp.Expr]]] = {
    "CURRENT_DATE": _template("CAST(NOW() AS DATE)"),
    "UTC_TIMESTAMP": _template("NOW()"),
    "SYSDATE": _template("NOW()"),
    "UNIX_TIMESTAMP": _unix_timestamp,
    "MAKEDATE": _template("MAKE_DATE(arg_0, 1, 1) + CAST(arg_1 - 1 AS INTEGER)"),
    "DAYOFWEEK": _template("ISODOW(arg_0) % 7 + 1"),
    "DAY_OF_WEEK": _template("ISODOW(arg_0) % 7 + 1"),
    "WEEKDAY": _template("ISODOW(arg_0) - 1"),
}
"""Functions that DuckDB lacks, or has with another meaning."""


def placeholders(text: str) -> list[tuple[int, int]]:
    """Return where the parameters of a prepared statement stand. Raises SqlError."""
    try:
        tokens = sqlglot.tokenize(text, read=MYSQL)
    except TokenError as error:
        raise SqlError(f"the statement cannot be read: {clipped(str(error))}", where="SQL", fix=_ALLOWED) from None
    return [(each.start, each.end + 1) for each in tokens if each.token_type is sqlglot.TokenType.PLACEHOLDER]


def filled(text: str, places: list[tuple[int, int]], values: list[str]) -> str:
    """Return a statement with its parameters, which are texts of constants."""
    parts, at = [], 0
    for (start, end), value in zip(places, values, strict=True):
        parts += [text[at:start], value]
        at = end
    return "".join([*parts, text[at:]])
