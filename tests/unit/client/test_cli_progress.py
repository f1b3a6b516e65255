"""The restore display: what it makes of a service's replicas, and that it ends when the service is ready or stops."""

from __future__ import annotations

import io
import logging
import threading
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from understudy.services.running import (
    BarDisplay,
    LogDisplay,
    RunningNode,
    RunningService,
    ServiceProgress,
    TaskProgress,
    observe,
    watch,
)
from understudy_node.node import Node
from understudy_router.router import Router
from understudy_shared.base.words import ApplicationId, HostInfo, ReplicaState, TaskId


def a_node_is_what_the_display_reads(node: Node) -> RunningNode:
    """Checked by the type checker: the service fits the client's Protocol."""
    return node


def a_router_is_what_the_display_reads(router: Router) -> RunningService:
    """Checked by the type checker as well."""
    return router


@dataclass
class Shown:
    """A version on show."""

    version: int


@dataclass
class Task:
    """A replica that a test moves by hand."""

    task: TaskId
    state: ReplicaState = ReplicaState.CREATED
    view: Shown | None = None
    target: int = 10


@dataclass
class Replicas:
    """All replicas."""

    replicas: list[Task]


HERE = HostInfo("127.0.0.1", 1)


@dataclass
class Service:
    """A service that is ready when all its replicas show something. Each look takes the next of `steps` first."""

    generation: Replicas | None = None
    host: HostInfo = HERE
    steps: list[tuple[int, ReplicaState, int | None]] = field(default_factory=list)

    def not_ready(self) -> list[str]:
        """Take the next step, then name the tasks that show nothing yet."""
        if self.generation is None:
            self.generation = Replicas([Task(TaskId(ApplicationId("app"), 0, part)) for part in range(2)])
            return ["no batch yet"]
        if self.steps:
            part, state, version = self.steps.pop(0)
            task = self.generation.replicas[part]
            task.state, task.view = state, None if version is None else Shown(version)
        return [str(task.task) for task in self.generation.replicas if task.view is None]


def restoring_service() -> Service:
    """Two tasks, one after the other."""
    return Service(
        steps=[
            (0, ReplicaState.RESTORING, None),
            (0, ReplicaState.RESTORING, 4),
            (1, ReplicaState.RESTORING, None),
            (0, ReplicaState.RUNNING, 10),
            (1, ReplicaState.RUNNING, 9),
        ]
    )


def test_a_standing_counts_what_can_be_asked_and_the_furthest_behind() -> None:
    standing = ServiceProgress({
        "a": TaskProgress(ReplicaState.RUNNING, 9, 10),
        "b": TaskProgress(ReplicaState.RESTORING, 4, 10),
        "c": TaskProgress(ReplicaState.CREATED, None, 3),
    })  # fmt: skip
    assert (standing.restored, standing.versions_behind) == (2, 6)
    assert (ServiceProgress().restored, ServiceProgress().versions_behind) == (0, 0)


def test_watching_ends_when_the_service_is_ready_and_logs_each_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="understudy.services.running")
    assert watch(restoring_service(), LogDisplay(), threading.Event())
    lines = [(record.getMessage(), vars(record).get("version")) for record in caplog.records]
    assert lines == [
        ("app/0_0 is CREATED", None),
        ("app/0_1 is CREATED", None),
        ("app/0_0 is RESTORING", None),
        ("app/0_0 is RESTORING", 4),
        ("app/0_1 is RESTORING", None),
        ("app/0_0 is RUNNING", 10),
        ("app/0_1 is RUNNING", 9),
    ]


def test_the_bar_shows_tasks_and_versions_and_is_gone_at_the_end() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with BarDisplay(console) as display:
        display.show(ServiceProgress(reasons=("[no] batch\nyet",)))
        display.refresh()
        display.show(observe(restoring_service()))
        display.show(ServiceProgress({"a": TaskProgress(ReplicaState.RUNNING, 9, 10)}, ("b",)))
        display.refresh()
    assert "waiting: [no] batch\\u000ayet" in screen.getvalue()
    assert "1/1 tasks, 1 versions behind" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")
