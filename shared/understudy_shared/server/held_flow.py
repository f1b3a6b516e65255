"""Flow control of a connection that may hold bytes of later requests."""

from __future__ import annotations

from uvicorn.protocols.http.flow_control import FlowControl


class HeldFlow(FlowControl):
    """Keeps reading paused while the connection holds bytes that it may not parse yet, even if uvicorn resumes it."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()
