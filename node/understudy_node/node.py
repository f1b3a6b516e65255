"""A node that follows one checkpoint: polls its end, advances its replicas, and reports its state.

One thread polls, a few workers do bounded steps, and readers see only immutable views. When the history is rewound
or re-created, all tasks held are dropped: an answer from another history would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from understudy_node.checkpoint.description import CheckpointDescription, describe
from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_node.counters import During, Measures
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.events import NodeEvents, causes_of
from understudy_node.follow.end import End, Verdict, next_poll_ms
from understudy_node.follow.history import CommitHistory
from understudy_node.follow.poll_loop import Cadence, NewSchemas, Poll, Poller, PollLoop
from understudy_node.generations import Duties, Generation, Generations, Wiring, layout_of
from understudy_node.replica.local_bases import LocalBases, require_apart
from understudy_node.replica.past_versions import PAST_FOLDER, PastVersions
from understudy_node.replica.pinned_versions import LeaseTable, PinnedViews
from understudy_node.replica.replica_context import Surroundings
from understudy_node.replica.task import TaskReplica
from understudy_node.replica.workers import Steps, Workers, WorkSchedule, prefetch_interval_ms
from understudy_node.settings import NodeSettings
from understudy_node.stores.stores import named_operators, read_aliases, served_stores
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import NotACheckpointError, UnderstudyError
from understudy_shared.base.masking import masked_location
from understudy_shared.base.texts import named
from understudy_shared.base.words import ApplicationId, HostInfo, Lineage, Role
from understudy_shared.bus.messages import Announcement, QueryProgress
from understudy_shared.server.settings import HttpService
from understudy_shared.spark.temporal import utc_text

POLL_FLOOR_LOCAL_MS = 5
"""Least time between polls of a local disk: a stat costs 2 us, so polling every 5 ms costs a node 0.1 % of a core."""

POLL_FLOOR_REMOTE_MS = 100
"""Least time between polls of an object store: each poll is four paid requests."""

WATCHED_POLL_MS = 100
"""The interval of polls while log events wake the poll loop: the polls find changes that cause no event."""

STOP_TIMEOUT_S = 10.0

CLEANUP_EVERY_MS = 60_000
"""Interval to look for local files of tasks that are not held."""

MAX_NAMED = 10
"""Number of tasks that an event names."""


class Node(HttpService):
    """A node that follows the checkpoint in `files`. It holds every task, unless `assign` names some; `node_id` is
    its name in a cluster, set before `start`.
    """

    settings: NodeSettings

    def __init__(
        self,
        settings: NodeSettings,
        files: CheckpointFiles,
        *,
        host: HostInfo,
        clock: Clock,
        cache: BlockCache | None = None,
        workers: Steps | None = None,
    ) -> None:
        """Read the checkpoint's description. `cache` and `workers` are shared in a process of several nodes.

        Raises UnderstudyError, before anything is started, for an unusable checkpoint.
        """
        if isinstance(files, LocalFiles):
            require_apart(Path(files.url), settings.data_directory, ApplicationId(settings.application))
        self.settings = settings
        self.host = host
        self.node_id: str | None = None
        self.files = files
        self.cache = cache or BlockCache(settings.statestore_cache_max_bytes)
        self.measures = Measures()
        self.past = PastVersions(settings.data_directory / PAST_FOLDER)
        self.leases = LeaseTable()
        self.events = NodeEvents(clock)
        self.on_published: Callable[[], None] = lambda: None
        self._clock = clock
        aliases = {} if settings.aliases is None else read_aliases(settings.aliases)
        self._named = named_operators(aliases)
        description = describe(files, self._named)
        if description.operators:  # before the first batch there are no stores
            served_stores(description, aliases)
        self._poller = Poller(files, clock)
        self._schemas = NewSchemas(files)
        self._ceiling: int | None = None
        self._disk_is_full = False
        self._cleanup_due_ms = float("-inf")
        self._around = Surroundings(
            files=files,
            history=CommitHistory(files),
            disk=LocalBases(settings.data_directory),
            cache=self.cache,
            overlay_max_bytes=settings.overlay_max_bytes,
            ceiling=lambda: self._ceiling,
            measures=self.measures,
            pinned=PinnedViews(self.leases),
            past=self.past,
        )
        workers = workers or Workers(count=settings.workers)
        self._schedule = WorkSchedule(workers, retry_ms=settings.lag_refresh_ms)
        self._generations = Generations(workers, aliases, event=self.events.note)
        self._cadence = Cadence()
        self._is_local = isinstance(files, LocalFiles)  # a stat costs microseconds
        floor_ms = POLL_FLOOR_LOCAL_MS if self._is_local else POLL_FLOOR_REMOTE_MS
        self._loop = PollLoop(self._turn, files, floor_ms=floor_ms, clock=clock)

    @property
    def error(self) -> UnderstudyError | None:
        return self.events.error

    @property
    def generation(self) -> Generation | None:
        """The generation that answers readers; None before the first commit."""
        return self._generations.serving

    @property
    def pending(self) -> Generation | None:
        """The generation that is restored to be served next."""
        return self._generations.pending

    @property
    def duties(self) -> Mapping[str, Role] | None:
        """The tasks to hold, with their roles; None for all of them, as active."""
        return self._generations.duties.tasks

    @property
    def end(self) -> End:
        """The end of the committed history, as of the last poll."""
        return self._poller.end

    @property
    def lineage(self) -> Lineage:
        return self._poller.lineage

    @property
    def pinned(self) -> PinnedViews:
        return self._around.pinned

    def describe(self) -> CheckpointDescription:
        """Read the description of the checkpoint as it is now. Raises UnderstudyError."""
        return describe(self.files, self._named)

    @property
    def history(self) -> CommitHistory:
        return self._around.history

    def assign(self, duties: Mapping[str, Role] | None, *, partitions: int | None = None) -> None:
        """Hold these tasks (by task key) and no others; None is every task, as active. Called from any thread.

        Roles change at once; replicas are created and dropped soon. `partitions` is the number of partitions of the
        layout that the duties apply to: they are kept until that layout comes. None is any layout.
        """
        self._generations.assign(Duties(None if duties is None else dict(duties), partitions))
        self.wake()

    def announce(self, announcement: Announcement | None) -> None:
        """Use the names and results that the pipeline announced, where they fit. Called from any thread."""
        if announcement != self._generations.announcement:
            self._generations.announcement = announcement
            self.wake()

    def wake(self) -> None:
        """Poll now, because a commit was announced. Called from any thread."""
        self._loop.wake()

    def hold_at(self, version: int | None) -> None:
        """Show no version above this one until called with None: the replica falls behind, for tests and drills.

        A newer version that is visible already stays; the reported lag is the true one.
        """
        self._ceiling = version
        self.wake()

    def tasks(self) -> list[str]:
        """Return the keys of all tasks of the newest layout, held here or not; empty before the first commit."""
        newest = self._generations.newest
        return [] if newest is None else list(newest.tasks)

    def start(self) -> None:
        self._schedule.workers.start()
        self._loop.start()

    def stop(self) -> None:
        """Stop following, after the steps in flight; local files stay for the next start."""
        self._loop.stop(timeout_s=STOP_TIMEOUT_S)
        self._generations.close()
        self.past.close()
        self._schedule.workers.stop(timeout_s=STOP_TIMEOUT_S)
        self._around.disk.release()

    def discard(self) -> None:
        """Let another process have the folder of a node that was not started."""
        self._around.disk.release()

    @property
    def dead(self) -> str | None:
        """The bug that ended a background thread, so this process must end; None without one."""
        failure = self._loop.failure or self._schedule.workers.failure
        return None if failure is None else f"a background task died: {failure!r}"

    def not_ready(self) -> list[str]:
        """Return why readers should not be sent to this node; empty if they should be.

        It is ready once each of its tasks has reached the end that was the newest when the task began. Lag alone
        never makes it unready later; nor does a node without tasks count as unready.
        """
        reasons = [self.dead] if self.dead else []
        generation = self.generation
        if generation is None:
            is_read = self.events.has_polled
            nothing_yet = "no batch has been committed yet" if is_read else "the commit log has not been read yet"
            reasons.append(str(self.error) if self.error else nothing_yet)
        else:
            reasons += [why for replica in generation.replicas if (why := replica.not_ready) is not None]
        return reasons

    @property
    def waits_for(self) -> str | None:
        """The precondition without which the node cannot hold anything; None if it is met, or not known yet."""
        if self.generation is not None or self.error is not None or not self.events.has_polled or self.end.version:
            return None
        return f"the first commit of the query at {masked_location(self.settings.checkpoint)}"

    def causes(self) -> dict[str, str]:
        """Return which functions fail although lookups work, and why, by cause.

        While there is no generation to answer from, `not_ready` says why.
        """
        if self.generation is None:
            return {}
        now_ms, expiry_ms = self._clock.monotonic_ms(), self.settings.end_expiry_ms
        full_disk = self._around.disk.root if self._disk_is_full else None
        replicas = self._generations.replicas()
        return causes_of(self.error, self.end, replicas, full_disk=full_disk, now_ms=now_ms, end_expiry_ms=expiry_ms)

    def stalled(self) -> list[TaskReplica]:
        return [replica for replica in self._generations.replicas() if replica.stalled]

    def now_ms(self) -> float:
        """Return the time of the monotonic clock that the times of `end` refer to."""
        return self._clock.monotonic_ms()

    def wall_us(self) -> int:
        return self._clock.wall_us()

    def query_status(self) -> dict[str, object]:
        """Return the state of the query itself, as far as its files show it."""
        since_ms = self._cadence.since_commit_ms(self._clock.monotonic_ms())
        committed_at_ns = self.history.commit_time_ns(self.end.version)
        return {
            "state": self._cadence.state(self._clock.monotonic_ms(), confirmed=self.end.confirmed_ms is not None),
            "last_batch": self.end.version - 1 if self.end.version else None,
            "last_commit_at": None if committed_at_ns is None else utc_text(committed_at_ns // 1000),
            "last_commit_seen_ms_ago": None if since_ms is None else round(since_ms),
            "batch_in_progress": self._cadence.is_batch_in_progress,
        }

    def query_progress(self) -> QueryProgress:
        return self._cadence.progress(self._clock.monotonic_ms())

    def _turn(self) -> float:
        try:
            poll = self._poller.poll()
            self._handle(poll)
            self.events.polled(must_read=self._schemas.must_read)
        except UnderstudyError as error:  # the storage failed: this poll does not confirm the end
            self.measures.storage_errors[During.FOLLOW] += 1
            self.events.failed(error)
        if self._generations.refit(self._wiring()):
            self.on_published()
        now_ms = self._clock.monotonic_ms()
        self._schedule.hand_out(
            self._generations.replicas(),
            self.history,
            end_version=self.end.version,
            # Remote files are not read ahead: a stat per task costs requests, and the commit names the file.
            batch_in_progress=self._cadence.is_batch_in_progress and self._is_local,
            now_ms=now_ms,
        )
        self._disk_is_full = self._around.disk.is_full()
        self.events.note_ready(self.generation, self._around.disk.fetched)
        self.events.note_damaged(self.measures.damaged_copies)
        self.leases.expire(now_ms)
        self._around.pinned.expire(now_ms)
        self._remove_unheld_files(now_ms)
        if self._cadence.turned_idle(now_ms):
            self.events.note("idle", "no commit for a while: the query is stopped, or has no input")
        return next_poll_ms(
            quiet_ms=self._cadence.quiet_ms(now_ms),
            lag_refresh_ms=self.settings.lag_refresh_ms,
            floor_ms=self._poll_floor_ms(),
        )

    def _remove_unheld_files(self, now_ms: float) -> None:
        """Remove local files of tasks that it has not held for long. A node without tasks waits for its assignment."""
        if now_ms < self._cleanup_due_ms:
            return
        held = [replica.task for replica in self._generations.replicas()]
        if not held:
            return
        self._cleanup_due_ms = now_ms + CLEANUP_EVERY_MS
        removed = self._around.disk.remove_unheld(held[0].application_id, self.lineage, held, now_ms=now_ms)
        if removed:
            self.events.note("removed", f"the local files of tasks that it does not hold: {named(removed, MAX_NAMED)}")

    def _poll_floor_ms(self) -> float:
        """Return the least time until the next poll, if no event wakes the loop."""
        if not self._loop.is_watched or not self._generations.are_settled:
            return self._loop.floor_ms
        if self._cadence.is_batch_in_progress:  # the watch does not cover the changelogs in the tasks' folders
            return min(WATCHED_POLL_MS, prefetch_interval_ms(len(self._generations.replicas())))
        return WATCHED_POLL_MS

    def _handle(self, poll: Poll) -> None:
        now_ms = self._clock.monotonic_ms()
        self._cadence.saw_batch(poll.end.version, has_begun=poll.batch_in_progress, now_ms=now_ms)
        if self._cadence.saw(poll.end, now_ms=now_ms):
            self.events.note("resumed", f"batch {poll.end.version - 1} was committed")
        match poll.verdict:
            case Verdict.RECREATED:
                self._begin_again("re-created", "the checkpoint has another query id: it was deleted and made anew")
            case Verdict.REWOUND:
                self._begin_again(
                    "rewound", f"the commit log was cut back or rewritten below batch {poll.end.version - 1}"
                )
            case Verdict.GONE:
                raise NotACheckpointError(
                    "the checkpoint is gone", where=self.files.url, fix="Lookups work, with unknown lag; restore it"
                )
            case Verdict.AHEAD:
                self.events.note(
                    "jumped", f"commits below batch {poll.end.version - 1} were purged unread: restoring anew"
                )
                for replica in self._generations.replicas():
                    replica.start_over()
                self._follow_layout(poll.end)
            case _:
                self._follow_layout(poll.end)

    def _follow_layout(self, end: End) -> None:
        if self._generations.swap_if_ready():
            self.on_published()
        record = self.history.record(end.version) if end.version else None
        if record is None:
            return
        is_new = self._generations.open(self.describe, layout_of(record), self._wiring())
        newest = self._generations.newest
        if not is_new and newest is not None and self._schemas.to_read(newest.description, end.version - 1):
            description = self.describe()
            is_new = self._generations.renew(description, self._wiring())
            self._schemas.were_read(description)
            self.events.error = None
        elif is_new and newest is not None:
            self._schemas.were_read(newest.description)
        if is_new:
            self.on_published()

    def _wiring(self) -> Wiring:
        return Wiring(
            settings=self.settings,
            around=self._around,
            host=self.host,
            node_id=self.node_id,
            end=lambda: self._poller.end,
            clock=self._clock,
            published=self._published,
        )

    def _begin_again(self, what: str, detail: str) -> None:
        """Drop all tasks held: they are not part of the present history."""
        self.events.note(what, detail)
        self._generations.drop()
        before, lineage = self.history, self.lineage
        self._poller = Poller(self.files, self._clock)
        taken_back = before.known_above(self.end.version) if self.lineage == lineage else {}
        self.leases.clear()
        history = CommitHistory(self.files, taken_back)
        self._around = replace(self._around, history=history, pinned=PinnedViews(self.leases))
        self.on_published()

    def _published(self) -> None:
        self.on_published()
