"""The trace that a call is a part of: the active span of OpenTelemetry, if the program uses it."""

from __future__ import annotations

import sys


def traceparent() -> str | None:
    """Return the header of the active span; None without one. OpenTelemetry is asked only where it is loaded."""
    current, api = sys.modules.get("opentelemetry.context"), sys.modules.get("opentelemetry.trace")
    if current is None or api is None or not current.get_current():  # an empty context has no span
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
