"""Random statements that Spark SQL and DuckDB both have, over two stores of a query, and what each says to them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.types import StructField, StructType
from tests.support.sql.statements import sorted_rows

from understudy.sql.session import SqlSession
from understudy.sql.tables import Table, identifier
from understudy_shared.spark import types as t

KEPT = ("l", "narrow", "wide", "day", "at", "local", "b", "d", "f", "flag", "tiny", "short", "pair", "items")

_WHOLE = ["0", "-1", "7", "3", "-2147483648", "2147483647", "1000000000000", "4.0"]
_REAL = ["0.0", "-1.5e0", "1e300", "0.5", "cast('nan' as double)", "cast('Infinity' as double)", "-2"]
_MOMENT = [
    f"timestamp '{each}'" for each in ("1970-01-01 00:00:00", "2024-03-01 05:00:00", "1969-12-31 23:59:59.999999")
]
_CONSTANTS: Mapping[type[t.SparkType], Sequence[str]] = {
    t.StringType: ["'a'", "''", "'12345678'", "'日本語é'", "'key-5'", "'x'"],
    **dict.fromkeys((t.ByteType, t.ShortType, t.IntType, t.LongType), _WHOLE),
    t.DecimalType: ["0.00", "-0.01", "12.34", "0.00001", "-1", "99999999.99"],
    t.DateType: [f"date '{each}'" for each in ("1970-01-01", "2024-03-01", "0001-01-01", "2024-11-30")],
    **dict.fromkeys((t.TimestampType, t.TimestampNtzType), _MOMENT),
    t.BinaryType: ["unhex('00')", "unhex('')", "unhex('00FF80')"],
    **dict.fromkeys((t.FloatType, t.DoubleType), _REAL),
}
_OPS = ("=", "=", "<>", "<", "<=", ">", ">=", "is distinct from")


def build(source: DataFrame) -> DataFrame:
    """Two aggregations: one that keeps a value of each type for a composite key, and one of a number."""
    wide = source.groupBy("s", "i").agg(F.count("*").alias("n"), *[F.last(each).alias(each) for each in KEPT])
    few = source.groupBy("l").agg(F.count("*").alias("n"), F.max("i").alias("i"), F.min("s").alias("s"))
    rows = [each.select(F.to_json(F.struct(*each.columns)).alias("row")) for each in (wide, few)]
    return rows[0].unionAll(rows[1])


def stored(table: Table) -> list[Any]:
    """The columns of a table that Spark's reader has, in its order."""
    return [each for each in table.columns if len(each.path) > 1 and each.path[0] in ("key", "value")]


def register(spark: SparkSession, name: str, state: DataFrame, table: Table) -> DataFrame:
    """Make the rows of Spark's state reader a view with the names of a table: its columns have the same order."""
    fields = [f"{part}.{at}" for part in ("key", "value") for at in range(len(_fields(state, part)))]
    numbered = state.select(*[_numbered(state, part).alias(part) for part in ("key", "value")])
    columns = [F.col(f"{each.replace('.', '.c')}") for each in fields]
    names = [each.name for each in stored(table)]
    assert len(columns) == len(names), (state.schema.simpleString(), names)
    view = numbered.select(*[column.alias(each) for column, each in zip(columns, names, strict=True)]).cache()
    view.createOrReplaceTempView(name)
    return view


def _fields(state: DataFrame, part: str) -> list[StructField]:
    struct = state.schema[part].dataType
    assert isinstance(struct, StructType)
    return struct.fields


def _numbered(state: DataFrame, part: str) -> Any:
    """A struct whose fields are named by position: Spark gives one name to several."""
    text = ",".join(f"c{at}:{each.dataType.simpleString()}" for at, each in enumerate(_fields(state, part)))
    return F.col(part).cast(f"struct<{text}>")


class Statements:
    """Random statements over two tables."""

    def __init__(self, seed: int, wide: Table, few: Table) -> None:
        self._rng = random.Random(seed)
        self._wide, self._few = wide, few
        self._columns = {
            each.name: each.type for each in stored(wide) if type(each.type) in (*_CONSTANTS, t.BooleanType)
        }
        self._plain = [
            name for name, each in self._columns.items() if not isinstance(each, (t.FloatType, t.DoubleType))
        ]
        self._keys = [each.name for each in stored(wide) if each.path[0] == "key"]
        self._joined = next(each.name for each in stored(few) if isinstance(each.type, t.StringType))

    def one(self) -> str:
        """A statement. Names stand in ``, tables by their names."""
        rng, where = self._rng, self._predicate(2)
        some = ", ".join(map(_quoted, rng.sample([*self._columns], 3)))
        keys = ", ".join(f"{_quoted(each)} nulls first" for each in self._keys)
        wide, few, text = self._wide.name, self._few.name, _quoted(self._keys[0])
        match rng.randrange(9):
            case 0:
                lowest, highest = map(_quoted, rng.sample(self._plain, 2))
                return (
                    f"select count(*) c, count({lowest}) n, min({lowest}) x, max({highest}) y from {wide} where {where}"
                )
            case 1:
                group = _quoted(rng.choice(self._plain))
                return f"select {group} g, count(*) c from {wide} where {where} group by {group} having count(*) > 0"
            case 2:
                return f"with q as (select * from {wide} where {where}) select {some} from q where {self._predicate(0)}"
            case 3:
                joined = _quoted(self._joined)
                join = f"{wide} a join {few} b on a.{text} = b.{joined}"
                return f"select a.{text} x, count(*) c from {join} group by a.{text}"
            case 4:
                return (
                    f"select {some} from {wide} where {text} in (select {_quoted(self._joined)} from {few}) and {where}"
                )
            case 5:
                return f"select {some} from {wide} where {where} order by {keys} limit {rng.choice((1, 7, 40))}"
            case 6:
                return f"select distinct {_quoted(rng.choice(self._plain))} x from {wide} where {where}"
            case 7:
                keyed = " and ".join(self._simple(each) for each in self._keys)
                return f"select * from (select {some} from {wide} where {keyed}) q"
            case _:
                return f"select {some} from {wide} where {where}"

    def _predicate(self, depth: int) -> str:
        rng = self._rng
        if depth and rng.random() < 0.6:
            op = rng.choice(("and", "and", "or"))
            return f"({self._predicate(depth - 1)} {op} {self._predicate(depth - 1)})"
        name = rng.choice([*self._columns])
        match rng.randrange(8):
            case 0:
                return f"not ({self._predicate(0)})"
            case 1:
                return f"{_quoted(name)} is {rng.choice(('', 'not '))}null"
            case 2:
                text = _quoted(self._keys[0])
                return rng.choice((f"{text} like 'key-%'", f"length({text}) > 5", f"coalesce({text}, 'a') = 'a'"))
            case _:
                return self._simple(name)

    def _simple(self, name: str) -> str:
        rng, kind = self._rng, type(self._columns[name])
        quoted = _quoted(name)
        if kind is t.BooleanType:
            return rng.choice((quoted, f"not {quoted}"))
        constants = _CONSTANTS[kind]
        match rng.randrange(5):
            case 0:
                chosen = ", ".join(rng.sample(constants, min(len(constants), rng.randint(1, 4))))
                return f"{quoted} {rng.choice(('', 'not '))}in ({chosen})"
            case 1:
                return f"{quoted} between {rng.choice(constants)} and {rng.choice(constants)}"
            case _:
                return f"{quoted} {rng.choice(_OPS)} {rng.choice(constants)}"


def _quoted(name: str) -> str:
    return f"`{name}`"


def differences(session: SqlSession, spark: SparkSession, asked: Iterable[str]) -> list[str]:
    """The statements to which a session says something else than Spark."""
    found = []
    for statement in asked:
        with session.run(re.sub(r"`(.+?)`", lambda each: identifier(each[1], ("s", each[1])), statement)) as answer:
            ours = sorted_rows(answer.table())
        theirs = sorted_rows(spark.sql(statement).toArrow())
        if ours != theirs:
            found.append(f"{statement}: {len(ours)} rows, not {len(theirs)}; {sorted({*ours} ^ {*theirs})[:2]}")
    return found
