"""Fixtures that every test may ask for. Spark starts only when a test asks for it, once for the whole run."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession
from tests.support.measurements import all_measured, measured
from tests.support.spark.accelerator import Way, released_jar, session_conf
from tests.support.spark.session import spark_session
from tests.support.stalls import Stalls
from xdist.scheduler import LoadScopeScheduling

# No timed assertions: how long an example takes says something of the machine, not of the claim. `make verify` looks
# for new examples each time; `make test` takes the same ones, and fewer: it fails only where a change made it fail.
settings.register_profile("exploring", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("exploring"), derandomize=True, max_examples=25)
settings.load_profile("exploring")

STALLS = Stalls()
STALLS.start()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """From here on a stall is one of this test."""
    STALLS.begin()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A test that configures logging, as a service does, changes nothing for the tests after it."""
    root = logging.getLogger()
    handlers, level = set(root.handlers), root.level
    yield
    for handler in set(root.handlers) - handlers:
        if not type(handler).__module__.startswith("_pytest"):
            root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(autouse=True, scope="module")
def short_collections() -> None:
    """The garbage collector looks only at what a module's tests make. pytest keeps so much of every test before them
    that a full collection stops the process for half a second and more, longer than some deadlines under test.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real Spark session (tests/support/spark/session.py says how it differs from a user's)."""
    folder = tmp_path_factory.mktemp("spark")
    with spark_session(folder, extra=session_conf(folder)) as session:
        yield session


@pytest.fixture(params=[pytest.param("python"), pytest.param("jar", marks=pytest.mark.full)])
def way(request: pytest.FixtureRequest) -> Way:
    """Both ways to read the aligned source: by Python workers, and by the accelerator jar."""
    found: Way = request.param
    if found == "jar":
        released_jar()
    return found


PROOF = "tests/system/test_proof.py"
SYSTEM = "tests/system/"
ORACLES = "tests/integration/node/stores/test_oracle_"
KAFKA = "tests/integration/pipeline/inputs/test_kafka_input_"
OBJECT_STORES = "tests/integration/node/checkpoint/test_object_store_"
HDFS = "tests/integration/node/checkpoint/test_hdfs_"

FIRST = (PROOF, SYSTEM, "tests/contract/", ORACLES)
"""The tests that run first, because they take longest. Contracts are between two kinds that start Spark."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # untyped
    """With several workers a file's tests stay together, because their fixtures are dear. The system's tests are all
    on one worker: each starts a cluster with its load, two of which leave a small machine little time, and they
    measure what readers notice. In `make verify` alone the proof has another worker: it takes as long as all of them.
    Those that need a Kafka broker share one, as do those that need object stores.
    """

    def _split_scope(self, nodeid: str) -> str:
        short = "not full" in self.config.option.markexpr
        scopes = (SYSTEM, KAFKA, OBJECT_STORES, HDFS) if short else (PROOF, SYSTEM, KAFKA, OBJECT_STORES, HDFS)
        found = next((together for together in scopes if nodeid.startswith(together)), nodeid.partition("::")[0])
        return OBJECT_STORES if found == HDFS else found


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Says which worker runs what."""
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first. A test that failed gets a second run if the process stood still, and only then."""
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=1, condition=STALLS.stood_still))
    items.sort(key=lambda item: [not item.nodeid.startswith(each) for each in FIRST])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands over what it measured."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["measured"] = all_measured()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect what a worker measured."""
    for line in getattr(node, "workeroutput", {}).get("measured", ()):
        measured(line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured."""
    if lines := all_measured():
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
