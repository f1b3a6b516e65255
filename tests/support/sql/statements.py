"""Random statements over the table `op0` of `HandmadeTypes`, and what two DuckDBs say to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import duckdb
from tests.support.checkpoint.handmade_types import TEXTS

from understudy.sql.output import json_of
from understudy.sql.session import SqlSession
from understudy_shared.base.errors import UnderstudyError

_TEXT = [*(f"'{each.replace(chr(39), chr(39) * 2)}'" for each in TEXTS), "'k3'", "'k12'"]
_WHOLE = ["-2", "0", "1", "3", "7", "-9223372036854775808", "9007199254740993", "4.0"]
_REAL = ["0.0", "-0.0", "1.5", "-2.25", "1e300", "0.1", "'nan'::double", "'inf'::double", "'-inf'::double", "2"]
_MOMENT = [f"'2013-01-0{day} 0{hour}:00:00'" for day in (1, 2, 5) for hour in (0, 3)]
_CONSTANTS = {
    "k": _TEXT,
    "n": [*_WHOLE, "11", "42", "299", "7000"],
    **dict.fromkeys(("y", "s", "i", "l"), _WHOLE),
    **dict.fromkeys(("f", "d", "pair.x"), _REAL),
    "small": ["-0.05", "0.00", "0.07", "0.005", "3"],
    "big": ["0.0003", "100000000000000000000000000.0001", "1"],
    **dict.fromkeys(("txt", "pair.tag"), _TEXT),
    "raw": ["'\\x00\\x00\\x00'::blob", "'\\x01\\x00\\x01'::blob"],
    "day": ["date '2013-01-01'", "date '2012-12-30'"],
    **{each: [*(f"{text}::timestamptz" for text in _MOMENT), *_MOMENT] for each in ("ts", "w.start", "w.end")},
    "ntz": [f"timestamp {each}" for each in _MOMENT] + ["timestamp '2013-01-01 00:00:00.003'"],
}
_COLUMNS = [*_CONSTANTS, "b", "tags", "m", "w", "pair"]
_OPS = ("=", "=", "<>", "<", "<=", ">", ">=", "is distinct from")


def statements(seed: int, number: int) -> list[str]:
    """Return random statements."""
    rng = random.Random(seed)
    return [_statement(rng) for _ in range(number)]


def differences(session: SqlSession, exported: duckdb.DuckDBPyConnection, asked: Sequence[str]) -> list[str]:
    """Return the statements to which a session says something else than a DuckDB over the exported rows."""
    found = []
    for statement in asked:
        with session.run(statement) as answer:
            ours = sorted_rows(answer.table())
        theirs = sorted_rows(exported.sql(statement).to_arrow_table())
        if ours != theirs:
            found.append(f"{statement}: {len(ours)} rows, not {len(theirs)}")
    return found


def seen(session: SqlSession, exported: duckdb.DuckDBPyConnection, asked: Sequence[str]) -> bool:
    """Whether some statement finds a fault: another result, or an error."""
    try:
        return bool(differences(session, exported, asked))
    except UnderstudyError:
        return True


def sorted_rows(table: Any) -> list[str]:
    columns = [[json_of(each) for each in column] for column in table.columns]
    return sorted(map(repr, zip(*columns, strict=True)))


def _statement(rng: random.Random) -> str:
    where = _predicate(rng, 2)
    columns = ", ".join(rng.sample(_COLUMNS, 3))
    match rng.randrange(8):
        case 0:
            return f"select count(*), min(n), max(l), sum(i) from op0 where {where}"
        case 1:
            # 0.0 and -0.0 are one group, whose value is that of the row that comes first.
            group = rng.choice(("txt", "y", "b", "day", "d + 0.0", "w.start"))
            return f"select {group}, count(*), max(ts) from op0 where {where} group by 1"
        case 2:
            return f"with q as (select * from op0 where {where}) select {columns} from q where {_predicate(rng, 0)}"
        case 3:
            return f"select a.k, a.n, c.l from op0 a join op0 c on a.n = c.i where a.{_simple(rng, 'k')}"
        case 4:
            return f"select n from op0 where k in (select k from op0 where {where})"
        case 5:
            return f"select k, n, {columns} from op0 where {where} order by n, k limit 7"
        case 6:
            key = f"k = {rng.choice(_TEXT)} and n {rng.choice(('= 3', 'in (3, 12, 50, 63)', '= 0', '> 5'))}"
            more = f" and {where}" if rng.random() < 0.3 else ""
            return f"select * exclude (took) from op0 where {key}{more}"
        case _:
            return f"select k, n, {columns} from op0 where {where}"


def _predicate(rng: random.Random, depth: int) -> str:
    if depth and rng.random() < 0.6:
        op = rng.choice(("and", "and", "or"))
        return f"({_predicate(rng, depth - 1)} {op} {_predicate(rng, depth - 1)})"
    match rng.randrange(10):
        case 0:
            return f"not ({_predicate(rng, 0)})"
        case 1:
            return f"{rng.choice(_COLUMNS)} is {rng.choice(('', 'not '))}null"
        case 2:
            return rng.choice(("lower(txt) = 'b'", "txt like 'ab%'", "k like 'k1%'", "length(k) > 2", "b", "not b"))
        case 3:
            return rng.choice(("isnan(d)", "d > f", "tags[1] = 'a'", "m['a'] > 3", "n % 7 = 3"))
        case _:
            return _simple(rng, rng.choice([*_CONSTANTS]))


def _simple(rng: random.Random, column: str) -> str:
    constants = _CONSTANTS[column]
    match rng.randrange(5):
        case 0:
            chosen = ", ".join(rng.sample(constants, min(len(constants), rng.randint(1, 4))))
            return f"{column} {rng.choice(('', 'not '))}in ({chosen})"
        case 1:
            low, high = rng.choice(constants), rng.choice(constants)
            return f"{column} between {low} and {high}"
        case _:
            return f"{column} {rng.choice(_OPS)} {rng.choice(constants)}"
