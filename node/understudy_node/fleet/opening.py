"""The opening of one application, in a thread of its own: storage that hangs keeps this thread and nothing else.

It goes on until the checkpoint can be followed, with growing pauses, and says meanwhile what is in the way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from understudy_node.checkpoint.arrival import is_awaited, what_is_there
from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.node import Node
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.masking import masked_location
from understudy_shared.fleet.reporting import State

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.25
AWAITED_PAUSE_S = 2.0
"""Longest pause between looks for a checkpoint that a query that starts may still make."""

FAILED_PAUSE_S = 30.0
"""Longest pause before a checkpoint is tried again that cannot be opened as it is."""

HANGS_AFTER_MS = 10_000
"""Time after which storage without an answer counts as a failure."""


class Standing(NamedTuple):
    """The state of an application, and the reason in words if it is not served."""

    state: State
    reason: str | None = None


class Opening:
    """The attempts to open one application's checkpoint, until `close`."""

    def __init__(
        self,
        application_id: str,
        open_files: Callable[[], CheckpointFiles],
        build: Callable[[CheckpointFiles], Node],
        clock: Clock,
    ) -> None:
        """Take what reaches the storage, and what makes the node."""
        self._application_id = application_id
        self._open_files = open_files
        self._build = build
        self._clock = clock
        self._closing = threading.Event()
        self._standing = Standing(State.OPENING, "it is being opened")
        self._asks_since_ms: float | None = None
        """The time since which the storage is asked; None during a pause."""

    def start(self, give: Callable[[Node], bool]) -> None:
        """Begin. `give` gets the node, in the thread, and returns whether somebody takes it."""
        name = f"open {self._application_id}"[:60]
        threading.Thread(target=self._run, args=(give,), name=name, daemon=True).start()

    def close(self) -> None:
        """Try no further. A call to storage that hangs ends when the storage answers; what it opened is given up."""
        self._closing.set()

    @property
    def standing(self) -> Standing:
        """The state now."""
        since_ms = self._asks_since_ms
        if since_ms is not None and (waited_ms := self._clock.monotonic_ms() - since_ms) > HANGS_AFTER_MS:
            return Standing(
                State.FAILED, f"the storage of its checkpoint has not answered for {waited_ms / 1000:.0f} s"
            )
        return self._standing

    def _run(self, give: Callable[[Node], bool]) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closing.is_set():
            self._asks_since_ms = self._clock.monotonic_ms()
            node = self._tried()
            self._asks_since_ms = None
            if node is not None:
                if self._closing.is_set() or not give(node):
                    node.discard()
                return
            self._closing.wait(pause_s)
            longest_s = AWAITED_PAUSE_S if self._standing.state is State.WAITING else FAILED_PAUSE_S
            pause_s = min(pause_s * 2, longest_s)

    def _tried(self) -> Node | None:
        try:
            files = self._open_files()
            if not is_awaited(files):
                return self._build(files)
            self._stand(
                Standing(
                    State.WAITING, f"there is no checkpoint at {masked_location(files.url)}: {what_is_there(files)}"
                )
            )
        except UnderstudyError as error:
            self._stand(Standing(State.FAILED, str(error)))
        except Exception as error:
            log.exception("a checkpoint was not opened", extra={"action": "application-failed"})
            self._stand(Standing(State.FAILED, f"{type(error).__name__}: {error}"))
        return None

    def _stand(self, standing: Standing) -> None:
        if standing != self._standing:
            log.warning(
                "application %s is %s: %s", self._application_id, standing.state, standing.reason,
                extra={"action": "application-state", "application": self._application_id},
            )  # fmt: skip
        self._standing = standing
