"""Writes checkpoints of `transformWithState` with whichever Spark is on the path, in Python and in Scala, and beside
each what that Spark's own state reader says is in it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
from tests.support.oracle.changed_columns import write_changed_checkpoint
from tests.support.oracle.custom_state import (
    BATCHES,
    custom_options,
    read_custom_checkpoint,
    write_custom_checkpoint,
)
from tests.support.oracle.releases import (
    CHANGED,
    CUSTOM_FORMS,
    IMPATIENT,
    PYTHON,
    RELEASE,
    SCALA,
    custom_formats_of,
    has_transform,
    keep,
    operators_of,
)
from tests.support.spark.scala_job import VARIABLES, write_in_scala
from tests.support.spark.session import SPARK_RELEASE, spark_session


def main() -> None:
    """Write below the folder that is the only argument; `RELEASE` comes last."""
    (folder,) = map(Path, sys.argv[1:])
    named, operators = custom_formats_of(SPARK_RELEASE), operators_of(SPARK_RELEASE)
    formats = [named[form] for form in CUSTOM_FORMS[SCALA]]
    by_scala = folder / SCALA
    by_scala.mkdir()
    checkpoints = write_in_scala(by_scala, formats, custom_options(IMPATIENT), batches=BATCHES)
    with spark_session(folder / "session", extra=IMPATIENT) as spark:
        for form in CUSTOM_FORMS[PYTHON]:
            place = folder / PYTHON / named[form].id
            keep(folder, PYTHON, write_custom_checkpoint(spark, place, named[form], operators=operators))
        # After that: Spark 4.2 reads state only in a session that has run a query.
        for state_format, checkpoint in zip(formats, checkpoints, strict=True):
            keep(folder, SCALA, read_custom_checkpoint(spark, checkpoint, state_format, VARIABLES))
        if has_transform(SPARK_RELEASE):
            keep(folder, CHANGED, write_changed_checkpoint(spark, folder / CHANGED))
    (folder / RELEASE).write_text(pyspark.__version__)


if __name__ == "__main__":
    main()
