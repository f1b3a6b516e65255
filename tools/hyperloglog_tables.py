"""Writes the tables of HyperLogLog++ from an installed Spark: `python -m tools.hyperloglog_tables`.

The raw estimates, their biases and the thresholds are those of the appendix of the paper, as Spark has them. A test in
tests/contract/ holds the file to Spark.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from tests.support.spark.session import spark_session

from understudy_node.stores import result_functions
from understudy_node.stores.result_functions import LEAST_PRECISION, MOST_PRECISION, TABLES


def tables(spark: SparkSession) -> dict[str, dict[str, object]]:
    """Read the tables from Spark, by bits of precision."""
    util = spark._jvm.org.apache.spark.sql.catalyst.util  # type: ignore[union-attr]  # noqa: SLF001
    spark_tables = getattr(getattr(util, "HyperLogLogPlusPlusHelper$"), "MODULE$")
    raw, bias = spark_tables.RAW_ESTIMATE_DATA(), spark_tables.BIAS_DATA()
    thresholds = list(spark_tables.THRESHOLDS())
    return {
        str(bits): {
            "threshold": thresholds[bits - LEAST_PRECISION],
            "raw": list(raw[bits - LEAST_PRECISION]),
            "bias": list(bias[bits - LEAST_PRECISION]),
        }
        for bits in range(LEAST_PRECISION, MOST_PRECISION + 1)
    }


def printed(found: dict[str, dict[str, object]]) -> str:
    """Render the tables as JSON, with a line for each precision."""
    lines = [f"{json.dumps(bits)}: {json.dumps(each, separators=(',', ':'))}" for bits, each in found.items()]
    return "{" + ",\n".join(lines) + "}\n"


if __name__ == "__main__":
    with TemporaryDirectory() as folder, spark_session(Path(folder)) as session:
        Path(result_functions.__file__).with_name(TABLES).write_text(printed(tables(session)))
