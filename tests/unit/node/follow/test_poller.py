"""The poller against a checkpoint on disk: whatever Spark and people do to it, a confirmed end was the true one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.clock import ManualClock
from tests.support.spark.commits import InterruptedFiles, SparkCommits

from understudy_node.checkpoint.files import FileStat, LocalFiles
from understudy_node.follow.end import End, Verdict
from understudy_node.follow.poll_loop import QUICK_PROBE_MS, Poll, Poller
from understudy_shared.base.errors import CheckpointError, NotACheckpointError

Action = Callable[[SparkCommits], None]


@pytest.fixture
def query(tmp_path: Path) -> SparkCommits:
    return SparkCommits(tmp_path / "checkpoint")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic_ms=100.0)


def seen(poll: Poll) -> tuple[int, Verdict, bool]:
    return poll.end.version, poll.verdict, poll.end.confirmed_ms is not None


def test_commits_are_followed_and_the_last_move_is_remembered(query: SparkCommits, clock: ManualClock) -> None:
    poller = Poller(LocalFiles(query.root), clock)
    assert seen(poller.poll()) == (0, Verdict.SAME, True)
    clock.advance(50)
    query.commit(2)
    poll = poller.poll()
    assert seen(poll) == (2, Verdict.SAME, True)
    assert (poll.end.moved_ms, poll.end.confirmed_ms) == (150.0, 150.0)
    clock.advance(50)
    assert (poller.poll().end.moved_ms, poller.end.confirmed_ms) == (150.0, 200.0)


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


class Truth(NamedTuple):
    """What an all-seeing observer knows at one instant."""

    lineage: str | None
    version: int
    last_commit: FileStat | None


ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.integers(1, 4).map(lambda batches: lambda query: query.commit(batches)),
    st.integers(1, 3).map(lambda keep: lambda query: query.purge(keep=keep)),
    st.integers(1, 3).map(lambda back: lambda query: query.rewind(max(0, query.version - back))),
    st.just(lambda query: query.recommit_last() if query.version else None),
    st.just(SparkCommits.recreate),
    st.just(SparkCommits.touch_metadata),
    st.just(SparkCommits.lose_metadata),
    st.just(SparkCommits.bring_metadata_back),
)


class SparkAgainstPoller(RuleBasedStateMachine):
    """Spark and people act between polls and, in `poll_interrupted`, between any two looks of one poll."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.query = SparkCommits(Path(self._directory.name) / "checkpoint")
        self.files = InterruptedFiles(self.query.root)
        self.clock = ManualClock()
        self.truths = [(0.0, self._look_at_everything())]
        self.poller = Poller(self.files, self.clock)

    def teardown(self) -> None:
        self._directory.cleanup()

    @rule(action=ACTIONS)
    def act(self, action: Action) -> None:
        self.clock.advance(1)
        action(self.query)
        self.truths.append((self.clock.monotonic_ms(), self._look_at_everything()))

    @rule()
    def poll(self) -> None:
        self.clock.advance(1)
        expected, truth, started_ms = self._expected(), self._look_at_everything(), self.clock.monotonic_ms()
        self.truths.append((started_ms, truth))
        poll = self.poller.poll()
        assert poll.verdict is expected
        assert poll.end == self.poller.end
        if expected in (Verdict.SAME, Verdict.AHEAD):
            assert poll.end.confirmed_ms == started_ms
            assert Truth(self.poller.lineage, poll.end.version, poll.end.last_commit) == truth
        else:
            assert poll.end.confirmed_ms is None

    @rule(interruptions=st.dictionaries(st.integers(0, 11), ACTIONS, min_size=1, max_size=3), outage=st.integers(0, 60))
    def poll_interrupted(self, interruptions: dict[int, Action], outage: int) -> None:
        self._interrupt(interruptions, outage)
        try:
            self.poller.poll()
        except CheckpointError:
            assert outage <= self.files.looks
        finally:
            self.files.watch(lambda _: None)

    @rule(interruptions=st.dictionaries(st.integers(0, 3), ACTIONS, max_size=2))
    def begin_again(self, interruptions: dict[int, Action]) -> None:
        self._interrupt(interruptions, outage=60)
        try:
            self.poller = Poller(self.files, self.clock)
        except NotACheckpointError:
            assert any(truth.lineage is None for _, truth in self.truths)
        finally:
            self.files.watch(lambda _: None)

    @invariant()
    def a_confirmed_end_was_the_truth_once_its_poll_had_begun(self) -> None:
        end = self.poller.end
        if end.confirmed_ms is not None:
            believed = Truth(self.poller.lineage, end.version, end.last_commit)
            assert believed in self._truths_since(end.confirmed_ms)

    def _truths_since(self, started_ms: float) -> list[Truth]:
        current = max((at for at, _ in self.truths if at <= started_ms), default=0.0)
        return [truth for at, truth in self.truths if at >= current]

    def _interrupt(self, interruptions: dict[int, Action], outage: int) -> None:
        def before_look(number: int) -> None:
            if number == outage:
                raise CheckpointError("Cannot stat: the storage is away")
            if number in interruptions:
                self.act(interruptions[number])

        self.clock.advance(1)
        self.truths.append((self.clock.monotonic_ms(), self._look_at_everything()))
        self.files.watch(before_look)

    def _expected(self) -> Verdict:
        """The verdict on the checkpoint as it stands, from what the poller has seen of it."""
        truth, end = self._look_at_everything(), self.poller.end
        if truth.lineage is None:
            return Verdict.GONE
        if truth.lineage != self.poller.lineage:
            return Verdict.RECREATED
        known_now = self._stat(f"commits/{end.version - 1}") if end.version else None
        was_replaced = known_now is not None and end.last_commit is not None and known_now != end.last_commit
        if truth.version < end.version or was_replaced:
            return Verdict.REWOUND
        is_linked = known_now is not None if end.version else self._stat("commits/0") is not None
        is_plain = is_linked and known_now == end.last_commit and self._stat("metadata") == end.query_id
        return Verdict.SAME if is_plain or truth.version == end.version else Verdict.AHEAD

    def _look_at_everything(self) -> Truth:
        lineage = self.query.query_id if self._stat("metadata") else None
        version = self.query.version
        return Truth(lineage, version, self._stat(f"commits/{version - 1}") if version else None)

    def _stat(self, path: str) -> FileStat | None:
        return LocalFiles(self.query.root).stat(path)


TestSparkAgainstPoller = SparkAgainstPoller.TestCase
TestSparkAgainstPoller.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
