"""The calls of the document about a service itself: probes, metrics, and the document (pure)."""

from __future__ import annotations

from understudy_shared.http.openapi.calls import DOCUMENTS, OPERATIONS, Answer, Call
from understudy_shared.http.openapi.json_schema import (
    FLAG,
    TEXT,
    TEXT_OR_NULL,
    TIME_OR_UNKNOWN,
    Json,
    list_of,
    record,
    ref,
    said,
)

_ANY: Json = {"type": "object", "additionalProperties": True}
PROMETHEUS, HTML = "text/plain", "text/html"

_EXPOSITION = 'understudy_build_info{version="0.1.0"} 1.0\n'


def service_schemas() -> Json:
    """By name."""
    return {
        "Document": record(
            "An OpenAPI document.",
            {"openapi": TEXT, "info": _ANY, "paths": _ANY},
            {"tags": list_of(_ANY), "components": _ANY, "security": list_of(_ANY)},
        ),
        "Alive": record(
            "Whether the process can go on.",
            {"alive": FLAG, "reason": said(TEXT_OR_NULL, "Why it cannot; null while it can")},
        ),
        "Ready": record(
            "Whether a load balancer should send readers here.",
            {
                "ready": FLAG,
                "reasons": said(list_of(TEXT), "Why not; empty when it is ready"),
                "degraded": said(TEXT_OR_NULL, "What does not work although lookups do"),
            },
        ),
        "Drain": {
            "type": "object",
            "description": "Whether to move the node's tasks to others. Without the member: true.",
            "additionalProperties": False,
            "properties": {"drain": {"type": "boolean", "default": True}},
        },
        "Draining": record("What the node will do.", {"node_id": TEXT, "draining": FLAG}),
        "Event": record("What happened.", {"at": TIME_OR_UNKNOWN, "event": TEXT, "detail": TEXT}),
    }


def service_calls() -> tuple[Call, ...]:
    ready = {"ready": True, "reasons": [], "degraded": None}
    unready = {"ready": False, "reasons": ["no assignment is known yet"], "degraded": None}
    return (
        Call(
            "get",
            "/livez",
            "is_alive",
            OPERATIONS,
            "Whether the process can go on; `/healthz` is the same",
            (
                Answer(200, "The event loop turns, and no background task died", ref("Alive"), _alive(None)),
                Answer(503, "A background task died: restart the process", ref("Alive"), _alive("watch: KeyError")),
            ),
            'curl "$url/livez"',
            is_open=True,
        ),
        Call(
            "get",
            "/readyz",
            "is_ready",
            OPERATIONS,
            "Whether to send readers here",
            (
                Answer(200, "It can answer. Lag does not matter here", ref("Ready"), ready),
                Answer(503, "It cannot answer yet, or is about to stop", ref("Ready"), unready),
            ),
            'curl "$url/readyz"',
            is_open=True,
        ),
        Call(
            "get",
            "/metrics",
            "metrics",
            OPERATIONS,
            "Metrics for Prometheus",
            (Answer(200, "The text exposition format", TEXT, _EXPOSITION, PROMETHEUS),),
            'curl "$url/metrics"',
        ),
        Call(
            "get",
            "/openapi.json",
            "openapi",
            DOCUMENTS,
            "This document",
            (Answer(200, "OpenAPI 3.1", ref("Document")),),
            'curl "$url/openapi.json"',
        ),
        Call(
            "get",
            "/docs",
            "docs",
            DOCUMENTS,
            "This document as a page",
            (Answer(200, "HTML without scripts; nothing is loaded from elsewhere", TEXT, None, HTML),),
            'curl "$url/docs"',
        ),
    )


def _alive(reason: str | None) -> Json:
    return {"alive": reason is None, "reason": reason}
