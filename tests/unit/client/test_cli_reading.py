"""Reading commands against a real HTTP server with prepared replies: what is sent, what is printed, how they exit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.support.services.canned_server import PROBLEM, Canned, canned_server
from tests.support.services.reading_commands import ABSENT, FOUND, REFUSED, UNKNOWN_LAG, batch, problem, run

from understudy.calls.http_client import Server, path_segment
from understudy.commands.group import cli
from understudy.terminal.exits import PIPE_CLOSED, CommandError, ExitCode
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.target import parse_query, split_path
from understudy_shared.reads.position import Position


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


def test_a_key_that_is_left_out_because_it_has_expired_says_so() -> None:
    hidden = json.loads(ABSENT) | {"expired": True, "expires_at": "2026-11-20T11:00:03.120000Z"}
    result, _ = run(["get", "seen", "N1"], [Canned(json.dumps(hidden).encode(), 404)])
    assert result.exit_code == ExitCode.ABSENT
    assert [line.split() for line in result.stdout.splitlines() if "expire" in line] == [
        ["expires", "2026-11-20T11:00:03.120000Z"],
        ["expired", "true"],
    ]


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


def test_a_refusal_names_each_candidate_and_its_reason() -> None:
    result, _ = run(["get", "aircraft", "N1", "--max-lag", "1", "--json"], [Canned(REFUSED, 503, PROBLEM)])
    assert result.exit_code == ExitCode.REFUSED
    assert result.stdout_bytes == REFUSED
    assert result.stderr.splitlines()[1] == (
        "  node-1:7101: lag-exceeded (active, RUNNING, version 418, versions behind 2, time lag unknown)"
    )


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


def test_a_server_that_does_not_answer_in_time_exits_4() -> None:
    held = threading.Event()
    with canned_server([Canned(FOUND, held=held)]) as served:
        result = CliRunner().invoke(cli, ["get", "s", "k", "--url", served.url, "--timeout-s", "0.05"])
        held.set()
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "no answer within 0.05 s" in result.stderr


def test_the_time_a_server_was_asked_to_wait_is_added_to_the_timeout() -> None:
    held = threading.Event()
    with canned_server([Canned(FOUND, held=held)]) as served, Server(served.url, timeout_s=0.05) as server:
        with pytest.raises(CommandError, match=r"no answer within 0\.15 s"):
            server.get("/v1/stores", wait_ms=100)
        held.set()


@pytest.mark.parametrize(
    "url", ["ftp://a", "http://", "http://[::1", "http://a:port", "a:port", "", "http://a b", "é:1"]
)
def test_a_text_that_is_not_a_url_is_wrong_usage(url: str) -> None:
    result = CliRunner().invoke(cli, ["stores", "--url", url])
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize("end", ["", "/"])
def test_a_server_may_be_named_without_http(end: str) -> None:
    with canned_server([Canned(FOUND)]) as served:
        result = CliRunner().invoke(cli, ["get", "s", "k", "--url", served.url.removeprefix("http://") + end])
    assert result.exit_code == ExitCode.OK
    assert served.requests == [("GET /v1/stores/s/keys/k", b"")]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    with canned_server([Canned(b"{}", status, "text/html")]) as served:
        result = CliRunner().invoke(cli, ["get", "s", "k", "--url", served.url])
    assert f"status {status}" in result.stderr
    assert len(served.requests) == 1


def test_loopback_is_asked_directly_whatever_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    result, _ = run(["get", "aircraft", "N1"], [Canned(FOUND)])
    assert result.exit_code == ExitCode.OK


def test_other_hosts_are_asked_through_the_proxy_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with canned_server([Canned(FOUND)]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        result = CliRunner().invoke(cli, ["get", "s", "k", "--url", "http://router.example:8080"])
    assert result.exit_code == ExitCode.OK
    assert proxy.requests == [("GET http://router.example:8080/v1/stores/s/keys/k", b"")]


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


def windowed(watermark: str | None, end: str = "2026-01-01T06:00:00.000000Z", found: bytes = ABSENT) -> bytes:
    """An answer for a key of a city and a window."""
    answer = json.loads(found)
    answer["key"] = {"city": "x", "window": {"start": "2026-01-01T05:00:00.000000Z", "end": end}}
    return json.dumps(answer | {"watermark": watermark}).encode()


PASSED = "has passed the end of this window: Spark has dropped its state"


@pytest.mark.parametrize(
    ("answer", "is_explained"),
    [
        (windowed("2026-01-01T06:00:00.000000Z"), True),
        (windowed("2026-01-01T06:00:00.000000Z", end="2026-01-01T06:00:00.000000"), True),
        (windowed("2026-01-01T05:59:59.999000Z"), False),
        (windowed(None), False),
        (windowed("2026-01-01T07:00:00.000000Z", end="soon"), False),
        (windowed("2026-01-01T07:00:00.000000Z", found=FOUND), False),
        (ABSENT.replace(b'"watermark":null', b'"watermark":"2026-01-01T07:00:00.000000Z"'), False),
    ],
    ids=["at-its-end", "without-a-zone", "before-its-end", "no-watermark", "no-time", "found", "no-window"],
)
def test_an_absent_window_that_the_watermark_has_passed_is_explained(answer: bytes, is_explained: bool) -> None:
    status = 200 if json.loads(answer)["found"] else 404
    single, _ = run(["get", "s", "k"], [Canned(answer, status)])
    assert (PASSED in single.stdout) == is_explained
    several, _ = run(["lookup", "s", "[1]", "[2]"], [batch(answer, FOUND)])
    assert (PASSED in several.stdout) == is_explained
    as_json, _ = run(["get", "s", "k", "--json"], [Canned(answer, status)])
    assert as_json.stdout_bytes.rstrip() == answer.rstrip()


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


def test_the_server_prints_whole_numbers_as_strings_where_that_is_asked_for_in_one_lookup_and_in_batches() -> None:
    _, asked = run(["get", "s", "k", "--longs", "string"], [Canned(FOUND)])
    assert asked == [("GET /v1/stores/s/keys/k?longs=string", b"")]
    _, asked = run(["lookup", "s", "[1]", "--longs", "string", "--max-lag", "0"], [Canned(FOUND)])
    parameters = parse_query(asked[0][0].partition("?")[2].encode())
    assert parameters == {"key": "[1]", "longs": "string", "max_lag": "0"}
    _, asked = run(["lookup", "s", "[1]", "[2]", "--longs", "string", "--max-lag", "0"], [batch(FOUND, FOUND)])
    assert asked == [
        ("POST /v1/stores/s/lookup?compact=true&longs=string", b'{"keys":[[1],[2]],"bounds":{"max_lag":0}}')
    ]
    result, asked = run(["get", "s", "k", "--longs", "text"], [])
    assert (result.exit_code, asked) == (ExitCode.USAGE, [])


@given(st.lists(st.text(min_size=1), min_size=1))
def test_a_word_arrives_as_it_was_written_whatever_is_in_it(words: list[str]) -> None:
    path = "/v1/stores/" + "/".join(map(path_segment, words))
    assert split_path(path.encode("ascii"))[2:] == words


@pytest.mark.parametrize("word", ["a/b", "a?b#c", "..", ".", "%2F", "日本語é", "a b+c"])
def test_no_word_is_bent_on_the_wire(word: str) -> None:
    _, asked = run(["get", "s", word], [Canned(FOUND)])
    assert split_path(asked[0][0].removeprefix("GET ").encode("ascii")) == ["v1", "stores", "s", "keys", word]


@pytest.mark.parametrize("key", ["[12345678901234567890123]", '{"a": 1.0, "a": 1e0}', '["\\u00e9"]'])
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


def test_a_reader_that_has_enough_ends_the_command_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "from understudy.cli import main; main()", "get", "s", "k", "--url"]
    with canned_server([Canned(FOUND)]) as served:
        done = subprocess.run([*command, served.url], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (PIPE_CLOSED, b"")


def test_a_negative_number_is_a_key_after_two_dashes() -> None:
    with canned_server([Canned(FOUND)]) as served:
        CliRunner().invoke(cli, ["get", "s", "--url", served.url, "--", "-17"])
    assert served.requests == [("GET /v1/stores/s/keys/-17", b"")]


def test_the_server_may_be_named_by_a_variable() -> None:
    with canned_server([Canned(FOUND)]) as served:
        result = CliRunner().invoke(cli, ["get", "s", "k"], env={"UNDERSTUDY_URL": served.url})
    assert result.exit_code == ExitCode.OK


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


def test_a_server_that_is_away_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free_port = listener.getsockname()[1]
    with Server(f"http://127.0.0.1:{free_port}", timeout_s=30) as server:
        (reason,) = server.not_ready()
    assert reason.startswith("it does not answer: ")


def test_an_application_is_named_in_every_path_that_a_command_asks() -> None:
    for command, replies, sent in (
        (["get", "aircraft", "N1"], [Canned(FOUND)], "GET /v1/applications/or%20ders/stores/aircraft/keys/N1"),
        (["lookup", "aircraft", '["N1"]', '["N2"]'], [batch(FOUND, FOUND)], "POST /v1/applications/or%20ders/stores/"),
        (["lag", "--json"], [Canned(b"{}")], "GET /admin/v1/applications/or%20ders/lag"),
    ):
        _, asked = run([*command, "--application", "or ders"], replies)
        assert asked[0][0].startswith(sent)
    result, asked = run(["get", "aircraft", "N1", "--application", "a/b"], [])
    assert (result.exit_code, asked) == (ExitCode.USAGE, [])
    assert "--application" in result.stderr


def test_stores_of_several_applications_have_theirs_in_a_column() -> None:
    store = {"store": "op0", "operator": "count", "key": [], "value": [], "partitions": 2, "end_offset_position": 7}
    stores = [{**store, "application": each} for each in ("clicks", "orders")]
    result, _ = run(["stores"], [Canned(json.dumps({"stores": stores, "not_served": []}).encode())])
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[:2] for row in (rows[0], *rows[2:4])] == [
        ["application", "store"],
        ["clicks", "op0"],
        ["orders", "op0"],
    ]
