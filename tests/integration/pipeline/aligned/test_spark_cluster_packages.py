"""How a job's packages reach executors: the commands of docs/pipeline.md, word for word, on a real cluster.

The wheels of this checkout lie in the folder where they run. `python3` is a Python of the test's, and pip takes the
versions of uv.lock.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.repository import ROOT
from tests.support.spark.process import SparkJob
from tests.support.spark.standalone import SPARK_HOME, StandaloneCluster, standalone_cluster
from tests.support.wheel import INSTALL_LIMIT_S, UV, build_wheels, write_versions

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(2 * INSTALL_LIMIT_S),
    pytest.mark.skipif(not UV.exists(), reason="uv, which `make setup` installs, is not there"),
]

REGISTER = "from understudy_aligned.source import register\nregister(spark)"
JOB = """
import json
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
{register}
options = json.loads(Path("options.json").read_text())
stream = spark.readStream.format("understudy").options(**options).load()


def keep(batch, batch_id):
    for row in batch.collect():
        print("row", row.topic, row.partition, row.value.decode(), flush=True)


def look(batches):
    import pyarrow
    import understudy_aligned

    for _ in batches:
        pass
    yield pyarrow.RecordBatch.from_pylist([{{"file": understudy_aligned.__file__}}])


writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", "checkpoint")
writer.trigger(availableNow=True).start().awaitTermination()
for row in spark.range(0, 1, 1, 1).mapInArrow(look, "file string").collect():
    print("executors have", row.file, flush=True)
"""


class Wheel(NamedTuple):
    path: Path
    """That of `understudy-spark`; the other one is beside it."""
    constraints: Path
    """For pip: the versions of what it needs."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    folder = tmp_path_factory.mktemp("dist")
    built, constraints = build_wheels(folder), folder / "constraints.txt"
    write_versions(constraints)
    return Wheel(built, constraints)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """Two topics with a record each."""
    with redis_server(port=0) as running, redis.Redis.from_url(running.url) as client:
        client.xadd("weather:0", {"value": "cold"}, id="10-0")
        client.xadd("flights:0", {"value": "UA1"}, id="20-0")
        yield running


def documented(naming: str) -> str:
    """The commands of the section, by something that only they have."""
    section = (ROOT / "docs" / "pipeline.md").read_text().partition("\n## On a cluster\n")[2].partition("\n## ")[0]
    (block,) = [block for block in re.findall(r"```bash\n(.*?)```", section, re.DOTALL) if naming in block]
    return str(block)


@contextmanager
def cluster_of(folder: Path, python: Path, wheel: Wheel) -> Iterator[StandaloneCluster]:
    """All machines have this Python and Spark on their path, and know of no checkout."""
    path = os.pathsep.join([str(python.parent), str(SPARK_HOME / "bin"), os.environ["PATH"]])
    environment = {"PATH": path, "PIP_CONSTRAINT": str(wheel.constraints)}
    with standalone_cluster(folder, workers=1, environment=environment) as running:
        yield running


@contextmanager
def job(cluster: StandaloneCluster, commands: str, wheel: Wheel, url: str, *, register: bool) -> Iterator[SparkJob]:
    """Run commands in a folder with `job.py` and the wheels."""
    folder = cluster.driver_folder / "job"
    folder.mkdir(exist_ok=True)
    for each in wheel.path.parent.glob("*.whl"):
        shutil.copy(each, folder)
    (folder / "job.py").write_text(JOB.format(register=REGISTER if register else ""))
    (folder / "options.json").write_text(json.dumps({"redis": url, "topics": "weather,flights", "spool": "off"}))
    shell = ["bash", "-euc", f"export MASTER={cluster.url}\n{commands}"]
    with cluster.shell(shell, cwd=folder) as running:
        yield running


def rows(running: SparkJob) -> list[str]:
    return sorted(line for line in running.lines() if line.startswith("row "))


def home(running: SparkJob) -> str:
    (line,) = [line for line in running.lines() if line.startswith("executors have ")]
    return line.removeprefix("executors have ")


EXPECTED = ["row flights 0 UA1", "row weather 0 cold"]


@pytest.mark.full
def test_an_archive_brings_every_package_to_executors_that_have_none(
    tmp_path: Path, wheel: Wheel, server: RedisServer
) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "python"], check=True, timeout=INSTALL_LIMIT_S)
    commands = documented("--archives")
    with cluster_of(tmp_path / "cluster", tmp_path / "python" / "bin" / "python3", wheel) as cluster:
        with job(cluster, commands, wheel, server.url, register=False) as running:
            assert running.wait_for_end(INSTALL_LIMIT_S) == 0, running.lines()[-40:]
            assert rows(running) == EXPECTED
            (unpacked,) = cluster.worker_files("packages")
            assert home(running) == str(unpacked / "understudy_aligned" / "__init__.py")
        # What is not brought is named. The driver still has its folder, and the executors have none.
        without = "rm -r checkpoint\nexport PYTHONPATH=packages\nspark-submit --master $MASTER job.py"
        with job(cluster, without, wheel, server.url, register=False) as running:
            assert running.wait_for_end(INSTALL_LIMIT_S) != 0
            assert "No module named 'pyarrow'" in "\n".join(running.lines())


@pytest.mark.full
def test_py_files_bring_understudy_itself_to_executors_that_have_the_rest(
    tmp_path: Path, wheel: Wheel, server: RedisServer
) -> None:
    commands = documented("--py-files")
    with (
        cluster_of(tmp_path / "cluster", Path(sys.executable).with_name("python3"), wheel) as cluster,
        job(cluster, commands, wheel, server.url, register=True) as running,
    ):
        assert running.wait_for_end(INSTALL_LIMIT_S) == 0, running.lines()[-40:]
        assert rows(running) == EXPECTED
        assert cluster.worker_files("understudy.zip")
        assert home(running).endswith("/aligned.zip/understudy_aligned/__init__.py")
