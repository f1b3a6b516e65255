"""Whatever Spark and people do to a checkpoint, between polls and within one: a confirmed end was the true one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.clock import ManualClock
from tests.support.spark.commits import InterruptedFiles, SparkCommits

from understudy_node.checkpoint.files import FileStat, LocalFiles
from understudy_node.follow.end import Verdict
from understudy_node.follow.poll_loop import Poller
from understudy_shared.base.errors import CheckpointError, NotACheckpointError

Action = Callable[[SparkCommits], None]


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
