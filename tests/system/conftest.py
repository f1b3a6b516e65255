"""One demo for all tests of it: it takes half a minute to start. The last of them ends it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.services.demo_process import DemoProcess, demo_process


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoProcess]:
    """`understudy demo`, at two hours of flights per second."""
    with demo_process(tmp_path_factory.mktemp("demo"), ("--speed-up", "7200")) as running:
        yield running
