"""The two ways in which records come out of librdkafka: by the library of ours, and as Python objects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

import pytest
from tools.build_native import build
from tools.compiled import NoCompilerError

from understudy_aligned.inputs import kafka_client, kafka_native

Taking = Literal["native", "objects"]


@pytest.fixture(scope="session", autouse=True)
def _library() -> None:
    """Build the library: without a compiler all records come as objects."""
    with suppress(NoCompilerError):
        build()
    kafka_native.native_library.cache_clear()


@pytest.fixture(scope="module", params=["native", pytest.param("objects", marks=pytest.mark.full)])
def taking(request: pytest.FixtureRequest) -> Iterator[Taking]:
    """The way for the tests of a module; the second one stands for machines without the library."""
    way: Taking = request.param
    if way == "native" and kafka_native.native_library() is None:
        pytest.skip("no library: no C compiler")
    with pytest.MonkeyPatch.context() as patch:
        if way == "objects":
            patch.setattr(kafka_client, "native_library", lambda: None)
        yield way
