"""Records spans with OpenTelemetry's SDK, and sends them by OTLP over HTTP from a thread of its own.

Only this module imports OpenTelemetry. The queue is bounded (`OTEL_BSP_MAX_QUEUE_SIZE`): spans that do not fit are
dropped, and no request ever waits for a collector.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Sequence
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import DEFAULT_OFF
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan

from understudy_shared.base.extras import PACKAGE
from understudy_shared.base.throttles import LogThrottle
from understudy_shared.base.words import HostInfo
from understudy_shared.telemetry.spans import Attributes, Kind, Span, Trace

log = logging.getLogger(__name__)

SAMPLER = "OTEL_TRACES_SAMPLER"
CLOSE_LIMIT_S = 5
"""Seconds for which a service waits at its end for a collector that does not answer."""

_KINDS = {Kind.SERVER: SpanKind.SERVER, Kind.CLIENT: SpanKind.CLIENT}
_NS_PER_S = 1_000_000_000


class ExportedSpan:
    __slots__ = ("_is_over", "_span", "trace")

    def __init__(self, span: OtelSpan) -> None:
        context = span.get_span_context()
        self.trace = Trace(f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags.sampled)
        self._span = span
        self._is_over = False

    def note(self, attributes: Attributes) -> None:
        if not self._is_over:
            self._span.set_attributes(attributes)

    def end(self, *, error: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class ExportedSpans:
    """The spans of one service at `host`. `records_all`: whether requests without a trace may be sampled."""

    def __init__(
        self, provider: TracerProvider, exporter: LoggedExporter, host: HostInfo, *, records_all: bool
    ) -> None:
        self._provider = provider
        self._exporter = exporter
        self._tracer: Tracer = provider.get_tracer("understudy", version(PACKAGE))
        self._host: Attributes = {"server.address": host.host, "server.port": host.port}
        self._records_all = records_all

    def begin(
        self, method: str, route: str, kind: Kind, parent: Trace | None, attributes: Attributes, *, ago_s: float = 0.0
    ) -> Span | None:
        if parent is None and not self._records_all:
            return None
        place = {"http.route": route, **self._host} if kind is Kind.SERVER else {"url.template": route}
        span = self._tracer.start_span(
            f"{method} {route}",
            _context_of(parent),
            _KINDS[kind],
            {"http.request.method": method, **place, **attributes},
            start_time=time.time_ns() - round(ago_s * _NS_PER_S),
        )
        return ExportedSpan(span) if span.is_recording() else None

    def close(self) -> None:
        closing = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        closing.start()
        closing.join(CLOSE_LIMIT_S)
        if closing.is_alive():
            self._exporter.shutdown()


class LoggedExporter(SpanExporter):
    """An exporter that logs once a minute that spans do not arrive. The library would log each attempt."""

    def __init__(self, inner: OTLPSpanExporter) -> None:
        self._inner = inner
        self._throttle = LogThrottle()
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            left_out = self._throttle.admit("lost", time.monotonic() * 1000)
            if left_out is not None:
                fields = {"action": "spans-lost", "spans": len(spans), **left_out}
                log.warning("the collector does not take spans", extra=fields)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()  # type: ignore[no-untyped-call]  # theirs

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def exported_spans(service: str, host: HostInfo) -> ExportedSpans:
    """Open the recorder of a service's spans, as the environment configures it. Unless `OTEL_TRACES_SAMPLER` is set,
    only requests that their clients sample are recorded: there are many lookups, and a span costs more than one. Raises
    ValueError for a wrong variable.
    """
    said = {"service.name": service, "service.version": version(PACKAGE), "service.instance.id": str(uuid.uuid4())}
    exporter = LoggedExporter(OTLPSpanExporter())
    sampler = None if os.environ.get(SAMPLER) else DEFAULT_OFF
    provider = TracerProvider(
        sampler=sampler,
        resource=Resource.create(said).merge(
            OTELResourceDetector().detect()
        ),  # The operator's attributes come last, so that they override ours.
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return ExportedSpans(provider, exporter, host, records_all=sampler is None)


def _context_of(parent: Trace | None) -> Context:
    if parent is None:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if parent.is_sampled else TraceFlags.DEFAULT)
    context = SpanContext(int(parent.trace_id, 16), int(parent.parent_id, 16), is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(context), Context())
