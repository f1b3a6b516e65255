"""Requests that ask for nothing there is: a typed problem that says what was wrong, where, and what to send instead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import WORDS

from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.tokens import Position
from understudy_shared.settings import DEFAULT_KEY_BYTES

STORE = "/v1/stores/op0"
ELSEWHERE = Position(ApplicationId("orders"), Lineage("l"), 1, None).encode()
"""A position of another application."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("requests")
    checkpoint = HandmadeCheckpoint(folder / "checkpoint").create().add(1, 2)
    with served_node(checkpoint.path, folder / "data") as node:
        node.wait_for_version(2)
        yield node


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    """A store with a key of two columns, `day date, code int`; none of its keys is there."""
    folder = tmp_path_factory.mktemp("typed")
    checkpoint = HandmadeCheckpoint(folder / "checkpoint", key_columns=(("day", "date"), ("code", "integer")))
    with served_node(checkpoint.create().add(1).path, folder / "data") as node:
        node.wait_for_version(1)
        yield node


@pytest.mark.parametrize(
    ("target", "status", "problem", "says"),
    [
        ("/v1/stores/nowhere/keys/a", 404, "unknown-store", ["'nowhere'", "op0"]),
        ("/v1/stores/op1/keys/a", 404, "unknown-store", ["Did you mean 'op0'?"]),
        (f"{STORE}/keys/", 400, "bad-key", ["empty", "lookup?key="]),
        (f"{STORE}/keys//a", 400, "bad-key", ["empty"]),
        (f"{STORE}/keys/a/b", 400, "bad-key", ["2 path segments", "takes 1", "word string"]),
        (f"{STORE}/keys", 400, "bad-key", ["0 path segments", "word string"]),
        (f"{STORE}/lookup", 400, "bad-key", ["no key", "lookup?key="]),
        (f"{STORE}/lookup?key=word-1", 400, "bad-key", ["not JSON", 'key=["a",1]']),
        (f"{STORE}/lookup?key=7", 400, "bad-key", ["word string", "JSON array"]),
        (f"{STORE}/lookup?key=%5B7%5D", 400, "bad-key", ["7", "column word (string)"]),
        (f"{STORE}/lookup?key=%7B%22wort%22:%22a%22%7D", 400, "bad-key", ["wort", "word string"]),
        (f"{STORE}/lookup?key=%5B%22a%22%5D&key=%5B%22b%22%5D", 400, "bad-request", ["'key' is given twice"]),
        (f"{STORE}/keys/%zz", 400, "bad-request", ["%zz", "%25"]),
        (f"{STORE}/keys/a?max_lga=5", 400, "bad-bound", ["'max_lga'", "max_lag"]),
        (f"{STORE}/keys/a?max_lag=-1", 400, "bad-bound", ["max_lag", "'-1'", "whole number", "max_lag=5"]),
        (f"{STORE}/keys/a?max_staleness_ms=1.5", 400, "bad-bound", ["max_staleness_ms", "milliseconds"]),
        (f"{STORE}/keys/a?require_active=perhaps", 400, "bad-bound", ["require_active", "true or false"]),
        (f"{STORE}/keys/a?unknown_lag=maybe", 400, "bad-bound", ["unknown_lag", "serve or refuse"]),
        (f"{STORE}/keys/a?min_position=nonsense", 400, "bad-bound", ["'nonsense'", "min_position", "`position`"]),
        (f"{STORE}/keys/a?wait_ms=999999999", 400, "bad-bound", ["wait_ms"]),
        (f"{STORE}/keys/a?min_position={ELSEWHERE}", 409, "lineage-changed", ["'orders'"]),
        (f"{STORE}/keys/{'x' * 20000}", 413, "too-large", ["16384", "POST"]),
        ("/v2/stores", 404, "unknown-path", ["/v2/stores", "/v1/stores"]),
        (f"{STORE}/nothing", 404, "unknown-path", [f"{STORE}/nothing"]),
    ],
)
def test_a_bad_request_is_answered_with_its_reason_and_the_way_out(
    served: ServedNode, target: str, status: int, problem: str, says: list[str]
) -> None:
    reply = served.get(target)
    assert (reply.status, reply.problem) == (status, problem), reply
    assert [part for part in says if part not in reply.text] == [], reply.text
    assert reply.body["fix"]


@pytest.mark.parametrize("question", ["keys", "history", "windows"])
def test_a_line_break_in_a_path_belongs_to_the_key(served: ServedNode, question: str) -> None:
    assert "unknown-path" not in served.get(f"{STORE}/{question}/a%0Ab").text


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (["2024-13-01", 1], ["column day (date)", "2024-13-01"]),
        (["2024-01-01"], ["day date, code int"]),
    ],
)
def test_a_mistyped_key_is_refused_with_its_column_and_type(typed: ServedNode, key: object, says: list[str]) -> None:
    reply = typed.get(f"{STORE}/lookup?key={quote(json.dumps(key))}")
    assert (reply.status, reply.problem) == (400, "bad-key"), reply
    text = reply.text.replace('"', "'")
    assert [part for part in says if part not in text] == [], text


def test_bad_keys_of_a_batch_are_problems_of_their_own_and_the_others_are_answered(served: ServedNode) -> None:
    keys: list[object] = [[WORDS[0]], [7], ["absent"], {"wort": "a"}, [WORDS[1]], [], {"word": WORDS[0]}]
    keys += [["x" * DEFAULT_KEY_BYTES], ["x" * (DEFAULT_KEY_BYTES - 100)]]
    results = served.look_up_all(keys)
    assert [result["status"] for result in results] == [200, 400, 404, 400, 200, 400, 200, 413, 404]
    assert [result.get("type") for result in results] == [
        None,
        "bad-key",
        None,
        "bad-key",
        None,
        "bad-key",
        None,
        "too-large",
        None,
    ]
    assert "column word (string)" in str(results[1])
    assert "max_key_bytes" in str(results[7])
    assert results[0]["value"] == results[6]["value"] == {"count": 2, "total": 2_000_000}


@pytest.mark.parametrize(
    "target",
    [
        STORE,
        f"{STORE}/keys/{WORDS[0]}",
        f"{STORE}/keys/absent",
        "/metrics",
        "/openapi.json",
        "/v2/stores",
    ],
)
def test_head_is_answered_wherever_get_is_with_the_same_head_and_no_body(served: ServedNode, target: str) -> None:
    status, headers, body = served.head("HEAD", target)
    asked = served.head("GET", target)
    assert (status, headers["content-type"], body) == (asked[0], asked[1]["content-type"], b"")
    if target in {STORE, "/openapi.json", "/v2/stores"}:  # the others report ages
        assert headers["content-length"] == asked[1]["content-length"]
    assert int(headers["content-length"]) > 0


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("DELETE", f"{STORE}/keys/a", "GET, HEAD"),
        ("PUT", f"{STORE}/lookup", "GET, HEAD, POST"),
        ("GET", "/internal/v1/lookup", "POST"),
        ("HEAD", "/internal/v1/lookup", "POST"),
    ],
)
def test_a_method_that_a_path_does_not_take_is_answered_with_those_it_takes(
    served: ServedNode, method: str, target: str, allow: str
) -> None:
    status, headers, body = served.head(method, target)
    assert (status, headers["allow"], headers["content-type"]) == (405, allow, "application/problem+json")
    assert method == "HEAD" or f"{method} is not taken" in json.loads(body)["detail"]
