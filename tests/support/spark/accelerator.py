"""The accelerator jar for tests: as a wheel has it, and for a session that reads by both ways.

Spark takes the jar whenever it is on the class path and a query says `format("understudy")`. The shared session has a
copy that does not announce that name: there a query asks for it by its class, and any other one gets the Python source.
"""

from __future__ import annotations

import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession
from tools.build_jar import build
from tools.compiled import NoCompilerError

Way = Literal["python", "jar"]

FORMATS: dict[Way, str] = {"python": "understudy", "jar": "understudy.spark.AlignedProvider"}
PLANNER = "understudy_aligned.accelerator.planner"
_SERVICES = "META-INF/services/"


def released_jar() -> Path:
    """The jar as a wheel has it. Skips the test where there is no compiler."""
    try:
        return build()
    except NoCompilerError as missing:
        pytest.skip(f"no javac: {missing}")


def session_conf(folder: Path) -> dict[str, str]:
    """The settings of a session that has the jar without its name; without a compiler, nothing."""
    try:
        jar = build()
    except NoCompilerError:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "unnamed.jar"
    with zipfile.ZipFile(jar) as source, zipfile.ZipFile(copy, "w") as target:
        for name in source.namelist():
            if not name.startswith(_SERVICES):
                target.writestr(name, source.read(name))
    return {"spark.jars": str(copy)}


def prepared_planners(spark: SparkSession) -> set[int]:
    """The planner processes that the session's JVM started before there was a query for them: they name inputs."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    found = set()
    for process in jvm.java.lang.ProcessHandle.current().children().toArray():
        with suppress(OSError):
            command = Path(f"/proc/{process.pid()}/cmdline").read_text().rstrip("\0").split("\0")
            found |= {process.pid()} if PLANNER in command[:-2] else set()
    return found
