"""A job of Spark 3.5 can `announce` over a real Redis, and is told why it cannot use the aligned source."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.bus.ear import Ear
from tests.support.bus.redis_server import RedisServer
from tests.support.cluster.in_process import APPLICATION, cluster
from tests.support.oracle.releases import NoSparkError, variables_of
from tests.support.services.watches import Watcher
from tests.support.spark.accelerator import released_jar
from tests.support.spark.jobs.announced_until_killed import ANNOUNCED
from tests.support.spark.process import spark_job
from tests.support.spark.queries import InputFolder, wait_until
from tests.support.spark.session import java_environment

LIMIT_S = 120

WITH_THE_JAR = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark.config("spark.jars", sys.argv[1]).getOrCreate().readStream.format("understudy").load()
"""


def variables_of_spark_3() -> dict[str, str]:
    try:
        return variables_of("3.5")
    except NoSparkError as error:
        pytest.skip(str(error))


@pytest.mark.full
@pytest.mark.timeout(900)
def test_names_results_and_each_commit_of_spark_3_5_reach_a_node_and_a_watcher_at_a_router(
    redis: RedisServer, tmp_path: Path
) -> None:
    variables = variables_of_spark_3()
    checkpoint = tmp_path / "checkpoint"
    feed = InputFolder(Path(f"{checkpoint}.input"))
    arguments = [str(checkpoint), redis.url, APPLICATION]
    with (
        closing(Ear(redis.url, APPLICATION)) as ear,
        spark_job("announced_until_killed.py", arguments, tmp_path / "job", variables=variables) as job,
    ):
        job.wait_for_line(ANNOUNCED)
        feed.add([{"word": "a", "number": 1}, {"word": "a", "number": 4}])
        job.wait_until(lambda: ear.hints() == [1], what="the hint of the first commit")
        with cluster(checkpoint, tmp_path, redis.url, nodes=1) as known:
            router = known.routers[0]
            wait_until(
                lambda: router.look_up({"loud": "A"}, store="words").status == 200, what="the name", limit_s=LIMIT_S
            )
            body = router.look_up({"loud": "A"}, store="words").body
            assert (body["version"], body["result"]) == (1, {"n": 2, "mean": 2.5})
            with Watcher(router.port, "words/watch/A") as watcher:
                assert watcher.take().version == 1
                for version in (2, 3):
                    feed.add([{"word": "a", "number": 7}])
                    event = watcher.until(version)[-1]
                    assert (event.version, event.data["result"]["n"]) == (version, version + 1)
            job.wait_until(lambda: ear.hints() == [1, 2, 3], what="the hint of each commit")


@pytest.mark.full
def test_the_jar_of_the_aligned_source_says_that_spark_3_5_is_too_old_and_what_works_there() -> None:
    """Without the jar Spark reports an unknown source. The message from Python is tested in `test_source_lookup`."""
    command = [sys.executable, "-c", WITH_THE_JAR, str(released_jar())]
    variables = {**variables_of_spark_3(), **java_environment()}
    done = subprocess.run(command, capture_output=True, check=False, text=True, env=variables)
    assert "the source 'understudy' needs Spark 4.3, and this is 3.5.7" in done.stderr
    assert "`announce` works with PySpark 3.5" in done.stderr
