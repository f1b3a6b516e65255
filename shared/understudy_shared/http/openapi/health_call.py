"""The call for the health of a service, and what it answers (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from understudy_shared.http.health import State
from understudy_shared.http.openapi import examples
from understudy_shared.http.openapi.calls import OPERATIONS, Answer, Call
from understudy_shared.http.openapi.json_schema import (
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_UNKNOWN,
    Json,
    exactly,
    list_of,
    one_of,
    record,
    ref,
    said,
)

SCHEMA: Json = {"schema": said(exactly(1), "Grows when a member changes its meaning")}
HEALTH: Json = {
    "state": said(one_of(state.word for state in State), "The worst of the indicators"),
    "since": said(TIME_OR_UNKNOWN, "Of the indicator in the headline"),
    "headline": said(TEXT, "`all well`, or what is wrong and what to do"),
    "runbook": said(TEXT_OR_NULL, "Of the headline, as in an indicator"),
    "indicators": list_of(ref("Indicator")),
}


def health_schemas(names: Iterable[str], whose: Json) -> Json:
    """By name. `names` are the service's indicators, `whose` the members that say whose view it is."""
    return {
        "Indicator": record(
            "One thing that can be wrong. A symptom is empty while it is not.",
            {
                "name": one_of(names),
                "state": one_of(state.word for state in State),
                "since": said(TIME_OR_UNKNOWN, "When it was first seen in this state"),
                "symptom": TEXT,
                "impact": TEXT,
                "cause": TEXT,
                "action": TEXT,
                "runbook": said(TEXT_OR_NULL, "A path in the repository; also `/admin/runbooks/{name}` of a router"),
                "affected": list_of(TEXT),
            },
        ),
        "HealthReport": record(
            "What is wrong, as this service knows it.",
            {**SCHEMA, "generated_at": TIME, "application_id": TEXT, **whose, **HEALTH},
        ),
    }


def health_call(whose: Json, indicator: Json) -> Call:
    """The call, with an indicator for its example."""
    given = {"impact": "", "cause": "", "affected": []} | indicator
    name = str(indicator["name"])
    report: Json = {
        "schema": 1,
        "generated_at": examples.TIME,
        "application_id": examples.APPLICATION,
        **whose,
        "state": "attention",
        "since": examples.TIME,
        "headline": f"{indicator['symptom']}. Do: {indicator['action']}",
        "runbook": f"docs/runbooks/{name}.md",
        "indicators": [
            {**given, "state": "attention", "since": examples.TIME, "runbook": f"docs/runbooks/{name}.md"},
        ],
    }
    return Call(
        "get",
        "/admin/v1/health",
        "health",
        OPERATIONS,
        "What is wrong, who is hurt, and what to do",
        (Answer(200, "Every indicator; the worst counts", ref("HealthReport"), report),),
        'curl "$url/admin/v1/health"',
    )
