"""Reads of scattered stores: each key is asked of all partitions, and what they say becomes one result (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from understudy_router.forwarding.results import Results
from understudy_shared.http.problems import Problem
from understudy_shared.questions.lookup.hop_columns import NO_PARTITION, HopKeys
from understudy_shared.questions.lookup.scattered import Unsettled, answer_of
from understudy_shared.reads.tokens import Position

MAX_SPREAD = 10_000
"""Limit on the keys of a read times the partitions that each is asked of: beyond it, keys are read in turns."""

Problems = Mapping[int, Problem]
"""The problems of keys that are not sent, by their index."""


def turns(keys: HopKeys, problems: Problems, partitions: int) -> Iterator[tuple[HopKeys, Problems]]:
    """Yield keys that are read together, each with its problem if it has one."""
    step = max(1, MAX_SPREAD // partitions)
    for start in range(0, len(keys), step):
        own = {at - start: problem for at, problem in problems.items() if start <= at < start + step}
        yield keys[start : start + step], own


def spread(keys: HopKeys, problems: Problems, partitions: int) -> tuple[HopKeys, Problems]:
    """Return the keys once for each partition, those of the first one first. A key with a problem has no partition."""
    count = len(keys)
    places = [NO_PARTITION if at in problems else each for each in range(partitions) for at in range(count)]
    own = {each * count + at: problem for each in range(partitions) for at, problem in problems.items()}
    return HopKeys(places, list(keys.rows) * partitions), own


def gathered(
    store: str, results: Results, partitions: int, problems: Problems
) -> tuple[Results, Mapping[Position, Sequence[int]]]:
    """Return the results of keys that were spread. `problems` are those of keys that were not sent.

    Keys that have to be asked again at one version stay without a result: return them too, by the position to ask at.
    """
    count = len(results.kinds) // partitions
    found, unsettled = Results(count, problems), dict[Position, list[int]]()
    for at in range(count):
        if at in problems:
            continue
        answer = answer_of(store, [results[each * count + at] for each in range(partitions)])
        if isinstance(answer, Unsettled):
            unsettled.setdefault(answer.oldest, []).append(at)
        elif isinstance(answer, Problem):
            found.refuse((at,), answer)
        else:
            found.keep(at, answer)
    return found, unsettled
