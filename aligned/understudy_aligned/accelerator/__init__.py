"""The Python side of the accelerator jar, which lets Spark read the aligned source without Python workers.

The jar starts these processes and talks to them by their pipes. They import no PySpark.
"""

from __future__ import annotations

from pathlib import Path

from understudy_shared.base.errors import UnderstudyError

JAR = Path(__file__).with_name("understudy-accelerator.jar")


def jar_path() -> str:
    """Return the path of the jar, for the setting `spark.jars`. Raises UnderstudyError if the package has no jar."""
    if not JAR.is_file():
        raise UnderstudyError(
            "this package has no accelerator jar",
            where=str(JAR),
            fix="Install a released wheel, which has it, or build it in a clone with: make jar",
        )
    return str(JAR)
