"""Polls the commit log and keeps the end: the thin shell around `end.py`.

One poll is three stats, whatever the number of tasks. A poll that finds the end in doubt lists the commit log once and
reports the verdict; what to do about a rewound or re-created checkpoint is the node's business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from understudy_node.checkpoint.files import CheckpointFiles, FileStat
from understudy_node.checkpoint.logs import batch_ids, parse_query_id
from understudy_node.follow.end import End, Next, Probe, Verdict, advance, observe, settle
from understudy_shared.clock import Clock
from understudy_shared.errors import CorruptFileError, NotACheckpointError, VanishedError
from understudy_shared.words import Lineage

MAX_ADVANCE = 256
"""Commits taken in one poll, so that a long backlog never keeps the poller from reporting."""


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll found: the end as it is now, and how the history was judged."""

    end: End
    verdict: Verdict
    batch_in_progress: bool


class Poller:
    """Holds the end of one lineage; `poll()` is called by one thread, `end` is read by all."""

    def __init__(self, files: CheckpointFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self.lineage, query_id = _read_query_id(files)
        ids = batch_ids(files.list("commits") or [])
        version = max(ids, default=-1) + 1
        self.end = End(version, self._stat_commit(version), query_id)

    def poll(self) -> Poll:
        """Look once. Storage errors propagate as OSError: the end stays unconfirmed by this poll."""
        verdict = Verdict.SAME
        for _ in range(MAX_ADVANCE):
            probe = self._probe()
            self.end, what = observe(self.end, probe)
            if what is Next.WAIT:
                break
            if what is Next.READ and probe.next_commit is not None:
                self.end = advance(self.end, probe.next_commit, now_ms=self._clock.monotonic_ms())
                continue
            verdict = self._settle()
            if verdict not in (Verdict.SAME, Verdict.AHEAD):
                break
        in_progress = self._files.stat(f"offsets/{self.end.version}") is not None
        return Poll(self.end, verdict, in_progress)

    def _probe(self) -> Probe:
        started_ms = self._clock.monotonic_ms()
        return Probe(
            started_ms=started_ms,
            next_commit=self._stat_commit(self.end.version + 1),
            last_commit=self._stat_commit(self.end.version),
            query_id=self._files.stat("metadata"),
        )

    def _settle(self) -> Verdict:
        try:
            lineage, query_id = _read_query_id(self._files)
        except (NotACheckpointError, CorruptFileError):
            return settle(self.end, same_query=None, batch_ids=None, last_commit=None)
        names = self._files.list("commits")
        ids = None if names is None else batch_ids(names)
        last_commit = self._stat_commit(self.end.version)
        verdict = settle(self.end, same_query=lineage == self.lineage, batch_ids=ids, last_commit=last_commit)
        if verdict in (Verdict.SAME, Verdict.AHEAD):
            version = max(ids or [], default=-1) + 1
            moved_ms = self._clock.monotonic_ms() if verdict is Verdict.AHEAD else self.end.moved_ms
            self.end = replace(
                self.end, version=version, last_commit=self._stat_commit(version), query_id=query_id, moved_ms=moved_ms
            )
        return verdict

    def _stat_commit(self, version: int) -> FileStat | None:
        """The commit file that makes `version`; None before the first version."""
        return None if version < 1 else self._files.stat(f"commits/{version - 1}")


def _read_query_id(files: CheckpointFiles) -> tuple[Lineage, FileStat]:
    stat = files.stat("metadata")
    try:
        if stat is None:
            raise VanishedError("there is no `metadata` file", where=files.url)
        return Lineage(parse_query_id(files.read("metadata"))), stat
    except VanishedError:
        raise NotACheckpointError(
            "the checkpoint has no `metadata` file", where=files.url, fix="Point at the query's checkpointLocation"
        ) from None
