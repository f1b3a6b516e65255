"""A replica of one task: all stores of one operator's partition, always shown at one version.

Readers see `view` and nothing else; one worker at a time runs `step`. `error` holds the last failure; meanwhile the
last good version stays visible, and the next poll tries again: no partial state is ever served.

States: CREATED until the first step; RESTORING while bases are opened (at first and after `_rebuild`) and until the lag
is at most `acceptable_recovery_lag`; then RUNNING, however far it falls behind later; CLOSED is final.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence

import orjson

from understudy_node.engine.tier import release_tiers
from understudy_node.follow.end import End
from understudy_node.follow.lag import lag_of
from understudy_node.replica.changelog_reader import RewrittenError
from understudy_node.replica.store_replica import StoreReplica
from understudy_node.replica.surroundings import StorePlace, Surroundings
from understudy_node.replica.task_view import Mark, TaskView, task_view
from understudy_shared.clock import Clock
from understudy_shared.errors import UnderstudyError, VanishedError
from understudy_shared.messages import task_key
from understudy_shared.words import HostInfo, LagInfo, ReplicaState, Role

log = logging.getLogger(__name__)

MAX_VANISHED = 5
"""Times in a row that a chosen file may vanish before it counts as an error: Spark's clean-up is not that fast."""


class TaskReplica:
    """Follows the committed versions of a task, up to `end`, as long as they are in the layout of its places."""

    def __init__(
        self,
        places: Sequence[StorePlace],
        around: Surroundings,
        *,
        end: Callable[[], End],
        clock: Clock,
        host: HostInfo,
        node_id: str | None,
        role: Role,
        acceptable_recovery_lag: int,
        end_expiry_ms: float,
        published: Callable[[], None],
    ) -> None:
        self.task = places[0].task
        self.key = task_key(self.task)
        self.lineage = places[0].lineage
        self.role = role
        self.view: TaskView | None = None
        self.error: UnderstudyError | None = None
        self.gone = False
        """Whether it left and removed its local files, so that a new replica of the task may use the directory."""
        self._places = tuple(places)
        self._around = around
        self._end = end
        self._clock = clock
        self._host = host
        self._node_id = node_id
        self._acceptable_recovery_lag = acceptable_recovery_lag
        self._end_expiry_ms = end_expiry_ms
        self._published = published
        self._closed = False
        self._leaving = False
        self._stamping = threading.Lock()
        self._vanished = 0
        self._wants_prefetch = False
        self._wants_rebuild = False
        self._marks: frozenset[Mark] = frozenset()
        self._newest_fitting = 0
        self._judged_end = 0
        self._stores = self._new_stores()
        self._job: Generator[None, None, None] | None = None
        self._state = ReplicaState.CREATED
        self.served_by_json = b""
        self._stamp()

    def __repr__(self) -> str:
        version = None if self.view is None else self.view.version
        return f"<TaskReplica {self.task} {self.role} {self._state} version={version} error={self.error}>"

    @property
    def state(self) -> ReplicaState:
        return self._state

    @property
    def target(self) -> int:
        """The newest version it may show: the end, unless the query changed its layout or a ceiling limits it."""
        newest, ceiling = self._newest, self._around.ceiling()
        return newest if ceiling is None else min(newest, ceiling)

    @property
    def _newest(self) -> int:
        end = self._end().version
        if end == self._judged_end:
            return self._newest_fitting
        try:
            record = self._around.history.record(end)
        except UnderstudyError:
            return end  # the step towards it reports the error
        if record is not None:
            self._newest_fitting = end if self._places[0].fits(record) else self._newest_fitting
            self._judged_end = end
        return self._newest_fitting

    @property
    def restoring(self) -> bool:
        """Whether its next step belongs to a restore and not to tailing."""
        return self._state in (ReplicaState.CREATED, ReplicaState.RESTORING)

    @property
    def resident_bytes(self) -> int:
        """Its own memory, over all stores."""
        view = self.view
        return 0 if view is None else sum(store.resident_bytes for store in view.stores.values())

    @property
    def overlay_bytes(self) -> int:
        view = self.view
        return 0 if view is None else sum(store.overlay_bytes for store in view.stores.values())

    def lag_of(self, view: TaskView) -> LagInfo:
        """The lag of a view of this task, now."""
        return self.lag_at(view.version, self._end(), now_ms=self._clock.monotonic_ms())

    def lag_at(self, version: int, end: End, *, now_ms: float) -> LagInfo:
        """The lag of a version against an end. Read the end after the version, so that a race overstates the lag."""
        return lag_of(
            version, end, self._around.history.known_commit_time_ns, now_ms=now_ms, expiry_ms=self._end_expiry_ms
        )

    def committed_at_us(self, version: int) -> int | None:
        """Commit time of `version` if it was read already: lookups read no files."""
        committed_at_ns = self._around.history.known_commit_time_ns(version)
        return None if committed_at_ns is None else committed_at_ns // 1000

    def as_candidate(self, lag: LagInfo | None, reason: str) -> dict[str, object]:
        """This replica as listed in a refusal: its identity, its version and lag, and why it may not answer."""
        candidate: dict[str, object] = {**orjson.loads(self.served_by_json), "reason": str(reason)}
        if lag is not None:
            candidate |= {"version": lag.current_offset_position, "offset_lag": lag.offset_lag}
            candidate["time_lag_ms"] = lag.time_lag_ms
        return candidate

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

    def want_prefetch(self) -> None:
        """Request one look for the next version's changelog, when no other work is due."""
        self._wants_prefetch = True

    @property
    def behind(self) -> bool:
        """Whether a step has work to do."""
        target = self.target
        return target > 0 and any(
            self._wants_rebuild or store.version < target or store.over_budget or store.outgrown
            for store in self._stores
        )

    def close(self) -> None:
        """Take no further step. Views in flight stay readable."""
        self._closed = True
        self._enter(ReplicaState.CLOSED)

    def leave(self) -> None:
        """Take one more step, which removes the local files. Views in flight stay readable."""
        self._leaving = True
        self.close()

    def set_role(self, role: Role) -> None:
        """Change the role; the state held stays as it is. Called from any thread."""
        if role is not self.role:
            self.role = role
            self._stamp()

    def _remove_local_files(self) -> None:
        if self._job is not None:
            self._job.close()
            self._job = None
        for store in self._stores:
            store.leave()
        self._stores = []
        self.view = None
        self._enter(ReplicaState.CLOSED)  # again: a step in flight during `close` may have entered another state
        self.gone = True

    def _step(self) -> bool:
        if self._wants_rebuild:
            self._wants_rebuild = False
            self._rebuild()
        if self._job is None:
            self._job = self._next_job()
            if self._job is None:
                return False
        try:
            next(self._job)
        except StopIteration:
            self._job = None
            self._vanished = 0
            self._publish()
            return self.behind
        return True

    def _next_job(self) -> Generator[None, None, None] | None:
        target = self.target
        if target < 1:
            return None
        for store in self._stores:
            if store.outgrown:
                return release_tiers(store.outgrown)
        last = min(self._stores, key=lambda store: store.version)
        if last.view is None:
            # CREATED -> RESTORING; stores restore one after another, each at its own call.
            self._enter(ReplicaState.RESTORING)
            return last.restore(target)
        if last.version < target:
            return last.advance(target)
        for store in self._stores:
            if store.over_budget:
                return store.shrink()
        if self._wants_prefetch:
            self._wants_prefetch = False
            return self._prefetch()
        return None

    def _prefetch(self) -> Generator[None, None, None]:
        for store in self._stores:
            yield from store.prefetch()

    def _publish(self) -> None:
        """Show the version of the stores once all are at the same one, never an older one than is visible."""
        self.error = None
        version = self._stores[0].version
        stores = {store.place.name: store.view for store in self._stores if store.view is not None}
        shown = self.view
        if version < (1 if shown is None else shown.version) or any(store.version != version for store in self._stores):
            return
        self._marks = self._marks.union(*(store.marks for store in self._stores))
        if shown is not None and shown.version == version and shown.marks == self._marks and shown.stores == stores:
            return
        record = self._around.history.record(version)
        self.view = task_view(self.task, self.lineage, version=version, stores=stores, record=record, marks=self._marks)
        # RESTORING -> RUNNING, measured against the end, not `target`: a ceiling does not make a replica caught up.
        if self.restoring and self._newest - version <= self._acceptable_recovery_lag:
            self._enter(ReplicaState.RUNNING)
        self._published()

    def _rebuild(self) -> None:
        """Start again from the checkpoint; the visible version stays, marked, until a new one is published."""
        self._marks = self._marks.union(*(store.marks for store in self._stores))
        self._job = None
        self._stores = self._new_stores()
        self._enter(ReplicaState.RESTORING)  # RUNNING -> RESTORING: the base is opened again
        if self.view is not None:
            shown = self.view
            record = self._around.history.record(shown.version)
            self.view = task_view(
                self.task, self.lineage, version=shown.version, stores=shown.stores, record=record, marks=self._marks
            )

    def _new_stores(self) -> list[StoreReplica]:
        return [StoreReplica(place, self._around) for place in self._places]

    def _again(self) -> bool:
        self._job = None
        return True

    def _failed(self, error: UnderstudyError) -> bool:
        if self.error is None or self.error.args != error.args:
            log.error("%s", error, extra={"action": "replica-failed", "task": str(self.task)})
        self.error = error
        self._job = None
        return False

    def _enter(self, state: ReplicaState) -> None:
        self._state = state
        self._stamp()

    def _stamp(self) -> None:
        """Encode the origin that answers carry; a worker and a change of role may do so at once, hence the lock."""
        with self._stamping:
            host = self._host
            fields: dict[str, object] = {"host": host.host, "port": host.port, "role": self.role, "state": self._state}
            if self._node_id is not None:
                fields["node_id"] = self._node_id
            self.served_by_json = orjson.dumps(fields)
