"""Jobs in which Spark's own Kafka source runs beside ours: its jars are not in the session that tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks.aligned_world import spark_kafka_jars
from tests.support.repository import ROOT

_JOB_LIMIT_S = 300


def run_job(name: str, folder: Path, options: Mapping[str, str]) -> Any:
    """Run a job to its end; return its output. Skip the test without Spark's source."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.support.spark.jobs.{name}", *_arguments(folder, options)],
        capture_output=True,
        text=True,
        timeout=_JOB_LIMIT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def _arguments(folder: Path, options: Mapping[str, str]) -> list[str]:
    try:
        jars = ",".join(map(str, sorted(spark_kafka_jars().glob("*.jar"))))
    except (SystemExit, subprocess.SubprocessError) as missing:
        pytest.skip(f"no Kafka source of Spark's: {missing}")
    return [str(folder), jars, json.dumps(dict(options))]
