"""A replica of one task: all stores of one operator's partition, always shown at one version.

Readers see `view` and nothing else; one worker at a time runs `step`. `error` holds the last failure; meanwhile the
last good version stays visible, and the next poll tries again: no partial state is ever served.

States: CREATED until the first step; RESTORING while bases are opened (at first and after `_rebuild`) and until the lag
is at most `acceptable_recovery_lag`; then RUNNING, however much it lags later while it advances. A replica that
cannot advance is RESTORING until it does; CLOSED is final.

A replica cannot advance if it is behind a known end and none of its steps helps. If steps fail, it is stalled after
FAILING_RETRIES retries without a new version; if not, when no step ends for SILENT_MS. A restore that progresses step
by step is not stalled, nor is a replica that waits for its turn. While the end is unknown, the replica reports unknown
lag instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

from understudy_node.counters import During
from understudy_node.replica.chosen_files import RewrittenError
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.past_versions import PastRefusal
from understudy_node.replica.pinned_versions import extra_bytes
from understudy_node.replica.read_views import Progress, Readings
from understudy_node.replica.replica_context import StorePlace, Surroundings
from understudy_node.replica.task_stores import Job, TaskStores, VersionChanges
from understudy_node.replica.task_view import Origin, RetainedVersions, TaskView
from understudy_shared.base.errors import LocalDiskError, UnderstudyError, VanishedError
from understudy_shared.base.throttles import LogThrottle
from understudy_shared.base.words import ReplicaState, Role
from understudy_shared.bus.messages import Restore, task_key
from understudy_shared.reads.bounds import ReadVersion

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_VANISHED = 5
"""Number of times in a row that a chosen file may vanish before it is an error: Spark's clean-up is slower."""


FAILING_RETRIES = 10
"""Number of retries until a failing replica is stalled: hiccups of storage, and files that Spark is replacing, are over
after one or two.
"""

SILENT_MS = 60_000.0
"""Time without the end of a step until a replica is stalled: far more than reading one changelog, or fetching one file,
takes.
"""


class Stall:
    """The steps and failures of one replica. `is_now`: whether it was stalled at the last check."""

    def __init__(self) -> None:
        self.is_now = False
        self._version: int | None = None
        self._steps = 0
        self._since_ms: float | None = None

    def look(
        self, *, lags: bool, version: int | None, steps: int, fails: bool, waits: bool, now_ms: float, retry_ms: float
    ) -> None:
        """Judge again. `lags`: it is behind a known end. `waits`: others may get their steps first."""
        moved = version != self._version or (steps != self._steps and not fails)
        if not lags or moved or self._since_ms is None:
            self._since_ms, self.is_now = now_ms, False
        elif fails or self.is_now:
            self.is_now = self.is_now or now_ms - self._since_ms >= FAILING_RETRIES * retry_ms
        else:
            self.is_now = not waits and now_ms - self._since_ms >= SILENT_MS
        self._version, self._steps = version, steps


class TaskReplica:
    """A replica that follows the committed versions up to `progress.target`. `origin` names it to readers."""

    def __init__(
        self,
        places: Sequence[StorePlace],
        around: Surroundings,
        *,
        progress: Progress,
        origin: Origin,
        acceptable_recovery_lag: int,
        published: Callable[[], None],
    ) -> None:
        self.task = places[0].task
        self.key = task_key(self.task)
        self.lineage = places[0].lineage
        self.progress = progress
        self.origin = origin
        self.readings = Readings(origin, progress, around.measures.lags)
        self.view: TaskView | None = None
        self.followers: tuple[Callable[[TaskView], None], ...] = ()
        """The functions that get each published view, on the publishing thread."""
        self.error: UnderstudyError | None = None
        self.damage: UnderstudyError | None = None
        """The damage of its local copy, while it is built again."""
        self.unwritten: LocalDiskError | None = None
        """The failure of the local disk, until a step that writes has ended."""
        self.gone = False
        """Whether it left and removed its local files, so that a new replica of the task may use the directory."""
        self._stores = TaskStores(places, around)
        self._measures = around.measures
        self._pinned = around.pinned
        self._past = around.past
        self._throttle = LogThrottle()
        self._acceptable_recovery_lag = acceptable_recovery_lag
        self._published = published
        self._closed = False
        self._leaving = False
        self._vanished = 0
        self._in_step_from: int | None = None
        """The version where it reached the end. Older ones were committed before it could show them."""
        self._steps = 0
        self._stall = Stall()
        self._wants_prefetch = False
        self._wants_rebuild = False
        self._job: Job | None = None
        self._end_at_start: int | None = None
        """The newest version that existed when it began."""

    def __repr__(self) -> str:
        version = None if self.view is None else self.view.version
        return f"<TaskReplica {self.task} {self.role} {self.state} version={version} error={self.error}>"

    @property
    def state(self) -> ReplicaState:
        return self.origin.state

    @property
    def role(self) -> Role:
        return self.origin.role

    @property
    def target(self) -> int:
        """The newest version that it may show."""
        return self.progress.target

    @property
    def restoring(self) -> bool:
        """Whether its next step belongs to a restore."""
        return self.state in (ReplicaState.CREATED, ReplicaState.RESTORING)

    @property
    def in_background(self) -> bool:
        """Whether its next step does not tail: it restores, or checks or sorts a local copy."""
        return self.restoring or self._stores.only_works_in_background(self.target)

    @property
    def not_ready(self) -> str | None:
        """The reason why readers should not use it yet; None once it has shown the end that it found when it began, or
        cannot advance to it (then it is `stalled`). A later lag does not matter.
        """
        view, error = self.view, self.error
        wanted = min(self._end_at_start or 0, self.target)
        if view is not None and (view.version >= wanted or self.stalled):
            return None
        what = (
            f"{self.task} is {self.state}" if view is None else f"{self.task} is at version {view.version} of {wanted}"
        )
        return what if error is None else f"{what}: {error}"

    @property
    def restore(self) -> Restore | None:
        """The progress of its restore; None while it does not restore."""
        return self._stores.restore if self.state is ReplicaState.RESTORING else None

    @property
    def resident_bytes(self) -> int:
        """Its own memory, over all stores."""
        view = self.view
        return 0 if view is None else sum(store.resident_bytes for store in view.stores.values())

    @property
    def stored_bytes(self) -> int | None:
        """Size of its records, over all stores; None while it shows no version."""
        view = self.view
        return None if view is None else sum(store.stored_bytes for store in view.stores.values())

    @property
    def overlay_bytes(self) -> int:
        view = self.view
        return 0 if view is None else sum(store.overlay_bytes for store in view.stores.values())

    @property
    def behind(self) -> bool:
        """Whether a step has work to do."""
        target = self.target
        return target > 0 and (self._wants_rebuild or self._stores.damage is not None or self._stores.has_work(target))

    @property
    def stalled(self) -> bool:
        """Whether it is behind and cannot advance."""
        return self._stall.is_now

    def check_stall(self, retry_ms: float) -> None:
        """Check whether it advances: a replica that cannot is not RUNNING, whatever the cause. Called by one thread."""
        if self._closed:
            return
        self._stores.look_for_damage()
        view, target, was_stalled = self.view, self.target, self.stalled
        version = None if view is None else view.version
        self._stall.look(
            lags=target > (version or 0) and self.progress.knows_end,
            version=version,
            steps=self._steps,
            fails=self.error is not None,
            waits=self.restoring,
            now_ms=self.progress.now_ms(),
            retry_ms=retry_ms,
        )
        if self.stalled and self.state is ReplicaState.RUNNING:
            self.origin.enter(ReplicaState.RESTORING)  # RUNNING -> RESTORING: it cannot advance
            log.error(
                "%s cannot advance beyond version %s of %s: %s",
                self.task,
                version,
                target,
                self.error or "no step of it ends",
                extra={"action": "replica-stalled", "task": str(self.task)},
            )
        elif was_stalled and not self.stalled and self._stores.are_open and self.restoring and self._is_near_end(view):
            self.origin.enter(ReplicaState.RUNNING)  # A version was published between the check and the new state.

    def _is_near_end(self, view: TaskView | None) -> bool:
        """Whether it is near the end, not the target: a ceiling does not make a replica caught up."""
        return view is not None and self.progress.newest - view.version <= self._acceptable_recovery_lag

    def view_at(self, wanted: ReadVersion) -> TaskView | None:
        """Return the version of that commit, while it is shown or pinned."""
        view = self.view
        if view is not None and wanted.is_of(view.version, view.committed_at_us):
            return view
        return self._pinned.find(self, wanted, self.progress.now_ms())

    def open_past(self, wanted: ReadVersion) -> PastRefusal:
        """Begin to open an older version for `view_at`, or return why it cannot be opened."""
        return self._past.open(self, wanted)

    def read_past(self, wanted: ReadVersion, disk: LocalBases) -> TaskView:
        """See `PastTask`."""
        return self._stores.read_past(wanted, disk)

    def read_each(self, first: ReadVersion, last: int, disk: LocalBases) -> Iterator[TaskView]:
        """Yield each version from `first` to `last`, read from the checkpoint into the folder of `disk`."""
        return self._stores.read_each(first, last, disk)

    def read_changes(self, name: str, first: int, last: int) -> Iterator[VersionChanges]:
        """Yield what each version from `first` to `last` changed in a store, read from its changelogs."""
        return self._stores.read_changes(name, first, last)

    def changelogs(self, name: str) -> RetainedVersions | None:
        """Return the versions with readable changes; None for a store without changelogs."""
        found, retained = self._stores.changelogs(name), self.retained()
        if found is None or retained is None:
            return found and RetainedVersions(*found)
        return RetainedVersions(max(found[0], retained.first), found[1], retained.is_layout)

    def in_thread(self, work: Callable[[LocalBases], T]) -> Future[T]:
        """Run a function in a thread for older versions, with a folder of its own. Raises an overloaded problem."""
        return self._past.run(work)

    def retained(self) -> RetainedVersions | None:
        """See `PastTask`."""
        return self._stores.retained()

    def keep_past(self, view: TaskView, disk_bytes: int) -> None:
        """See `PastTask`."""
        shown = self.view
        if shown is not None:
            self.pin(view, extra_bytes(view, shown), disk_bytes)

    def pin(self, view: TaskView, extra: int = 0, disk_bytes: int = 0) -> None:
        """Pin a version that a reader pages through, so that it stays readable when it is no longer shown."""
        if self._closed:
            return
        now_ms = self.progress.now_ms()
        self._pinned.pin(self, view, now_ms, extra_bytes=extra, disk_bytes=disk_bytes)
        if self._closed:  # meanwhile, by another thread
            self._pinned.release(self)

    def step(self) -> bool:
        """Do one bounded piece of work; True when there is more to do right now."""
        if self._closed:
            if self._leaving and not self.gone:
                self._remove_local_files()
            return False
        try:
            return self._step()
        except VanishedError as error:
            self._vanished += 1
            return self._failed(error) if self._vanished > MAX_VANISHED else self._again()
        except RewrittenError as error:
            log.warning("%s", error, extra={"action": "replica-rebuilt", "task": str(self.task)})
            self._rebuild()
            return True
        except UnderstudyError as error:
            return self._failed(error)

    def start_over(self) -> None:
        """Rebuild from the checkpoint at the next step: continuity is not proven."""
        self._wants_rebuild = True

    def want_prefetch(self) -> bool:
        """Request a check for the next changelog, when no other work is due; False if it was found before."""
        self._wants_prefetch = not self._stores.have_read_ahead
        return self._wants_prefetch

    def close(self) -> None:
        """Take no further step. Views in flight stay readable; pinned ones are dropped: keys may be of another
        layout.
        """
        self._closed = True
        self._pinned.release(self)
        self.origin.enter(ReplicaState.CLOSED)

    def leave(self) -> None:
        """Take one more step, which removes the local files. Views in flight stay readable."""
        self._leaving = True
        self.close()

    def _remove_local_files(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job = None
        self._stores.leave()
        self._pinned.release(self)
        self.view = None
        # Again: a step in flight during `close` may have entered another state.
        self.origin.enter(ReplicaState.CLOSED)
        self.gone = True

    def _step(self) -> bool:
        damage = self._stores.damage
        if damage is not None:
            self._drop_damaged(damage)
        if self._wants_rebuild:
            self._wants_rebuild = False
            self._rebuild()
        if self._job is None:
            self._job = self._next_job()
            if self._job is None:
                return False
        try:
            next(self._job)
            self._steps += 1
        except StopIteration:
            self._job = None
            self._vanished = 0
            self._steps += 1
            self._publish()
            is_behind = self.behind
            if not is_behind:
                self.unwritten = None
            return is_behind
        return True

    def _next_job(self) -> Job | None:
        target = self.target
        if target < 1:
            return None
        if self._end_at_start is None:
            self._end_at_start = target
        if not self._stores.are_open:
            # CREATED -> RESTORING; stores restore one after another, each at its own call.
            self.origin.enter(ReplicaState.RESTORING)
        job = self._stores.next_job(target, can_write=self.unwritten is None)
        if job is None and self._wants_prefetch:
            self._wants_prefetch = False
            return self._stores.prefetch()
        return job

    def _publish(self) -> None:
        """Show the version of the stores once all are at the same one, never an older one than is visible."""
        view = self._stores.view_after(self.view)
        if view is not None or self.view is not None:
            self.error = None  # Without a shown version the error stays: each try has steps that succeed.
        if view is None:
            return
        self._note_visible(view.version)
        self.view = view
        self.damage = None
        self._pinned.published(self, view, self.progress.now_ms())
        if self.restoring and self._is_near_end(view):
            self.origin.enter(ReplicaState.RUNNING)  # RESTORING -> RUNNING
        for follow in self.followers:
            follow(view)
        self._published()

    def _note_visible(self, version: int) -> None:
        """Measure how long a commit took to get here, for commits that came after this replica had reached the end."""
        if self._in_step_from is None:
            if version >= self.progress.newest:
                self._in_step_from = version
        elif self.view is not None and version > max(self.view.version, self._in_step_from):
            delay_ms = self.progress.since_commit_ms(version)
            if delay_ms is not None:
                self._measures.visible.observe(delay_ms, self.progress.now_ms())

    def _rebuild(self) -> None:
        """Start again from the checkpoint; the visible version stays, marked, until a new one is published."""
        self._job = None
        self._in_step_from = None
        self._stores.start_over()
        self._pinned.release(self)  # Pinned versions may be of a history that was rewound.
        self.origin.enter(ReplicaState.RESTORING)  # RUNNING -> RESTORING: the base is opened again
        if self.view is not None:
            self.view = self._stores.marked(self.view)

    def _drop_damaged(self, damage: UnderstudyError) -> None:
        """Build the local copy again: its sound parts answer meanwhile, and damaged parts give an error."""
        log.error("%s", damage, extra={"action": "local-copy-damaged", "task": str(self.task)})
        self._measures.damaged_copies += 1
        self.damage = damage
        self._stores.disown_damaged()
        self._wants_rebuild = True

    def _again(self) -> bool:
        self._job = None
        return True

    def _failed(self, error: UnderstudyError) -> bool:
        self._measures.storage_errors[During.REPLICA] += 1
        is_new = self.error is None or self.error.args != error.args
        if is_new and self._throttle.admit(error.args, self.progress.now_ms()) is not None:
            log.error("%s", error, extra={"action": "replica-failed", "task": str(self.task)})
        self.error = error
        if isinstance(error, LocalDiskError):
            self.unwritten = error
        self._job = None
        return False
