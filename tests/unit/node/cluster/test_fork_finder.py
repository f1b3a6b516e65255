"""When another node's commits count as another history: not before both sides have read theirs again."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.unit.shared.cluster.test_view import forking

from understudy_node.cluster.history_check import MAX_UNREAD, ForkFinder, OwnHistory
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import Heartbeat, SeenCommit

T_US = 1_795_000_000_000_001


def commits(times: Mapping[int, int]) -> list[SeenCommit]:
    return [SeenCommit(version=version, committed_at_us=T_US + time) for version, time in times.items()]


def said(sequence: int, times: Mapping[int, int], *, age_ms: int | None = 0, incarnation: str = "one") -> Heartbeat:
    news = {"commits": commits(times), "end_age_ms": age_ms, "incarnation": incarnation}
    return forking("other", sequence=sequence).model_copy(update=news)


class World:
    """One finder and its own history; `times` are those of its commits."""

    def __init__(self, times: Mapping[int, int]) -> None:
        self.finder = ForkFinder("own")
        self.life = object()
        self.times = dict(times)

    def turn(self, now_ms: float, heard: Heartbeat, *, heard_ms: float, confirmed_ms: float | None) -> bool:
        """Whether the other is found to be a fork after a turn of the beat."""
        known = {commit.version: commit for commit in commits(self.times)}
        own = OwnHistory("/here", self.life, "life", max(self.times), confirmed_ms, known.get)
        self.finder.compare([AgedHeartbeat(heard, round(now_ms - heard_ms))], own, now_ms)
        return bool(self.finder.found)


def test_a_difference_counts_once_both_have_read_their_commit_logs_again() -> None:
    world = World({1: 0, 2: 5})
    assert not world.turn(0, said(1, {2: 9}), heard_ms=0, confirmed_ms=0)
    assert not world.turn(1100, said(2, {2: 9}), heard_ms=1050, confirmed_ms=1000), "this node has not read since"
    assert world.turn(1200, said(2, {2: 9}), heard_ms=1050, confirmed_ms=1150)
    assert "version 2 was committed at" in world.finder.found["other"]


def test_a_rewind_that_the_other_sees_later_settles_by_itself() -> None:
    world = World({2: 5})
    world.turn(0, said(1, {2: 9}), heard_ms=0, confirmed_ms=0)
    assert not world.turn(1500, said(2, {2: 5}), heard_ms=1500, confirmed_ms=1500)
    assert not world.turn(3000, said(3, {2: 9}), heard_ms=3000, confirmed_ms=3000), "it would begin anew"
    assert world.finder.is_agreed("other") is False


def test_a_rewind_that_this_node_sees_later_settles_by_itself() -> None:
    world = World({2: 5})
    world.turn(0, said(1, {2: 9}), heard_ms=0, confirmed_ms=0)
    assert world.turn(1200, said(2, {2: 9}), heard_ms=1100, confirmed_ms=1200)
    world.life, world.times = object(), {2: 9}
    assert not world.turn(1300, said(2, {2: 9}), heard_ms=1100, confirmed_ms=1300)
    assert world.finder.is_agreed("other")


def test_a_fork_that_runs_ahead_stays_one_until_its_commits_are_the_same_or_it_is_another_process() -> None:
    world = World({2: 5})
    world.turn(0, said(1, {2: 9}), heard_ms=0, confirmed_ms=0)
    assert world.turn(1200, said(2, {2: 9}), heard_ms=1100, confirmed_ms=1200)
    assert world.turn(9000, said(3, {8: 1, 7: 1}), heard_ms=9000, confirmed_ms=9000)
    assert not world.turn(9500, said(1, {8: 1}, incarnation="two"), heard_ms=9500, confirmed_ms=9500)
    assert not world.finder.is_agreed("other")


def test_what_cannot_be_compared_is_neither_agreed_nor_refused() -> None:
    world = World({2: 5})
    for times in ({9: 1}, {}):
        assert not world.turn(0, said(1, times), heard_ms=0, confirmed_ms=0)
        assert not world.finder.is_agreed("other")


def test_a_node_may_follow_a_fork_of_one_that_differs_or_has_versions_that_are_not_here() -> None:
    world = World({1: 0, 2: 5})

    def doubt(times: Mapping[int, int]) -> str | None:
        world.turn(0, said(1, times), heard_ms=0, confirmed_ms=0)
        return world.finder.doubt("other")

    assert world.finder.doubt("other") is None, "nothing was heard of it"
    assert doubt({}) is None
    assert doubt({4: 1, 3: 1}) == "other has version 3, which is not here"
    assert doubt({3: 1, 2: 9}) == "other has a commit that differs from the same one here"
    assert doubt({3: 1, 2: 5}) is None, "they agree"
    assert doubt({4: 1, 3: 1}) is None, "they agreed before"


@pytest.mark.parametrize("time", [5, 9])
def test_what_was_not_here_yet_is_compared_once_it_is_although_the_other_is_ahead_again(time: int) -> None:
    world = World({1: 0, 2: 0})
    for version in range(3, 9):
        assert not world.turn(
            version, said(version, {version + 2: time, version + 1: time}), heard_ms=0, confirmed_ms=0
        )
        world.times[version] = 5
    differs = "other has a commit that differs from the same one here"
    assert (world.finder.is_agreed("other"), world.finder.doubt("other")) == (
        (True, None) if time == 5 else (False, differs)
    )


def test_commits_to_read_are_those_that_this_node_must_have_and_few_at_a_time() -> None:
    own = OwnHistory("/here", object(), "life", 50, 0, lambda version: None)
    others = [
        AgedHeartbeat(said(1, {version: 1}).model_copy(update={"node_id": f"n{version}"}), 0)
        for version in range(40, 60)
    ]
    unread = ForkFinder("own").unread(others, own, lambda version: version == 50)
    assert unread == list(range(49, 49 - MAX_UNREAD, -1))
