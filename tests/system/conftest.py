"""What is started once for all tests: a demo, which takes half a minute to start, and the images of the containers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.containers.engine import engine
from tests.support.containers.images import build
from tests.support.services.demo_process import DemoProcess, demo_process


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoProcess]:
    """`understudy demo`, at two hours of flights per second."""
    with demo_process(tmp_path_factory.mktemp("demo"), ("--speed-up", "7200")) as running:
        yield running


@pytest.fixture(scope="session")
def built() -> None:
    """Every image of the stack, in the engine that keeps them."""
    with engine(namespace=None) as found:
        build(found)
