"""Which side of a difference is refused, and when two commits are the same."""

from __future__ import annotations

import pytest

from understudy_shared.base.words import FORKED
from understudy_shared.bus.messages import Applied, Endpoint, Heartbeat, SeenCommit, is_same_time
from understudy_shared.cluster.view import refused_forks


def beat(node_id: str, *forks: str, sequence: int = 5, degraded: tuple[str, ...] = ()) -> Heartbeat:
    return Heartbeat(
        application_id="app",
        node_id=node_id,
        incarnation=f"{node_id}-1",
        sequence=sequence,
        endpoint=Endpoint(host=node_id, port=1),
        state="serving",
        heartbeat_ms=1000,
        lineage="life",
        end_version=3,
        end_age_ms=0,
        applied=Applied(version=3),
        term=1,
        epoch=1,
        degraded=list(degraded),
        forks=dict.fromkeys(forks, "version 3 was committed twice"),
    )


SIDES = {
    "nobody differs": ([beat("a"), beat("b")], {"a"}, set()),
    "one of the cluster found a stranger": ([beat("a", "x"), beat("x")], {"a"}, {"x"}),
    "the stranger alone found it": ([beat("a"), beat("x", "a")], {"a"}, {"x"}),
    "many strangers against one node of the cluster": (
        [beat("a"), *(beat(f"x{n}", "a", sequence=900) for n in range(3))],
        {"a"},
        {"x0", "x1", "x2"},
    ),
    "in the cluster most count": ([beat("a", "z"), beat("b", "z"), beat("z", "a", "b", sequence=900)], {*"abz"}, {"z"}),
    "of two in the cluster the one that runs longer": ([beat("a", "z"), beat("z", sequence=900)], {*"az"}, {"a"}),
    "before there is a cluster most count": ([beat("a", "z"), beat("b", "z"), beat("z")], set(), {"z"}),
    "of two that began together one and the same": ([beat("a", "z"), beat("z", "a")], set(), {"z"}),
    "who says of himself that he is refused": ([beat("a"), beat("z", degraded=(FORKED,))], {*"az"}, {"z"}),
    "who is refused accuses in vain": ([beat("a"), beat("z", "a", degraded=(FORKED,))], {*"az"}, {"z"}),
    "who is not there": ([beat("a", "gone")], {"a"}, set()),
}


@pytest.mark.parametrize("case", SIDES)
def test_of_two_histories_the_clusters_stands(case: str) -> None:
    beats, named, refused = SIDES[case]
    assert refused_forks(beats, named).keys() == refused
    assert refused_forks(reversed(beats), named).keys() == refused, "all come to the same result"


TIMES = {
    "equal": (1_795_000_000_123_456, 1_795_000_000_123_456, True),
    "a microsecond later": (1_795_000_000_123_456, 1_795_000_000_123_457, False),
    "a mount that cuts to milliseconds": (1_795_000_000_123_456, 1_795_000_000_123_000, True),
    "storage that has whole seconds": (1_795_000_000_123_456, 1_795_000_000_000_000, True),
    "another whole second": (1_795_000_000_123_456, 1_795_000_001_000_000, False),
    "another millisecond": (1_795_000_000_123_456, 1_795_000_000_124_000, False),
}


@pytest.mark.parametrize("case", TIMES)
def test_times_are_compared_at_the_coarser_of_their_resolutions(case: str) -> None:
    one, other, same = TIMES[case]
    assert is_same_time(one, other) is is_same_time(other, one) is same


def test_commits_of_the_same_second_differ_by_their_content() -> None:
    one = SeenCommit(version=1, committed_at_us=1_795_000_000_000_000, digest="aa")
    assert not one.is_same_as(one.model_copy(update={"digest": "bb"}))
    assert one.is_same_as(one.model_copy(update={"digest": ""})), "a digest that is not known says nothing"
