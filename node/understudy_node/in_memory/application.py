"""One application of the service that `understudy.testing` starts: a node over a checkpoint in memory, and what a test
does to it.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from prometheus_client.core import Metric

from understudy_node.http.app import create_app
from understudy_node.in_memory.checkpoint import Change, MemoryCheckpoint, StoreSchema
from understudy_node.in_memory.declared import DeclaredStore, OwnSettings, alias_lines, blaming_results
from understudy_node.in_memory.moved_clock import MovedClock
from understudy_node.in_memory.serving import CLOSED
from understudy_node.in_memory.troubles import Trouble, TroubledApp
from understudy_node.node import Node
from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.fleet.reporting import ApplicationReport, State
from understudy_shared.http.problems import Problem, ProblemType
from understudy_shared.http.status import Status
from understudy_shared.server.connection_guard import ConnectionGuard

LOOPBACK = "127.0.0.1"

REFRESH_MS = 50
"""Longest time in ms between two polls: while nothing is committed, time lag is at most that."""

VISIBLE_WITHIN_S = 30.0
"""Longest time in seconds until a commit must be visible; it takes milliseconds."""

_LOOK_S = 0.0005

End = Callable[[], None]
"""A function that ends a trouble; called again it does nothing."""


class MemoryApplication:
    """The application. Any thread may call it, once its `app` runs."""

    def __init__(
        self,
        application_id: str,
        stores: Mapping[str, DeclaredStore],
        rows: Mapping[str, Sequence[Change]],
        *,
        partitions: int,
        guard: ConnectionGuard,
    ) -> None:
        """Write version 1, and make the node that serves it.

        `rows` are what version 1 has. Raises UnderstudyError for what does not fit.
        """
        self._lock = threading.RLock()
        self._numbers = {name: number for number, name in enumerate(stores)}
        self._held: set[object] = set()
        self._away: set[object] = set()
        """The troubles that keep replicas at a version, and those of the storage."""
        self._is_closed = False
        self._moved_ms = 0.0
        self._clock = MovedClock()
        self._began_us = self._clock.wall_us()
        schemas = [StoreSchema(key, value) for key, value, _ in stores.values()]
        self._checkpoint = MemoryCheckpoint(schemas, name=application_id, partitions=partitions, clock=self._clock)
        self._checkpoint.commit(self._by_number(rows))
        self._folder = tempfile.TemporaryDirectory(prefix="understudy-")
        try:
            aliases = Path(self._folder.name) / "aliases.toml"
            aliases.write_text("\n".join(alias_lines(stores)), encoding="utf-8")
            self._settings = OwnSettings(
                checkpoint=self._checkpoint.files.url,
                application_id=application_id,
                data_dir=Path(self._folder.name) / "node",
                aliases=aliases,
                lag_refresh_ms=REFRESH_MS,
                workers=2,
                memory_limit_bytes=0,  # the limit is that of the process of the test
            )
            with blaming_results(list(stores)):
                self._node = Node(self._settings, self._checkpoint.files, host=HostInfo(LOOPBACK, 0), clock=self._clock)
            self.app = TroubledApp(create_app(self._node, guard=guard), self.has_store)
        except BaseException:
            self._folder.cleanup()
            raise

    def stop(self) -> None:
        """Take no more commits and troubles: the service ends, and the node with it."""
        with self._lock:
            self._is_closed = True

    def forget(self) -> None:
        """Remove what the node kept. The checkpoint is gone with it."""
        self._folder.cleanup()

    # ---- what a fleet asks of its applications

    def has_store(self, store: str) -> bool:
        return store in self._numbers

    @property
    def is_ready(self) -> bool:
        return True

    @property
    def was_ready(self) -> bool:
        return True

    @property
    def dead(self) -> str | None:
        return self._node.dead

    def status(self) -> Status:
        return Status(tuple(self._node.not_ready()), self._node.causes())

    def metrics(self) -> Iterable[Metric]:
        return ()

    def report(self) -> ApplicationReport:
        """Return what the list of applications shows."""
        return ApplicationReport(
            application_id=self._settings.application_id,
            checkpoint=self._settings.checkpoint,
            state=State.SERVING,
            since_us=self._began_us,
            source="command",
            stores=tuple(sorted(self._numbers)),
            end_offset_position=self.version,
        )

    # ---- what the query does

    @property
    def version(self) -> int:
        """The version that was committed last."""
        return self._checkpoint.committed

    def wall_us(self) -> int:
        """Return the time of the service's clock."""
        return self._clock.wall_us()

    def commit(self, changes: Mapping[str, Sequence[Change]]) -> int:
        """Commit the next version, wait until it is visible unless replicas lag, and return it."""
        by_number = self._by_number(changes)
        with self._lock:
            self._require_open()
            version = self._checkpoint.commit(by_number)
            self.wait()
            return version

    # ---- what goes wrong

    def lag(self, age_ms: float | None, versions: int) -> End:
        """Keep replicas at the version that they show: the query commits `versions` more, and `age_ms` passes.

        Without an age the storage fails, until lag is unknown.
        """
        mark = object()
        with self._lock:
            self._require_open()
            if age_ms is None:
                self._away.add(mark)
                self._checkpoint.files.is_away = True
                self._move(self._settings.end_expiry_ms + 1)
            else:
                if not self._held:
                    self._node.hold_at(self.version)
                self._held.add(mark)
                for _ in range(versions):
                    self.commit({})
                self._move(age_ms)
            self.wait()
        return lambda: self._end_lag(mark)

    def _end_lag(self, mark: object) -> None:
        with self._lock:
            self._held.discard(mark)
            self._away.discard(mark)
            self._checkpoint.files.is_away = bool(self._away)
            if not self._held:
                self._node.hold_at(None)
            self.wait()

    def _move(self, by_ms: float) -> None:
        self._clock.move(by_ms)
        self._moved_ms = self._clock.monotonic_ms()

    def trouble(
        self, *, problem: str | None, detail: str, delay_s: float, is_cut: bool, store: str | None, times: int | None
    ) -> End:
        """Let requests of the API meet a problem, named by its type, a delay, or a connection that is cut."""
        answer = None if problem is None else _problem(problem, detail)
        trouble = Trouble(delay_s=delay_s, problem=answer, is_cut=is_cut, store=store, times=times)
        self.app.begin(trouble)
        return lambda: self.app.end(trouble)

    def _require_open(self) -> None:
        if self._is_closed:
            raise UnderstudyError(CLOSED, fix="Make another one")

    # ---- waiting for the node

    def wait(self) -> None:
        """Wait until the node shows what it can: the last commit, or while it is held that there is one."""
        limit_s = time.monotonic() + VISIBLE_WITHIN_S
        self._node.wake()
        while not (self._is_closed or self._away or (self._knows_end() and (self._held or self._shows_end()))):
            if self._node.dead is not None or time.monotonic() > limit_s:
                why = self._node.dead or "; ".join(self._node.not_ready()) or "the node is behind"
                raise UnderstudyError(
                    f"version {self.version} does not become visible: {why}", fix="A bug: please report it with the log"
                )
            time.sleep(_LOOK_S)

    def _knows_end(self) -> bool:
        """Whether the node has seen the last commit, and has looked since the clock was moved."""
        end = self._node.end
        return end.version == self.version and end.confirmed_ms is not None and end.confirmed_ms >= self._moved_ms

    def _shows_end(self) -> bool:
        generation = self._node.generation
        if generation is None:
            return False
        views = [replica.view for replica in generation.replicas]
        return all(view is not None and view.version == self.version for view in views)

    def _by_number(self, changes: Mapping[str, Sequence[Change]]) -> dict[int, Sequence[Change]]:
        return {self._numbers[name]: each for name, each in changes.items()}


def _problem(slug: str, detail: str) -> Problem:
    """Return a problem by its type, which may be repeated at once. Raises SettingsError for an unknown type."""
    kind = next((each for each in ProblemType if each.slug == slug), None)
    if kind is None:
        known = ", ".join(sorted(each.slug for each in ProblemType))
        raise SettingsError(f"there is no problem {slug!r}", where="problem", fix=f"Give one of: {known}")
    return Problem(kind, detail or f"the test asked for it: {kind.title}", where="understudy.testing", retry_after_s=0)
