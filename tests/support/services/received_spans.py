"""What a collector gets by OTLP over HTTP: a real server's requests, decoded as the protocol says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tests.support.services.canned_server import Canned, CannedServer

ACCEPTS = Canned(b"", content_type="application/x-protobuf")
SERVER, CLIENT = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span. `parent_id` is "" for a root."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    is_error: bool
    took_ns: int


def spans_of(collector: CannedServer) -> list[ReceivedSpan]:
    """All that arrived so far."""
    return [span for target, body in list(collector.requests) for span in _decoded(target, body)]


def _decoded(target: str, body: bytes) -> Iterable[ReceivedSpan]:
    assert target == "POST /v1/traces"
    for of_service in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _values(of_service.resource.attributes)["service.name"]
        for scope in of_service.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    service,
                    span.name,
                    span.kind,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    _values(span.attributes),
                    span.status.code == Status.STATUS_CODE_ERROR,
                    span.end_time_unix_nano - span.start_time_unix_nano,
                )


def _values(attributes: Iterable[Any]) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
