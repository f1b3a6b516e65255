"""Reading commands against a real HTTP server with prepared replies: what is sent, what is printed, how they exit."""

from __future__ import annotations

import json
import socket

import pytest
from click.testing import CliRunner
from tests.support.services.canned_server import Canned, canned_server
from tests.support.services.reading_commands import ABSENT, FOUND, UNKNOWN_LAG, batch, problem, run

from understudy.calls.http_client import Server
from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.target import parse_query
from understudy_shared.reads.tokens import Position


def test_a_found_key_exits_0_and_shows_every_field_of_the_answer() -> None:
    result, asked = run(["get", "aircraft", "N1"], [Canned(FOUND)])
    assert (result.exit_code, asked) == (ExitCode.OK, [("GET /v1/stores/aircraft/keys/N1", b"")])
    assert result.stdout.splitlines() == [
        "aircraft: found",
        "  key        tailnum  N1",
        "  value      count    15",
        "             avg      1.0",
        "  version    418 of 420, 2 versions behind, time lag 1200 ms",
        "  committed  2026-11-20T11:00:03.120000Z",
        "  watermark  null",
        "  served by  node-1:7101, active, RUNNING, partition 3",
        "  position   us1.abc",
    ]


def test_an_absent_key_exits_1_and_says_so() -> None:
    result, _ = run(["get", "aircraft", "N1"], [Canned(ABSENT, 404)])
    assert result.exit_code == ExitCode.ABSENT
    assert "aircraft: absent" in result.stdout


def test_a_page_is_asked_for_and_says_how_to_go_on() -> None:
    page = json.loads(FOUND)
    del page["value"]
    page |= {"sessions": [{"start": "a", "expired": True}], "next_cursor": "uc1.abc"}
    body = json.dumps(page).encode()
    command = ["get", "visits", "N1", "--limit", "1", "--cursor", "uc1.x", "--no-include-expired"]
    result, asked = run(command, [Canned(body)])
    assert asked == [("GET /v1/stores/visits/keys/N1?limit=1&cursor=uc1.x&include_expired=false", b"")]
    assert "  more       --cursor uc1.abc" in result.stdout.splitlines()
    many, asked = run(["lookup", "visits", '["a"]', '["b"]', "--limit", "1", "--include-expired"], [batch(body, body)])
    assert json.loads(asked[0][1])["bounds"] == {"limit": 1, "include_expired": True}
    assert many.stdout.count("and more: --cursor uc1.abc") == 2


def test_an_unknown_lag_is_never_shown_as_a_number() -> None:
    result, _ = run(["get", "aircraft", "N1"], [Canned(UNKNOWN_LAG)])
    assert "version    418 of unknown, unknown behind, time lag unknown" in result.stdout


@pytest.mark.parametrize("body", [FOUND, ABSENT])
def test_json_is_the_servers_document_to_the_byte(body: bytes) -> None:
    single, _ = run(["get", "aircraft", "N1", "--json"], [Canned(body)])
    assert single.stdout_bytes == body
    many, _ = run(["lookup", "aircraft", '["N1"]', '["N1"]', "--json"], [batch(body, body)])
    assert many.stdout_bytes == (b'{"status":200,' + body[1:]) * 2


@pytest.mark.parametrize(
    ("reply", "exit_code"),
    [
        (problem("bad-key", 400), ExitCode.USAGE),
        (problem("bad-bound", 400), ExitCode.USAGE),
        (problem("unknown-store", 404), ExitCode.USAGE),
        (problem("too-large", 413), ExitCode.USAGE),
        (problem("lineage-changed", 409), ExitCode.REFUSED),
        (problem("version-gone", 410), ExitCode.REFUSED),
        (problem("not-owner", 421), ExitCode.REFUSED),
        (problem("overloaded", 429), ExitCode.REFUSED),
        (problem("store-error", 502), ExitCode.REFUSED),
        (problem("not-initialised", 503), ExitCode.REFUSED),
        (problem("deadline", 504), ExitCode.REFUSED),
    ],
    ids=lambda value: json.loads(value.body)["type"] if isinstance(value, Canned) else None,
)
@pytest.mark.parametrize("form", [["get", "s", "k"], ["lookup", "s", "[1]"], ["lookup", "s", "[1]", "[2]"]])
def test_a_problem_exits_by_its_kind_and_says_what_where_and_the_fix(
    form: list[str], reply: Canned, exit_code: ExitCode
) -> None:
    result, _ = run(form, [reply])
    slug = json.loads(reply.body)["type"]
    assert result.exit_code == exit_code
    assert result.stdout == ""
    assert result.stderr == f"error: a {slug} (here)\n  fix: do this\n"


@pytest.mark.parametrize(
    "reply",
    [
        Canned(b"<h1>not found</h1>", 404, "text/html"),
        Canned(b'{"error":"not found"}', 404),
        Canned(b'{"found":false}', 500),
        Canned(b"[]"),
        Canned(b"{"),
    ],
    ids=["html-404", "json-404", "found-false-500", "no-object", "no-json"],
)
def test_only_a_json_body_that_says_so_means_absent(reply: Canned) -> None:
    result, _ = run(["get", "s", "k"], [reply])
    assert result.exit_code == ExitCode.REFUSED
    assert "not one of an Understudy server" in result.stderr


def test_a_server_that_is_not_there_exits_4() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free_port = listener.getsockname()[1]
    result = CliRunner().invoke(cli, ["get", "s", "k", "--url", f"http://127.0.0.1:{free_port}"])
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "understudy serve" in result.stderr


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    with canned_server([Canned(b"{}", status, "text/html")]) as served:
        result = CliRunner().invoke(cli, ["get", "s", "k", "--url", served.url])
    assert f"status {status}" in result.stderr
    assert len(served.requests) == 1


RESULT = FOUND.replace(b'"partition":3', b'"result":{"mean":2.5},"partition":3')
IN_BOTH = [["get", "aircraft", "N1"], ["lookup", "aircraft", '["N1"]'], ["lookup", "aircraft", '["N1"]', '["N1"]']]


@pytest.mark.parametrize("form", IN_BOTH, ids=["get", "lookup", "batch"])
def test_the_result_is_shown_and_what_spark_stores_only_when_asked_for(form: list[str]) -> None:
    reply = batch(RESULT, RESULT) if len(form) == 4 else Canned(RESULT)
    plain, _ = run(form, [reply])
    assert "mean" in plain.stdout
    assert "count" not in plain.stdout
    assert "value" not in plain.stdout
    raw, _ = run([*form, "--raw"], [reply])
    assert raw.stdout.index("mean") < raw.stdout.index("count")


BOUNDS = {
    "max_lag": 0,
    "max_staleness_ms": 250,
    "min_position": Position(ApplicationId("a b"), Lineage("l"), 7, 1).encode(),
    "require_active": True,
    "unknown_lag": "refuse",
    "wait_ms": 0,
}
BOUND_ARGUMENTS = [
    *("--max-lag", "0", "--max-staleness-ms", "250", "--min-position", str(BOUNDS["min_position"])),
    *("--require-active", "--unknown-lag", "refuse", "--wait-ms", "0"),
]


def test_bounds_travel_as_they_were_given_zero_among_them() -> None:
    _, asked = run(["lookup", "s", "[1]", *BOUND_ARGUMENTS], [Canned(FOUND)])
    parameters = parse_query(asked[0][0].partition("?")[2].encode())
    texts = {name: "true" if value is True else str(value) for name, value in BOUNDS.items()}
    assert parameters == {"key": "[1]", **texts}
    _, asked = run(["lookup", "s", "[1]", "[2]", *BOUND_ARGUMENTS], [batch(FOUND, FOUND)])
    assert json.loads(asked[0][1]) == {"keys": [[1], [2]], "bounds": BOUNDS}
    _, asked = run(["get", "s", "k"], [Canned(FOUND)])
    assert asked == [("GET /v1/stores/s/keys/k", b"")]


@pytest.mark.parametrize("key", ["[12345678901234567890123]", '{"a":1.0,"a":1e0}', '["\\u00e9"]'])
def test_a_json_key_travels_as_it_was_written(key: str) -> None:
    _, asked = run(["lookup", "s", key], [Canned(FOUND)])
    assert parse_query(asked[0][0].partition("?")[2].encode())["key"] == key
    _, asked = run(["lookup", "s", "--stdin"], [batch(FOUND)], stdin=key.encode())
    assert asked[0][1] == b'{"keys":[' + key.encode() + b'],"bounds":{}}'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "s"], "understudy lookup s"),
        (["get", "s", ""], "understudy lookup s"),
        (["get", "s", "-17"], "'-17' looks like an option: put -- before"),
        (["get", "s", "-dash"], "'-dash' looks like an option: put -- before"),
        (["explain", "s", "--dashes"], "'--dashes' looks like an option: put -- before"),
        (["get", "s", "k", "--max-lagg", "1"], "--max-lag"),
        (["get", "s", "k", "--max-lag", "-1"], "--max-lag"),
        (["lookup", "s"], "--stdin"),
        (["lookup", "s", "[1]", "--stdin"], "one of the two"),
        (["lookup", "s", "N14228"], "is not JSON"),
        (["lookup", "s", "[1]", "{"], "key 2"),
        (["xyz"], "There is no command 'xyz'. understudy --help lists"),
        (["store"], "Did you mean 'stores'?"),
        (["GET"], "Did you mean 'get'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_exits_2_without_asking_anybody(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, arguments, env={"UNDERSTUDY_URL": "http://127.0.0.1:1"})
    assert result.exit_code == ExitCode.USAGE
    assert message in result.stderr


@pytest.mark.parametrize(
    ("reply", "reasons"),
    [
        (Canned(b'{"ready":true,"reasons":[]}'), []),
        (Canned(b'{"ready":false,"reasons":["no assignment is known yet"]}', 503), ["no assignment is known yet"]),
        (Canned(b"oops", 502, "text/plain"), ["/readyz has status 502"]),
        (Canned(b"[]"), ["/readyz has status 200"]),
    ],
    ids=["ready", "not-ready", "no-json", "no-object"],
)
def test_a_server_is_ready_only_when_it_says_so(reply: Canned, reasons: list[str]) -> None:
    with canned_server([reply]) as served, Server(served.url, timeout_s=30) as server:
        assert server.not_ready() == reasons
    assert served.requests == [("GET /readyz", b"")]
