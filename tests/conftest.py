"""Fixtures that every test may ask for. Spark starts only when a test asks for it, once for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession
from tests.support.measured import all_measured
from tests.support.spark_session import spark_session

# No timed assertions: how long an example takes says something of the machine, not of the claim.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real Spark session (tests/support/spark_session.py says how it differs from a user's)."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured."""
    if lines := all_measured():
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)
