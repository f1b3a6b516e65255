"""One query that writes every shape of key and value buffer: a branch per shape, side by side, in one checkpoint.

Each branch groups by columns that start with the branch's own name, so that a checkpoint tells which of its operators
is which. Rows are made from a seed: the same seed is the same checkpoint, but for what Spark itself adds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.oracle.spark_reader import key_names, operator_ids

SHAPES_SCHEMA = """
    s string, i int, l long, narrow decimal(10,2), wide decimal(30,5), day date, at timestamp, local timestamp_ntz,
    b binary, d double, f float, flag boolean, tiny tinyint, short smallint,
    pair struct<name: string, inner: struct<n: int, wide: decimal(30,5)>>, items array<string>, event timestamp
"""
"""Columns of the input, one name for each type."""

FIRST_EVENT = datetime(2024, 3, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Branch:
    """A stateful branch: the columns it groups by (named after it), and what it keeps for each group."""

    name: str
    keys: Callable[[], dict[str, Column]]
    buffers: Callable[[], list[Column]]


def _by(*names: str) -> Callable[[], dict[str, Column]]:
    return lambda: {name: F.col(name) for name in names}


BRANCHES: tuple[Branch, ...] = (
    Branch(
        "composite",
        _by("s", "i", "l"),
        lambda: [F.count("*"), F.sum("i"), F.avg("i"), F.min("s"), F.max("at")],
    ),
    Branch("text", _by("s"), lambda: [F.count("i"), F.first("s"), F.last("day", ignorenulls=True)]),
    Branch("narrow", _by("narrow"), lambda: [F.sum("narrow"), F.avg("narrow"), F.max("wide")]),
    Branch("wide", _by("wide"), lambda: [F.sum("wide"), F.min("wide"), F.max("narrow"), F.count("wide")]),
    Branch("date", _by("day"), lambda: [F.count("*"), F.min("day"), F.max("local")]),
    Branch("timestamp", _by("at"), lambda: [F.count("*"), F.min("at"), F.last("s")]),
    Branch("local", _by("local"), lambda: [F.max("local"), F.min("b")]),
    Branch("binary", _by("b"), lambda: [F.count("*"), F.max("b"), F.min("flag")]),
    Branch("double", _by("d"), lambda: [F.count("*"), F.min("d"), F.max("d"), F.stddev("i"), F.sum("d")]),
    Branch("float", _by("f"), lambda: [F.sum("f"), F.max("f"), F.last("f")]),
    Branch("struct", _by("pair"), lambda: [F.count("*"), F.max("pair"), F.last("items")]),
    Branch("array", _by("items"), lambda: [F.count("*"), F.last("pair"), F.avg("d")]),
    Branch("small", _by("flag", "tiny", "short"), lambda: [F.sum("tiny"), F.max("short"), F.min("flag")]),
    Branch(
        "window",
        lambda: {"hour": F.window("event", "1 hour"), "s": F.col("s")},
        lambda: [F.count("*"), F.max("event"), F.sum("narrow")],
    ),
    Branch("global", dict, lambda: [F.count("*"), F.sum("i"), F.avg("wide"), F.max("s")]),
)
BRANCH_NAMES = tuple(branch.name for branch in BRANCHES)


def build_shapes(source: DataFrame, names: Sequence[str] = BRANCH_NAMES) -> DataFrame:
    """The query: the branches of those names beside each other, each row of their output as one string."""
    chosen = [branch for branch in BRANCHES if branch.name in names]
    return reduce(DataFrame.unionAll, [_branch(source, branch) for branch in chosen])


def shape_batches(seed: int = 0, *, batches: int = 6, rows_per_batch: int = 200) -> list[list[dict[str, object]]]:
    """Rows for `build_shapes`: groups come back in later batches, and event time moves two hours with each batch."""
    rng = random.Random(seed)
    pool = _Pool(rng)
    return [[_row(rng, pool, batch) for _ in range(rows_per_batch)] for batch in range(batches)]


def _branch(source: DataFrame, branch: Branch) -> DataFrame:
    if branch.name == "window":
        source = source.withWatermark("event", "1 hour")
    aggregates = [buffer.alias(f"r{n}") for n, buffer in enumerate(branch.buffers())]
    keys = branch.keys()
    # Grouping by a renamed expression keeps the expression's name; by a column of that name, the state has the name.
    keyed = source.select("*", *[column.alias(f"{branch.name}_{name}") for name, column in keys.items()])
    grouped = keyed.groupBy(*[f"{branch.name}_{name}" for name in keys]).agg(*aggregates)
    return grouped.select(F.to_json(F.struct(*[F.col(f"r{n}") for n in range(len(aggregates))])).alias("row"))


class _Pool:
    """Values to choose from: the awkward ones of each type, and a few ordinary ones."""

    def __init__(self, rng: random.Random) -> None:
        self.s = [
            None,
            "",
            "a",
            "日本語é",
            "\u0000",
            "x" * 70,
            "12345678",
            *(f"key-{rng.getrandbits(40):x}" for _ in range(25)),
        ]
        self.i = [None, 0, -1, 2**31 - 1, -(2**31), 7]
        self.l = [None, 0, -1, 2**63 - 1, -(2**63), 10**12]
        self.narrow = [None, *map(Decimal, ("0.00", "-0.01", "12.34", "99999999.99", "-99999999.99"))]
        self.narrow += [Decimal(rng.randrange(-(10**9), 10**9)).scaleb(-2) for _ in range(25)]
        self.wide = [None, *map(Decimal, ("0.00000", "-1.00000", "0.00001", f"{'9' * 25}.99999", f"-{'9' * 25}.99999"))]
        self.wide += [Decimal(rng.randrange(-(10**29), 10**29)).scaleb(-5) for _ in range(25)]
        self.day = [None, date(1970, 1, 1), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31)]
        self.day += [date(2024, 1, 1) + timedelta(days=rng.randrange(400)) for _ in range(20)]
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        self.at = [None, epoch, epoch - timedelta(microseconds=1), datetime(1883, 11, 18, 12, 3, 58, 1, tzinfo=UTC)]
        self.at += [FIRST_EVENT + timedelta(microseconds=rng.randrange(10**13)) for _ in range(25)]
        self.local = [None if at is None else at.replace(tzinfo=None) for at in self.at]
        self.b = [
            None,
            b"",
            b"\x00",
            b"\x00\xff\x80",
            bytes(range(256)),
            *(rng.randbytes(rng.randrange(1, 20)) for _ in range(25)),
        ]
        self.d = [None, 0.0, -0.0, float("nan"), float("inf"), float("-inf"), 5e-324, -1.5, 1.7976931348623157e308]
        self.d += [rng.uniform(-1e6, 1e6) for _ in range(20)]
        self.f = [None, 0.0, -0.0, float("nan"), float("inf"), float("-inf"), 0.5, -1.25, 2.0**100]
        self.items = [None, [], [None], [""], ["a", None, "日本語é"], ["a", "b"], *([s] for s in self.s[7:25])]


def _row(rng: random.Random, pool: _Pool, batch: int) -> dict[str, object]:
    pick = rng.choice
    inner = pick([None, {"n": pick(pool.i), "wide": pick(pool.wide[:8])}])
    event = FIRST_EVENT + timedelta(hours=2 * batch, microseconds=rng.randrange(2 * 3600 * 10**6))
    return {
        **{name: pick(values) for name, values in vars(pool).items()},
        "flag": pick([None, True, False]),
        "tiny": pick([None, -128, 127, 0, 5]),
        "short": pick([None, -32768, 32767, 0]),
        "pair": pick([None, {"name": pick(pool.s[:7]), "inner": inner}]),
        "event": event,
    }


def operators_by_branch(spark: SparkSession, checkpoint: Path) -> dict[str, int]:
    """Which operator of a checkpoint is which branch, by the names of their key columns."""
    found = {}
    for operator_id in operator_ids(checkpoint):
        names = key_names(spark, checkpoint, operator_id)
        found[names[0].partition("_")[0] if names else "global"] = operator_id
    return found
