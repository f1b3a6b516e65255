"""How an input is tried: many in a batch, each within bounds of time and memory, and what is found is kept.

Hypothesis chooses seeds and raw bytes, and remembers in its database what failed; `mutation` makes a batch of inputs of
each seed. What was found once lies in `tests/fuzz/corpus/<target>/`, and every run tries it first.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"
BATCH = 50
ORDINARY = 1_000

CPU_S_PER_BATCH = 5.0
"""This thread's limit for 50 inputs of some kilobytes: a hundred times what they take. A quadratic step breaks it."""

MEMORY_PER_BYTE, MEMORY_BASE = 60, 4 * 1024 * 1024
"""Python objects of JSON are up to fifty times its text."""

Try = Callable[[Sequence[bytes]], None]
Make = Callable[[Random, int], list[bytes]]


def sizes(full: int) -> pytest.MarkDecorator:
    """Inputs of an ordinary run, and of `make verify`."""
    return pytest.mark.parametrize("inputs", [ORDINARY, pytest.param(full, marks=pytest.mark.full)])


def kept(target: str) -> list[bytes]:
    """Inputs of the corpus: failures that were found once."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]


def hunt(target: str, inputs: int, make: Make, attempt: Try) -> None:
    """Try the corpus, then so many inputs; fails with the input that raised, or with a batch that was too dear."""
    for known in kept(target):
        _bounded(attempt, [known])
    tried = 0

    @settings(
        max_examples=max(1, inputs // BATCH),
        derandomize=inputs <= ORDINARY,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a seed does not shrink
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**64 - 1), st.binary(max_size=100))
    def trial(seed: int, raw: bytes) -> None:
        nonlocal tried
        batch = [raw, *make(Random(seed), BATCH - 1)]
        tried += len(batch)
        _bounded(attempt, batch)

    trial()
    assert tried >= inputs * 0.9


def _bounded(attempt: Try, batch: Sequence[bytes]) -> None:
    began_s = time.thread_time()
    try:
        attempt(batch)
    except Exception:
        for single in batch:  # which one was it? Some need those before them
            try:
                attempt([single])
            except Exception as error:
                raise AssertionError(f"found {type(error).__name__}: {error!s:.300} by {single!r:.3000}") from error
        raise
    assert time.thread_time() - began_s < CPU_S_PER_BATCH, f"too dear: {batch!r:.3000}"


def peak_bytes(act: Callable[[], object]) -> int:
    """The most Python memory that the call holds at a time."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
