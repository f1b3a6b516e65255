"""The progress of a service's restore: its reading, its display, and the thread that watches.

The service is known by the Protocols below, never by its package. On a terminal a bar, else a log line per change.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from understudy_shared.base.printable import printable
from understudy_shared.base.words import HostInfo, ReplicaState, TaskId

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1


class ShownVersion(Protocol):
    """The version of a task that readers see."""

    @property
    def version(self) -> int: ...


class RestoringReplica(Protocol):
    """A task's replica."""

    @property
    def task(self) -> TaskId: ...
    @property
    def state(self) -> ReplicaState: ...
    @property
    def view(self) -> ShownVersion | None: ...
    @property
    def target(self) -> int: ...


class ServedGeneration(Protocol):
    """The replicas of the served generation."""

    @property
    def replicas(self) -> Sequence[RestoringReplica]: ...


class RunningService(Protocol):
    """The interface that every started service shows of itself."""

    @property
    def host(self) -> HostInfo: ...
    def not_ready(self) -> list[str]: ...


@runtime_checkable
class RunningNode(RunningService, Protocol):
    """A service that restores."""

    @property
    def generation(self) -> ServedGeneration | None: ...


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """One task: `version` is None until it can be asked; `target` is the newest version there is."""

    state: ReplicaState
    version: int | None
    target: int

    @property
    def versions_behind(self) -> int:
        return max(0, self.target - (self.version or 0))


@dataclass(frozen=True, slots=True)
class ServiceProgress:
    """All tasks at one moment, and why the service is not ready; no reasons: it is."""

    tasks: Mapping[str, TaskProgress] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def restored(self) -> int:
        return sum(task.version is not None for task in self.tasks.values())

    @property
    def versions_behind(self) -> int:
        """The number of versions by which the slowest task is behind."""
        return max((task.versions_behind for task in self.tasks.values()), default=0)


def observe(service: RunningService) -> ServiceProgress:
    """Read the service once."""
    reasons = tuple(service.not_ready())  # first: a task that is restored after it makes the next look ready
    generation = service.generation if isinstance(service, RunningNode) else None
    tasks = {}
    for replica in generation.replicas if generation is not None else ():
        view = replica.view
        version = None if view is None else view.version
        tasks[str(replica.task)] = TaskProgress(replica.state, version, replica.target)
    return ServiceProgress(tasks, reasons)


def changed_tasks(before: ServiceProgress, after: ServiceProgress) -> list[tuple[str, TaskProgress]]:
    """List the tasks whose state has changed, or that can be asked now."""
    return [
        (name, task)
        for name, task in after.tasks.items()
        if (old := before.tasks.get(name)) is None
        or (old.state, old.version is None) != (task.state, task.version is None)
    ]


class Display(Protocol):
    """A display that shows the progress while it is open."""

    def __enter__(self) -> Display: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, progress: ServiceProgress) -> None: ...


class LogDisplay:
    """A log line for each change of a task's state, and for each new reason why there are no tasks yet."""

    def __init__(self) -> None:
        self._last = ServiceProgress()

    def __enter__(self) -> LogDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: it holds no terminal."""

    def show(self, progress: ServiceProgress) -> None:
        for name, task in changed_tasks(self._last, progress):
            log.info(
                "%s is %s",
                name,
                task.state,
                extra={"action": "task-state", "version": task.version, "versions_behind": task.versions_behind},
            )
        if progress.reasons and not progress.tasks and progress.reasons != self._last.reasons:
            log.info("waiting: %s", "; ".join(progress.reasons), extra={"action": "waiting"})
        self._last = progress


class BarDisplay:
    """A bar on the terminal, gone when it is closed."""

    def __init__(self, console: Console | None = None) -> None:
        from rich import console as rich_console  # noqa: PLC0415  # slow to import, and --help of a service has no bar
        from rich import progress as bars  # noqa: PLC0415

        self._progress = bars.Progress(
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=30),
            bars.TextColumn("{task.fields[figures]}", markup=False),
            bars.TimeElapsedColumn(),
            console=console or rich_console.Console(stderr=True),
            transient=True,
        )
        self._bar = self._progress.add_task("starting", total=None, figures="")

    def __enter__(self) -> BarDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, progress: ServiceProgress) -> None:
        total = len(progress.tasks)
        waiting = "; ".join(progress.reasons) if not total else ""
        figures = f"{progress.restored}/{total} tasks, {progress.versions_behind} versions behind" if total else ""
        self._progress.update(
            self._bar,
            description=f"waiting: {printable(waiting)}" if waiting else "restoring",
            total=total or None,
            completed=progress.restored,
            figures=figures,
        )

    def refresh(self) -> None:
        """Draw now; it draws by itself a few times a second."""
        self._progress.refresh()


def watch(service: RunningService, display: Display, stopping: threading.Event) -> bool:
    """Show the progress until the service is ready (True) or `stopping` is set (False)."""
    with display:
        while True:
            progress = observe(service)
            display.show(progress)
            if not progress.reasons:
                return True
            if stopping.wait(LOOK_EVERY_S):
                return False
