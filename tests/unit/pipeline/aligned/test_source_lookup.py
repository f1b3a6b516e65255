"""How Spark finds the source, and what it finds where the source's packages are missing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import InputPartition
from tests.support.oracle.releases import NoSparkError, variables_of

from understudy_aligned.option_parsing import parse_options
from understudy_aligned.source import AlignedStreamReader
from understudy_shared.base.errors import SettingsError


@pytest.mark.parametrize(
    ("kind", "module", "server"),
    [
        ("kafka", "kafka_client", "127.0.0.1:1"),
        ("redis", "redis_streams", "redis://127.0.0.1:1"),
    ],
)
def test_a_client_that_is_not_installed_is_reported_with_the_option_that_needs_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, module: str, server: str
) -> None:
    monkeypatch.setitem(sys.modules, f"understudy_aligned.inputs.{module}", None)
    with pytest.raises(SettingsError, match=f"option {kind}.*pip install"):
        parse_options({kind: server, "topics": "weather"})


@pytest.mark.parametrize("line", ["", "3.5"])
def test_a_pyspark_that_is_too_old_is_named_with_what_works_there(line: str) -> None:
    """Spark 4.0 and 4.1 have data sources in Python, but none that can limit a batch; they look for ours."""
    code = "from understudy_aligned.source import register"
    if not line:
        code = "import pyspark.sql.streaming.datasource as sources; del sources.ReadMaxRows\n"
        code += "from pyspark_understudy import DefaultSource; DefaultSource({})"
    try:
        variables = variables_of(line) if line else None
    except NoSparkError as error:
        pytest.skip(str(error))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True, env=variables)
    said = done.stderr.splitlines()[-1]
    assert f"needs PySpark 4.3, and this is {line or '4.3'}" in said
    assert "`announce` works with PySpark 3.5" in said


EXECUTOR = """
import sys

sys.modules["understudy_aligned"] = None  # as if it were not installed
from pyspark.serializers import CPickleSerializer

CPickleSerializer().loads(sys.stdin.buffer.read())
"""


def test_executors_without_the_package_say_which_python_lacks_it_and_what_to_set() -> None:
    reader = AlignedStreamReader(parse_options({"redis": "redis://127.0.0.1:1", "topics": "a"}))

    def read(partition: InputPartition) -> list[pa.RecordBatch]:
        return list(reader.read(partition))

    spark: Any = CPickleSerializer()
    pickled = spark.dumps(read)
    assert spark.loads(pickled).__closure__[0].cell_contents._options == reader._options
    executor = subprocess.run([sys.executable, "-c", EXECUTOR], input=pickled, capture_output=True, check=False)
    assert executor.returncode != 0
    assert f"the executors' Python, {sys.executable}, lacks a package of the source 'understudy'" in (
        said := executor.stderr.decode()
    )
    assert "Set PYSPARK_PYTHON or spark.pyspark.python to a Python in which understudy is installed" in said
