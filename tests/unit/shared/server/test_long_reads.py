"""Long reads have a limit of their own, and give their place back however they end."""

from __future__ import annotations

import pytest

from understudy_shared.http.problems import ProblemError, ProblemType
from understudy_shared.server.long_reads import LongReads


def test_one_more_than_the_limit_is_refused_and_a_place_that_ended_is_free_again() -> None:
    reads = LongReads(2)
    with reads.begun(), reads.begun():
        with pytest.raises(ProblemError, match="as many as max_scans_in_flight") as refused, reads.begun():
            pass
        assert refused.value.problem.type is ProblemType.OVERLOADED
        assert (b"retry-after", b"1") in refused.value.problem.headers
        assert reads.in_flight == 2
    with pytest.raises(ValueError, match="a bug"), reads.begun():
        raise ValueError("a bug")
    assert reads.in_flight == 0
