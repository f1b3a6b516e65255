"""Queries over scripted servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.spark.planned_query import Start, started_queries


@pytest.fixture
def start() -> Iterator[Start]:
    with started_queries() as begun:
        yield begun
