"""Traces go from a reader through router and node into logs and to a collector, and nothing of them is sent unasked."""

from __future__ import annotations

import http.client
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.fake_cluster import STORE
from tests.support.cluster.fake_cluster import cluster as fake_cluster
from tests.support.cluster.fake_node import found, problem
from tests.support.cluster.in_process import LIMIT_S, Cluster, ClusterRouter, cluster
from tests.support.services.canned_server import Canned, CannedServer, canned_server
from tests.support.services.received_spans import ACCEPTS, CLIENT, SERVER, ReceivedSpan, spans_of
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy.calls.http_client import RemoteServer
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.words import HostInfo
from understudy_shared.http.problems import ProblemType
from understudy_shared.telemetry.span_export import ENDPOINTS, open_spans
from understudy_shared.telemetry.spans import Kind, Spans, parse_traceparent

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KEY = f"/v1/stores/op0/keys/{WORDS[0]}"


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRouter]:
    folder = tmp_path_factory.mktemp("traces")
    checkpoint = HandmadeCheckpoint(folder / "checkpoint").create().add(1)
    with redis_server() as redis, cluster(checkpoint.path, folder, redis.url, nodes=1) as known:
        known.wait_to_rest(copies=1, version=1)
        yield known.router


def ask(router: ClusterRouter, method: str, target: str, headers: dict[str, str], body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=LIMIT_S)
    try:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def lines_of_reads(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, dict[str, Any]]]:
    """Service, outcome and fields of each line about a lines_of_reads read."""
    return [
        (record.name.partition(".")[0], record.outcome, vars(record))  # type: ignore[attr-defined]
        for record in list(caplog.records)
        if getattr(record, "trace_id", None) == TRACE_ID and record.action == "read"  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize(
    ("target", "more", "outcome"),
    [
        (KEY, {}, "found"),
        (KEY, {"content-length": "0"}, "found"),
        ("/v1/stores/op0/keys/nowhere", {}, "absent"),
        (f"{KEY}?max_staleness_ms=0&max_lag=0", {"content-length": "0"}, None),
    ],
    ids=["directly", "by ASGI", "absent", "under a bound"],
)
def test_a_lookup_with_a_trace_has_a_line_with_its_ids_at_the_router_and_at_the_node(
    router: ClusterRouter, caplog: pytest.LogCaptureFixture, target: str, more: dict[str, str], outcome: str | None
) -> None:
    caplog.set_level(logging.DEBUG)
    assert ask(router, "GET", target, {"traceparent": SAMPLED, **more}) in {200, 404, 503}
    wait_until(
        lambda: {service for service, *_ in lines_of_reads(caplog)} >= {"understudy_router", "understudy_node"},
        what="both",
    )
    for _, said, fields in lines_of_reads(caplog):
        assert said == outcome or outcome is None
        assert fields["parent_id"] == SPAN_ID
        assert WORDS[0] not in json.dumps({name: str(value) for name, value in fields.items()})


async def test_a_read_that_needs_another_node_says_so_once_a_minute_with_the_readers_trace_and_no_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    refuses = problem(ProblemType.STORE_ERROR)
    async with fake_cluster(lambda *_: refuses, lambda *_: found("b")) as known:
        for _ in range(5):
            assert (await known.http.get(f"{STORE}/keys/secret", headers={"traceparent": SAMPLED})).status_code == 200
        lines = [record for record in caplog.records if getattr(record, "action", "") == "read-fallback"]
        (line,) = lines
        fields = vars(line)
        assert (fields["node"], fields["reason"], fields["store"]) == ("a", "store-error", "words")
        assert (fields["trace_id"], fields["parent_id"]) == (TRACE_ID, SPAN_ID)
        assert "secret" not in line.getMessage() + str(fields)
        assert known.router.forwarder.context.fallbacks["store-error"] >= 1
        assert [trace.trace.trace_id for hop in known.nodes[1].hops for trace in hop.traces] == [TRACE_ID] * 5


SAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01"
LOOKUP = "/v1/stores/op0/lookup"
ROUTER, NODE = "understudy-router", "understudy-node"


def export_to(monkeypatch: pytest.MonkeyPatch, collector: CannedServer) -> None:
    monkeypatch.setenv(ENDPOINTS[1], collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


@dataclass(frozen=True, slots=True)
class Traced:
    """A cluster whose spans go to `collector`."""

    cluster: Cluster
    collector: CannedServer

    def trace(self, trace_id: str, count: int) -> list[ReceivedSpan]:
        """The spans of a trace, once there are so many."""
        self.wait_for(trace_id, count)
        return [span for span in spans_of(self.collector) if span.trace_id == trace_id]

    def wait_for(self, trace_id: str, count: int) -> None:
        wait_until(
            lambda: sum(span.trace_id == trace_id for span in spans_of(self.collector)) >= count,
            what=f"{count} spans of {trace_id}, there are {spans_of(self.collector)}",
            limit_s=LIMIT_S,
        )


@contextmanager
def traced_cluster(folder: Path, reply: Canned = ACCEPTS, **environment: str) -> Iterator[Traced]:
    checkpoint = HandmadeCheckpoint(folder / "checkpoint").create().add(1)
    with ExitStack() as stack:
        monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
        collector = stack.enter_context(canned_server([reply]))
        export_to(monkeypatch, collector)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        redis = stack.enter_context(redis_server())
        known = stack.enter_context(cluster(checkpoint.path, folder, redis.url, nodes=1))
        known.wait_to_rest(copies=1, version=1)
        yield Traced(known, collector)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    with traced_cluster(tmp_path_factory.mktemp("spans")) as made:
        yield made


def assert_is_one_trace(spans: list[ReceivedSpan], known: Cluster, parent_id: str) -> ReceivedSpan:
    """The request at the router, its attempt, and the node's part, each below the one before; returns the first."""
    (request,) = [span for span in spans if span.service == ROUTER and span.kind == SERVER]
    (attempt,) = [span for span in spans if span.service == ROUTER and span.kind == CLIENT]
    (lookup,) = [span for span in spans if span.service == NODE]
    assert (request.parent_id, attempt.parent_id, lookup.parent_id) == (parent_id, request.span_id, attempt.span_id)
    assert (attempt.name, lookup.name) == ("POST /internal/v1/lookup",) * 2
    node_id, node = next(iter(known.nodes.items()))
    assert {name: attempt.attributes[name] for name in ("server.address", "server.port", "understudy.node_id")} == {
        "server.address": "127.0.0.1",
        "server.port": node.port,
        "understudy.node_id": node_id,
    }
    assert (request.attributes["server.port"], lookup.attributes["server.port"]) == (known.router.port, node.port)
    assert all(span.took_ns > 0 and not span.is_error for span in spans)
    assert not [span for span in spans for word in WORDS if word in str(span)], "a span has a key"
    return request


def test_a_lookup_of_the_command_line_is_one_trace_from_the_reader_through_the_router_to_the_node(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", SAMPLED)
    with RemoteServer(f"127.0.0.1:{traced.cluster.router.port}", timeout_s=LIMIT_S) as server:
        assert server.get(KEY)
    request = assert_is_one_trace(traced.trace(TRACE_ID, 3), traced.cluster, SPAN_ID)
    assert request.name == "GET /v1/stores/{store}/keys/{key}"
    assert request.attributes == {
        "http.request.method": "GET",
        "http.route": "/v1/stores/{store}/keys/{key}",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": traced.cluster.router.port,
        "understudy.store": "op0",
        "understudy.partition": request.attributes["understudy.partition"],
        "understudy.outcome": "found",
    }


@pytest.mark.parametrize(
    ("target", "body", "status"),
    [(f"{LOOKUP}?key=[%22{WORDS[0]}%22]", None, 200), (LOOKUP, json.dumps({"keys": [[WORDS[0]]]}).encode(), 200)],
    ids=["the exact form", "a batch"],
)
def test_every_kind_of_lookup_is_one_trace(traced: Traced, target: str, body: bytes | None, status: int) -> None:
    method, trace_id = ("GET", "b" * 32) if body is None else ("POST", "c" * 32)
    headers = {"traceparent": f"00-{trace_id}-{SPAN_ID}-01", "content-type": "application/json"}
    assert ask(traced.cluster.router, method, target, headers, body) == status
    request = assert_is_one_trace(traced.trace(trace_id, 3), traced.cluster, SPAN_ID)
    assert request.name == f"{method} /v1/stores/{{store}}/lookup"
    assert request.attributes["understudy.store"] == "op0"


def test_a_collector_that_takes_nothing_costs_no_answer_and_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lost() -> list[logging.LogRecord]:
        return [record for record in list(caplog.records) if getattr(record, "action", "") == "spans-lost"]

    with traced_cluster(tmp_path, Canned(b"", status=400)) as traced:
        for _ in range(3):
            seen = len(traced.collector.requests)
            assert ask(traced.cluster.router, "GET", KEY, {"traceparent": SAMPLED}) == 200
            wait_until(lambda seen=seen: len(traced.collector.requests) > seen, what="an export", limit_s=LIMIT_S)  # type: ignore[misc]
        wait_until(lambda: bool(lost()), what="the line", limit_s=LIMIT_S)
    assert len(lost()) <= 2, "one of the router, one of the node"
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_each_attempt_of_a_read_has_a_span_below_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Spans] = []

    def opening(*arguments: object) -> Spans | None:
        spans = open_spans(*arguments)  # type: ignore[arg-type]
        opened.extend([] if spans is None else [spans])
        return spans

    monkeypatch.setattr("understudy_router.http.app.open_spans", opening)
    refuses = problem(ProblemType.STORE_ERROR)
    with canned_server([ACCEPTS]) as collector:
        export_to(monkeypatch, collector)
        async with fake_cluster(lambda *_: refuses, lambda *_: found("b")) as known:
            reply = await known.http.get(f"{STORE}/keys/secret", headers={"traceparent": SAMPLED})
            assert reply.status_code == 200
            sent_on = [trace.trace for node in known.nodes for hop in node.hops for trace in hop.traces]
        opened[0].close()
        spans = spans_of(collector)
    (request,) = [span for span in spans if span.kind == SERVER]
    attempts = {span.attributes["understudy.node_id"]: span for span in spans if span.kind == CLIENT}
    assert set(attempts) == {"a", "b"}
    assert {span.parent_id for span in attempts.values()} == {request.span_id}
    assert [trace.parent_id for trace in sent_on] == [attempts["a"].span_id, attempts["b"].span_id]
    assert attempts["a"].attributes["understudy.outcome"] == "store-error"
    assert "understudy.outcome" not in attempts["b"].attributes
    assert "secret" not in str(spans)


def test_a_service_that_should_export_spans_and_cannot_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from understudy_router.serve import main

    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:1")
    monkeypatch.delitem(sys.modules, "understudy_shared.telemetry.otlp_spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    with pytest.raises(SettingsError, match=r"opentelemetry\.context is not installed .*OTLP_ENDPOINT.*\[otel\]"):
        main({"redis": "redis://127.0.0.1:1/0", "application_id": "a", "port": 0})


def test_a_service_that_ends_does_not_wait_for_ever_for_a_collector_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    monkeypatch.setattr("understudy_shared.telemetry.otlp_spans.CLOSE_LIMIT_S", 0.1)
    with canned_server([replace(ACCEPTS, held=held)]) as collector:
        export_to(monkeypatch, collector)
        spans = open_spans("x", HostInfo("h", 1))
        assert spans is not None
        span = spans.begin("GET", "/", Kind.SERVER, parse_traceparent(SAMPLED), {})
        assert span is not None
        span.end()
        wait_until(lambda: bool(collector.requests), what="the export", limit_s=LIMIT_S)
        spans.close()
        assert not held.is_set()
        held.set()
