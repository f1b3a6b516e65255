"""Polls the commit log and keeps the end: the thin shell around `end.py`.

A poll is four stats at once, whatever the number of tasks: three confirm the end, one sees a batch in progress. A
poll before the first commit also lists the commit log; a poll that finds the end in doubt lists it once and reports the
verdict. The node decides what follows from a rewound or re-created checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from understudy_node.checkpoint.files import CheckpointFiles, FileStat
from understudy_node.checkpoint.logs import MAX_LOG_BYTES, batch_ids, parse_query_id
from understudy_node.follow.end import End, Next, Probe, Verdict, advance, observe, settle
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import CorruptFileError, NotACheckpointError, VanishedError
from understudy_shared.base.words import Lineage

MAX_ADVANCE = 256
"""Number of commits taken in one poll, so that a long backlog never keeps the poller from reporting."""


QUICK_PROBE_MS = 100.0
"""Time of a quick probe. Its stats may be answered in any order. Within this time no query commits and purges two
batches; after a slower probe the last commit is looked at again, behind the absence of the next.
"""


@dataclass(frozen=True, slots=True)
class Poll:
    """The result of one poll: the present end, and the verdict on the history."""

    end: End
    verdict: Verdict
    batch_in_progress: bool


class Poller:
    """The end of one lineage; `poll()` is called by one thread, `end` is read by all."""

    def __init__(self, files: CheckpointFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self.lineage, query_id = _read_query_id(files)
        ids = batch_ids(files.list("commits") or [])
        version = max(ids, default=-1) + 1
        self.end = End(version, self._stat_commit(version), query_id)

    def poll(self) -> Poll:
        """Poll once. Errors of the storage propagate: the last confirmation only grows older.

        Readers see a new end once it is confirmed, and doubt at once; they never see the instant between finding a
        commit and looking for the next.
        """
        end, verdict, listed, in_progress = self.end, Verdict.SAME, False, False
        for _ in range(MAX_ADVANCE):
            probe, in_progress = self._probe(end)
            end, what = observe(end, probe)
            if what is Next.READ and probe.next_commit is not None:
                end = advance(end, probe.next_commit, now_ms=self._clock.monotonic_ms())
                continue
            if what is Next.WAIT or listed:
                break
            self.end, listed = end, True
            end, verdict = self._settle(end)
            if verdict not in (Verdict.SAME, Verdict.AHEAD):
                break
        self.end = end
        return Poll(end, verdict, in_progress)

    def _probe(self, end: End) -> tuple[Probe, bool]:
        """Read the files' evidence about the end, and whether the batch after it has begun."""
        started_ms = self._clock.monotonic_ms()
        version = end.version
        names = [
            f"commits/{version}",
            "metadata",
            f"offsets/{version}",
            *([f"commits/{version - 1}"] if version else []),
        ]
        next_commit, query_id, next_offsets, *last = self._files.stats(names)
        if next_commit is None and last and self._clock.monotonic_ms() - started_ms > QUICK_PROBE_MS:
            last = [self._stat_commit(version)]
        is_first_absent = version == 0 and next_commit is None
        probe = Probe(
            started_ms=started_ms,
            next_commit=next_commit,
            last_commit=last[0] if last else None,
            query_id=query_id,
            commits_without_first=is_first_absent and bool(batch_ids(self._files.list("commits") or [])),
        )
        return probe, next_offsets is not None

    def _settle(self, end: End) -> tuple[End, Verdict]:
        try:
            lineage, query_id = _read_query_id(self._files)
        except (NotACheckpointError, CorruptFileError):
            return end, settle(end, same_query=None, batch_ids=None, last_commit=None)
        names = self._files.list("commits")
        ids = None if names is None else batch_ids(names)
        last_commit = self._stat_commit(end.version)
        verdict = settle(end, same_query=lineage == self.lineage, batch_ids=ids, last_commit=last_commit)
        if verdict is Verdict.SAME:
            # Keep the last commit while its file cannot be seen, so that a different file in its place is noticed.
            return replace(end, last_commit=last_commit or end.last_commit, query_id=query_id), verdict
        if verdict is Verdict.AHEAD:
            version, moved_ms = max(ids or [], default=-1) + 1, self._clock.monotonic_ms()
            newest = self._stat_commit(version)
            ahead = replace(end, version=version, last_commit=newest, query_id=query_id, moved_ms=moved_ms, unseen=())
            return ahead, verdict
        return end, verdict

    def _stat_commit(self, version: int) -> FileStat | None:
        """Stat the commit file that makes `version`; None before the first version."""
        return None if version < 1 else self._files.stat(f"commits/{version - 1}")


def _read_query_id(files: CheckpointFiles) -> tuple[Lineage, FileStat]:
    stat = files.stat("metadata")
    try:
        if stat is None:
            raise VanishedError("there is no `metadata` file", where=files.url)
        return Lineage(parse_query_id(files.read("metadata", MAX_LOG_BYTES))), stat
    except VanishedError:
        raise NotACheckpointError(
            "the checkpoint has no `metadata` file", where=files.url, fix="Point at the query's checkpointLocation"
        ) from None
