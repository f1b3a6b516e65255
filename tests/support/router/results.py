"""Results of a batch, as a read has them."""

from __future__ import annotations

from collections.abc import Sequence

from understudy_router.forwarding.fallback import Result, Results
from understudy_shared.http.problems import Problem


def results_of(found: Sequence[Result]) -> Results:
    results = Results(len(found), {})
    for index, result in enumerate(found):
        if isinstance(result, Problem):
            results.refuse((index,), result)
        else:
            results.keep(index, result)
    return results
