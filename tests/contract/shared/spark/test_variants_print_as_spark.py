"""A variant is printed as Spark's own `to_json` prints it: documents at random, and each type that one may have."""

from __future__ import annotations

import json
import random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from understudy_shared.spark.json_printer import variant_json

DOCUMENTS = 400
WORDS = [
    "",
    "a",
    "B",
    "日本語é",
    "😀",
    'quote " and \\ and /',
    "line\nand\ttab\x7f",
    "\x01\x1b\x1f",
    "x" * 63,
    "x" * 64,
    "x" * 300,
]
NUMBERS = [
    "0",
    "-1",
    "127",
    "128",
    "-32769",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "-0.0",
    "100.00",
]
NUMBERS += [
    "0.001",
    "-12.5000",
    "1e2",
    "1e-3",
    "9.999e-4",
    "9999999e0",
    "1e7",
    "-1.5e300",
    "4.9e-324",
    "123456789012345678.5",
]
TYPED = (
    *("127Y", "-32768S", "2147483647", "-9223372036854775808L", "true", "X'0001ff'", "X''", "'x'", "repeat('é', 100)"),
    *("1.5F", "cast(0.1 AS float)", "cast(1e10 AS float)", "cast('NaN' AS float)", "cast('-Infinity' AS double)"),
    *("0.0D", "-0.0D", "0.001D", "1e-4D", "9999999.0D", "1e7D", "12345678.9D", "1.7976931348623157E308D"),
    *("100.00BD", "0.00BD", "-0.001BD", "12345678901234567890123456789012345678BD", "-1234567890.12BD"),
    *("date'1969-12-31'", "date'-0044-03-15'", "date'9999-12-31'", "timestamp'2024-01-31 12:34:56.120'"),
    *(
        "timestamp'1969-12-31 23:59:59.999999'",
        "timestamp_ntz'2024-01-31 12:34:00'",
        "timestamp_ntz'0001-01-01 00:00:01'",
    ),
)


def _document(rng: random.Random, depth: int = 0) -> str:
    kind = rng.random()
    if depth < 5 and kind < 0.35:
        names = rng.sample([*WORDS, *(f"key-{each}" for each in range(9))], rng.randrange(6))
        return f"{{{','.join(f'{json.dumps(name)}:{_document(rng, depth + 1)}' for name in names)}}}"
    if depth < 5 and kind < 0.6:
        return f"[{','.join(_document(rng, depth + 1) for _ in range(rng.randrange(6)))}]"
    if kind < 0.8:
        return rng.choice([*NUMBERS, str(rng.randrange(-(2**63), 2**63)), f"{rng.uniform(-1, 1):.12e}"])
    return rng.choice([*map(json.dumps, WORDS), "null", "true", "false"])


def test_every_value_is_the_text_that_spark_makes_of_it(spark: SparkSession) -> None:
    rng = random.Random(7)
    wide = json.dumps({f"name-{each}": [each] * (each % 3) for each in range(300)})
    texts = [
        *(_document(rng) for _ in range(DOCUMENTS)),
        wide,
        json.dumps(list(range(300))),
        json.dumps(["x" * 9000] * 9),
    ]
    documents = spark.createDataFrame([(text,) for text in texts], "text string").select(
        F.parse_json("text").alias("v")
    )
    nested = "to_variant_object(named_struct('k', array(1, null), 'a', map('m', 1.5D)))"
    typed = spark.range(1).selectExpr(
        f"explode(array({nested}, {', '.join(f'CAST({each} AS variant)' for each in TYPED)})) AS v"
    )
    rows = documents.unionAll(typed).select("v", F.to_json("v").alias("json")).collect()
    assert len(rows) == len(texts) + len(TYPED) + 1
    for variant, expected in rows:
        stored = len(variant.value).to_bytes(4, "little") + bytes(variant.value) + bytes(variant.metadata)
        assert variant_json(stored) == expected
