"""Whether a node can read and write the bus. Each change is logged once."""

from __future__ import annotations

import logging

from understudy_node.degraded import BUS_AWAY
from understudy_shared.base.words import WRITES_REFUSED
from understudy_shared.bus.base import BusError, BusRefusedError

log = logging.getLogger(__name__)


class BusState:
    """The state of listening and of writing, which can fail independently; `causes` is empty while both work."""

    def __init__(self) -> None:
        self._subscribe_error: str | None = "not connected yet"
        self._publish_error: str | None = None
        self._is_refused = False

    @property
    def causes(self) -> dict[str, str]:
        """The reason why the bus does not work, at most one: a failed write explains more than a silence."""
        if self._publish_error is not None and self._is_refused:
            return {WRITES_REFUSED: f"the bus refuses writes: {self._publish_error}"}
        why = self._publish_error or self._subscribe_error
        return {} if why is None else {BUS_AWAY: f"the bus is away: {why}"}

    def subscribed(self, error: str | None) -> None:
        """Note that messages arrive (None), or why they do not."""
        was, self._subscribe_error = self.causes, error
        self._note(was)

    def published(self, error: BusError | None) -> None:
        """Note that writes succeed (None), or why they fail."""
        was, self._publish_error = self.causes, None if error is None else str(error)
        self._is_refused = isinstance(error, BusRefusedError)
        self._note(was)

    def _note(self, was: dict[str, str]) -> None:
        now = self.causes
        for cause in now.keys() - was.keys():
            log.warning("%s; lookups go on", now[cause], extra={"action": "bus-lost", "cause": cause})
        if was and not now:
            log.info("the bus is there", extra={"action": "bus-back"})
