"""Whether a node hears and is heard, and saying so once for each change."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class BusState:
    """Listening and speaking fail apart from each other; `degraded` is why either does, None when both work."""

    def __init__(self) -> None:
        self._deaf: str | None = "not connected yet"
        self._mute: str | None = None

    @property
    def degraded(self) -> str | None:
        why = self._mute or self._deaf  # what a call met says more than that nothing is heard
        return None if why is None else f"the bus is away: {why}"

    def hears(self, deaf: str | None) -> None:
        """Messages arrive (None), or why not."""
        was, self._deaf = self.degraded, deaf
        self._note(was)

    def speaks(self, mute: str | None) -> None:
        """What was said arrived (None), or why not."""
        was, self._mute = self.degraded, mute
        self._note(was)

    def _note(self, was: str | None) -> None:
        now = self.degraded
        if was is None and now is not None:
            log.warning("%s; lookups go on", now, extra={"action": "bus-lost"})
        elif was is not None and now is None:
            log.info("the bus is there", extra={"action": "bus-back"})
