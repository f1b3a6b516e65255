"""The poller against a checkpoint on disk: whatever Spark and people do to it, a confirmed end was the true one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.spark.commits import InterruptedFiles, SparkCommits

from understudy_node.checkpoint.files import FileStat, LocalFiles
from understudy_node.follow.end import End, Verdict
from understudy_node.follow.poll_loop import QUICK_PROBE_MS, Poll, Poller
from understudy_shared.base.errors import CheckpointError

Action = Callable[[SparkCommits], None]


@pytest.fixture
def query(tmp_path: Path) -> SparkCommits:
    return SparkCommits(tmp_path / "checkpoint")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic_ms=100.0)


def poller_of(query: SparkCommits, clock: ManualClock) -> Poller:
    return Poller(LocalFiles(query.root), clock)


def seen(poll: Poll) -> tuple[int, Verdict, bool]:
    return poll.end.version, poll.verdict, poll.end.confirmed_ms is not None


def test_commits_are_followed_and_the_last_move_is_remembered(query: SparkCommits, clock: ManualClock) -> None:
    poller = poller_of(query, clock)
    assert seen(poller.poll()) == (0, Verdict.SAME, True)
    clock.advance(50)
    query.commit(2)
    poll = poller.poll()
    assert seen(poll) == (2, Verdict.SAME, True)
    assert (poll.end.moved_ms, poll.end.confirmed_ms) == (150.0, 150.0)
    clock.advance(50)
    assert (poller.poll().end.moved_ms, poller.end.confirmed_ms) == (150.0, 200.0)


@pytest.mark.parametrize("known", [0, 3])
def test_after_a_pause_longer_than_the_retention_the_history_is_ahead_and_not_at_its_old_end(
    query: SparkCommits, clock: ManualClock, known: int
) -> None:
    query.commit(known)
    poller = poller_of(query, clock)
    poller.poll()
    query.commit(50)
    query.purge(keep=10)
    assert seen(poller.poll()) == (known + 50, Verdict.AHEAD, True)


def _empty_the_log(query: SparkCommits) -> None:
    query.rewind(0)


def _cut_back_by_one(query: SparkCommits) -> None:
    query.rewind(query.version - 1)


def _cut_back_and_commit_the_same_number(query: SparkCommits) -> None:
    query.rewind(query.version - 2)
    query.commit(2)


def _cut_back_and_go_past(query: SparkCommits) -> None:
    query.rewind(query.version - 2)
    query.commit(5)


@pytest.mark.parametrize(
    "action",
    [
        _empty_the_log,
        _cut_back_by_one,
        _cut_back_and_commit_the_same_number,
        _cut_back_and_go_past,
        SparkCommits.recommit_last,
    ],
)
def test_a_rewound_history_is_noticed_and_stays_unconfirmed(
    query: SparkCommits, clock: ManualClock, action: Action
) -> None:
    query.commit(5)
    poller = poller_of(query, clock)
    poller.poll()
    action(query)
    for _ in range(2):
        poll = poller.poll()
        assert (poll.verdict, poll.end.confirmed_ms) == (Verdict.REWOUND, None)


@pytest.mark.parametrize("commits", [0, 2, 3, 7], ids="{} commits since".format)
def test_a_recreated_checkpoint_is_another_lineage_however_far_it_is(
    query: SparkCommits, clock: ManualClock, commits: int
) -> None:
    query.commit(3)
    poller = poller_of(query, clock)
    poller.poll()
    query.recreate()
    query.commit(commits)
    poll = poller.poll()
    assert (poll.verdict, poll.end.confirmed_ms) == (Verdict.RECREATED, None)
    assert poller.lineage == "life-1"
    assert seen(poller_of(query, clock).poll()) == (commits, Verdict.SAME, True)


def test_a_checkpoint_that_is_gone_is_followed_again_when_it_is_back(query: SparkCommits, clock: ManualClock) -> None:
    query.commit(3)
    poller = poller_of(query, clock)
    poller.poll()
    query.lose_metadata()
    assert seen(poller.poll()) == (3, Verdict.GONE, False)
    query.bring_metadata_back()
    query.commit()
    assert seen(poller.poll()) == (4, Verdict.AHEAD, True)


def test_a_listed_commit_that_cannot_be_seen_is_never_confirmed_and_lists_once_per_poll(
    query: SparkCommits, clock: ManualClock
) -> None:
    query.commit(3)
    (query.root / "commits/3").symlink_to("nowhere")
    files = InterruptedFiles(query.root)
    poller = Poller(files, clock)
    files.watch(lambda _: None)
    assert poller.poll().end.confirmed_ms is None
    assert files.looks < 20
    (query.root / "commits/3").unlink()
    assert poller.poll().verdict is Verdict.REWOUND


@pytest.mark.parametrize("look", [6, 7], ids=["hidden while it is looked for", "replaced just after"])
def test_a_commit_replaced_while_the_poller_was_in_doubt_is_a_rewound_history(
    query: SparkCommits, clock: ManualClock, look: int
) -> None:
    query.commit(3)
    files = InterruptedFiles(query.root)
    poller = Poller(files, clock)
    poller.poll()
    query.touch_metadata()

    def meddle(number: int) -> None:
        # The probe is looks 0 to 2; then metadata twice, the listing (5), and the last commit (6).
        if number == look:
            if look == 6:
                query.rewind(2)
            else:
                query.recommit_last()

    files.watch(meddle)
    assert poller.poll().end.confirmed_ms is None
    if look == 6:
        query.commit()
    assert seen(poller.poll()) == (3, Verdict.REWOUND, False)


def test_readers_see_doubt_before_it_is_looked_into(query: SparkCommits, clock: ManualClock) -> None:
    query.commit(3)
    files = InterruptedFiles(query.root)
    poller = Poller(files, clock)
    poller.poll()
    during: list[End] = []
    files.watch(lambda look: during.append(poller.end))
    query.touch_metadata()
    poller.poll()
    # Next, metadata, offsets, last: then it is in doubt, until the poll confirms it.
    assert [end.confirmed_ms for end in during[:5]] == [100.0, 100.0, 100.0, 100.0, None]


def test_a_storage_that_fails_confirms_nothing_and_loses_nothing(query: SparkCommits, clock: ManualClock) -> None:
    query.commit(3)
    files = InterruptedFiles(query.root)
    poller = Poller(files, clock)
    before = poller.poll().end
    query.commit()
    clock.advance(40)
    for failing in range(6):
        files.watch(_failing_at(failing))
        with pytest.raises(CheckpointError):
            poller.poll()
        assert poller.end == before
    files.watch(lambda _: None)
    assert poller.poll().end == replace(poller.end, version=4, confirmed_ms=140.0)


def _failing_at(failing: int) -> Callable[[int], None]:
    def look(number: int) -> None:
        if number == failing:
            raise CheckpointError("Cannot stat: the storage is away")

    return look


class UnorderedFiles(LocalFiles):
    """Stats asked for at once are answered in any order: here the last first, and something happens in between."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.between: Callable[[], None] = lambda: None

    def stats(self, paths: Sequence[str]) -> list[FileStat | None]:
        last = self.stat(paths[-1])
        self.between()
        return [*(self.stat(path) for path in paths[:-1]), last]


def test_a_slow_look_that_saw_the_last_commit_before_it_was_purged_confirms_nothing_old(
    query: SparkCommits, clock: ManualClock
) -> None:
    """The next commit came and went while its absence was asked for again and again: what was last is gone, too."""
    query.commit(3)
    files = UnorderedFiles(query.root)
    poller = Poller(files, clock)

    def commit_and_purge() -> None:
        clock.advance(QUICK_PROBE_MS + 1)
        query.commit(3)
        query.purge(keep=1)
        files.between = lambda: None

    files.between = commit_and_purge
    poll = poller.poll()
    assert seen(poll) == (6, Verdict.AHEAD, True)
