"""Values that contradict each other are refused by the chart, with the reason: skipped where there is no Helm."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.support.services.helm_chart import needs_helm
from tools.chart import call_of, helm

GUARDED = {"existingSecret": "s", "insecureBind": False}
BOTH = {"nodes": {"existingSecret": "s"}, "routers": {"existingSecret": "s"}}
ORDERS = {"id": "orders", "checkpoint": "s3://b/orders"}


def fleet(*applications: dict[str, str], **more: object) -> dict[str, object]:
    """Values of a fleet, and others."""
    return {"applications": list(applications or [ORDERS]), "spark": {"kind": "none"}, **more}


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"redis": {"url": "redis://host:6379"}}, "exactly one Redis"),
    ({"valkey": {"enabled": False}}, "exactly one Redis"),
    ({"checkpoint": {"url": "s3://b/c"}}, "writes to the shared volume"),
    (
        {"checkpoint": {"url": "s3://b/c", "volume": {"existingClaim": "c"}}, "spark": {"kind": "none"}},
        "in one place",
    ),
    ({"checkpoint": {"existingSecret": "s"}}, "without a URL"),
    ({"routers": {"autoscaling": {"kind": "keda"}}}, "asks Prometheus"),
    ({"routers": {"autoscaling": {"minReplicas": 7}}}, "above maxReplicas"),
    ({"spark": {"kind": "sparkApplication"}}, "needs spark.application.image"),
    ({"spark": {"kind": "sparkApplication", "application": {"image": "i"}}}, "what to run"),
    ({"spark": {"deployment": {"image": "i"}}}, "needs spark.deployment.command"),
    ({"nodes": {"replica": 3}}, "replica"),
    ({"redis": {"url": "redis://:secret@host:6379"}, "valkey": {"enabled": False}}, "redis"),
    (
        {"redis": {"url": "redis://host:6379", "tls": {"existingSecret": "s"}}, "valkey": {"enabled": False}},
        "a Redis that speaks TLS",
    ),
    ({"redis": {"tls": {"existingSecret": "s"}}}, "Valkey for trials speaks none"),
    (
        {
            "auth": GUARDED,
            "tls": {"externalTermination": True},
            "monitoring": {"serviceMonitor": {"enabled": True}},
        },
        "nobody reads /metrics without a key",
    ),
    ({"auth": {"existingSecret": "s"}}, "set auth.insecureBind=false with it"),
    ({"auth": {"insecureBind": False}}, "or auth.insecureBind=true where the network keeps strangers out"),
    ({"auth": GUARDED}, "keys would cross the network in plain"),
    ({"auth": GUARDED, "tls": {"existingSecret": "s"}}, "keys would cross the network in plain"),
    ({"auth": GUARDED, "tls": {"peers": BOTH}}, "keys would cross the network in plain"),
    ({"tls": {"peers": {"nodes": {"existingSecret": "s"}}}}, "give both"),
    ({"tls": {"peers": {"routers": {"existingSecret": "s"}}}}, "give both"),
    ({"tls": {"peers": BOTH}, "monitoring": {"serviceMonitor": {"enabled": True}}}, "whom they do not know"),
    (fleet(ORDERS, {"id": "orders", "checkpoint": "/c"}), "two applications have the id orders"),
    (fleet(ORDERS, {"id": "x", "checkpoint": "s3://b/orders/"}), "orders and x have one checkpoint"),
    (fleet({"id": "x", "checkpoint": "/checkpoint/x"}), "give checkpoint.volume.existingClaim"),
    (fleet(checkpointRoots=["/checkpoint"]), "the root /checkpoint is on the shared volume"),
    (fleet(applicationsConfigMap="own"), "applications or applicationsConfigMap"),
    (fleet(checkpoint={"url": "s3://b/c"}), "checkpoint.url: these are of one query"),
    (
        fleet(applicationId="a", checkpoint={"path": "a"}, nodes={"aliases": "[op0]"}),
        "applicationId, checkpoint.path, nodes.aliases: these are of one query",
    ),
    ({"applications": [ORDERS]}, "set spark.kind=none"),
    (fleet({"id": "x", "checkpoint": "/c"}, checkpoint={"existingSecret": "s"}), "without a URL"),
]


@cache
def refusals() -> list[dict[str, Any]]:
    """What Helm says of each of them, all said by one process."""
    needs_helm()
    calls = [call_of("render", values) for values, _ in REFUSED]
    return helm(calls)


@pytest.mark.parametrize(
    "number", range(len(REFUSED)), ids=[f"{number}-{why}" for number, (_, why) in enumerate(REFUSED)]
)
def test_values_that_cannot_be_meant_are_refused_with_the_reason(number: int) -> None:
    assert REFUSED[number][1] in refusals()[number]["error"]
