"""When each version was committed, as far as a watcher can say, and what follows for the age of an answer (pure).

A commit file appears at one instant a(v), which nobody saw: the watcher knows not_before(v) <= a(v) <= seen(v). Every
judgement takes the side that favours the accused, so a correct system is never accused, however slowly the watcher
looks. All times are of one machine's monotonic clock, which every process on it shares; versions appear in order.

What a node declares (`node/understudy_node/follow/end.py`), answering at s, at version v, with end E. The read began at
b, b <= s:

- L = E - v, and E was confirmed by a poll begun at p: commits/<E> was absent after p, so a(E+1) > p. An end that the
  router knew to be newer only raises L.
- T >= s - p always; at the end T is just that.
- behind (v < E), T = c(E) - c(v+1) + s - u, c being modification times of commit files, u the start of the last poll
  that did not see E yet, so u <= a(E). (From the last poll that *confirmed* E would be wrong: it moves on for as long
  as the end stands still, and a replica that misses the last commit for an hour would call itself fresh.)

Hence two things that an answer must keep, with 1 ms for rounding T to whole milliseconds:

1. b - T <= s - T <= p < a(E+1): of versions seen by b - T, none is above E = v + L. Where T is null and L is not, the
   age of the confirmation is at most `end_expiry_ms`, which takes T's place.
2. If a(v+1) < b, the answer lacks something for b - a(v+1) at least, and T has to own up to it. A node cannot see a
   file's appearance, only its modification time, which is earlier (it is written first, then renamed); so it may miss
   the difference between those two gaps: T >= b - a(E) + c(E) - c(v+1). a(E) <= seen(E), and E is one of v+1 .. v+L or,
   when the node had not seen v+1 either, T >= s - p >= b - seen(v+1). The least of all these is what T has to reach:
   clocks' granularity and a slow rename are in it by the very times that the node compared, with no tolerance to tune.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tests.system.proof.history import Commit

ROUNDING_MS = 1.0
"""T is rounded to whole milliseconds, at each end of a comparison."""


class CommitTimes:
    """What the watcher saw. ValueError when versions did not appear in order: then it was not the live commit log."""

    def __init__(self, commits: Sequence[Commit], watched_until_ms: float | None) -> None:
        self._commits = sorted(commits, key=lambda commit: commit.version)
        self._by_version = {commit.version: commit for commit in self._commits}
        self._seen_ms = [commit.seen_ms for commit in self._commits]
        if self._seen_ms != sorted(self._seen_ms) or len(self._by_version) != len(self._commits):
            raise ValueError("the watcher saw versions out of order, or twice")
        self._until_ms = watched_until_ms

    @property
    def last_version(self) -> int:
        """The newest version that was ever seen; 0 before any."""
        return self._commits[-1].version if self._commits else 0

    def get(self, version: int) -> Commit | None:
        return self._by_version.get(version)

    def committed_by(self, at_ms: float) -> int:
        """The newest version that was certainly committed by `at_ms`; 0 when none was."""
        index = bisect_right(self._seen_ms, at_ms)
        return self._commits[index - 1].version if index else 0

    def surely_uncommitted(self, version: int, at_ms: float) -> bool:
        """Whether `version` was certainly not committed yet at `at_ms`."""
        commit = self.get(version)
        if commit is not None:
            return commit.not_before_ms is not None and commit.not_before_ms >= at_ms
        return version > self.last_version and self._until_ms is not None and self._until_ms >= at_ms

    def least_time_lag_ms(self, version: int, offset_lag: int, at_ms: float) -> float | None:
        """The least T that a correct node may declare at `at_ms` (2. above); None when nothing was missing for sure."""
        missed = self.get(version + 1)
        if missed is None or missed.seen_ms >= at_ms:
            return None
        least = at_ms - missed.seen_ms
        for end in map(self.get, range(version + 1, version + offset_lag + 1)):
            if end is not None:
                behind_ms = max(0, end.mtime_us - missed.mtime_us) / 1000
                least = min(least, at_ms - end.seen_ms + behind_ms)
        return max(0.0, least - ROUNDING_MS)

    def lag_owned_up_to(self, version: int, at_ms: float, time_lag_ms: float) -> int:
        """How many versions after `version` were certainly there `time_lag_ms` before `at_ms` (1. above)."""
        return max(0, self.committed_by(at_ms - time_lag_ms - ROUNDING_MS) - version)
