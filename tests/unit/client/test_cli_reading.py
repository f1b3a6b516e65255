"""Reading commands against a real HTTP server with prepared replies: what is sent, one key or many, what is printed,
how they exit. No value reaches a terminal as a control sequence, and nothing unknown becomes a number.
"""

from __future__ import annotations

import json
import socket

import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.support.services.canned_server import Canned, canned_server
from tests.support.services.reading_commands import ABSENT, FOUND, REFUSED, UNKNOWN_LAG, batch, problem, run

from understudy.calls.http_client import RemoteServer
from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode
from understudy.terminal.reports import answer_rows, batch_row, quoted, shown
from understudy_shared.base.texts import printable
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.target import parse_query
from understudy_shared.reads.bounds import MAX_BATCH_KEYS
from understudy_shared.reads.tokens import Position


def test_a_found_key_exits_0_and_shows_every_field_of_the_answer() -> None:
    result, asked = run(["get", "aircraft", "N1"], [Canned(FOUND)])
    assert (result.exit_code, asked) == (ExitCode.OK, [("GET /v1/stores/aircraft/keys/N1", b"")])
    shown = result.stdout
    for part in ("found", "N1", "15", "418 of 420", "1200 ms", "2026-11-20T11:00:03.120000Z", "node-1:7101", "us1.abc"):
        assert part in shown


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


def test_applications_that_gave_no_list_of_stores_are_said_to_wait() -> None:
    unknown = [{"application": "orders", "reason": None}]
    result, _ = run(["stores"], [Canned(json.dumps({"stores": [], "unknown": unknown, "not_served": []}).encode())])
    assert (result.exit_code, "application orders is waiting" in result.stdout) == (ExitCode.OK, True)


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
    with canned_server([reply]) as served, RemoteServer(served.url, timeout_s=30) as server:
        assert server.not_ready() == reasons
    assert served.requests == [("GET /readyz", b"")]


def test_many_keys_are_asked_in_batches_in_their_order() -> None:
    count = 2 * MAX_BATCH_KEYS + 1
    stdin = b"".join(b"[%d]\n\n" % number for number in range(count))
    replies = [batch(ABSENT, *[FOUND] * (MAX_BATCH_KEYS - 1)), batch(*[FOUND] * MAX_BATCH_KEYS), batch(FOUND)]
    result, asked = run(["lookup", "s", "--stdin", "--json"], replies, stdin=stdin)
    assert [number for _, body in asked for (number,) in json.loads(body)["keys"]] == list(range(count))
    assert [len(json.loads(body)["keys"]) for _, body in asked] == [MAX_BATCH_KEYS, MAX_BATCH_KEYS, 1]
    assert len(result.stdout.splitlines()) == count
    assert result.exit_code == ExitCode.ABSENT


@pytest.mark.parametrize(
    ("items", "exit_code"),
    [
        ((FOUND, FOUND), ExitCode.OK),
        ((FOUND, ABSENT), ExitCode.ABSENT),
        ((ABSENT, problem("bad-key", 400).body), ExitCode.USAGE),
        ((problem("bad-key", 400).body, REFUSED), ExitCode.REFUSED),
    ],
    ids=["found", "absent", "bad-key", "refused"],
)
def test_a_batch_exits_with_the_highest_of_its_keys(items: tuple[bytes, bytes], exit_code: ExitCode) -> None:
    result, _ = run(["lookup", "s", '["N1"]', "[2]"], [batch(*items)])
    assert result.exit_code == exit_code
    assert len(result.stdout.splitlines()) == 2 + len(items)


def test_keys_before_a_line_that_is_no_json_are_asked_and_the_line_is_named() -> None:
    result, asked = run(["lookup", "s", "--stdin", "--json"], [batch(FOUND, FOUND)], stdin=b"[1]\n[2]\n[3\n[4]\n")
    assert json.loads(asked[0][1])["keys"] == [[1], [2]]
    assert len(result.stdout.splitlines()) == 2
    assert result.exit_code == ExitCode.USAGE
    assert "line 3 of standard input" in result.stderr


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)  # fmt: skip


@given(JSON)
def test_a_shown_value_is_one_printable_line(value: object) -> None:
    assert shown(value).isprintable()


@given(st.text())
def test_a_text_of_others_is_one_printable_line_and_a_printable_one_is_kept(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(text) == text or not text.isprintable()


@given(JSON)
def test_a_quoted_value_of_basic_characters_reads_back_as_the_same(value: object) -> None:
    if all(ord(char) < 0x10000 for char in orjson.dumps(value).decode()):
        assert orjson.loads(quoted(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("N14228", "N14228"),
        ("", '""'),
        (" a", '" a"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        (None, "null"),
        ([1, "a"], '[1,"a"]'),
    ],
)
def test_a_text_that_could_mislead_is_quoted(value: object, text: str) -> None:
    assert shown(value) == text


READ = {
    "key": {"k": "a"}, "found": True, "partition": 0, "version": 3, "committed_at": None, "watermark": None,
    "lag": {"offset_lag": 0, "end_offset_position": 3, "time_lag_ms": 5}, "position": "us1.x",
    "served_by": {"host": "h", "port": 1, "role": "active", "state": "RUNNING"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "rows", "cell"),
    [
        ({}, [], ""),
        (
            {"expires_at": "2024-03-01T00:00:00.000000Z", "expired": True},
            [("expires", "2024-03-01T00:00:00.000000Z", ""), ("expired", "true", "")],
            '{"expires":"2024-03-01T00:00:00.000000Z","expired":true}',
        ),
        (
            {"value": {"n": 1}, "timeout_at": None},
            [("value", "n", "1"), ("times out", "null", "")],
            '{"n":1}',
        ),
        (
            {"sessions": [{"start": "s", "end": "e", "value": {}}, {"start": "t", "end": "f", "value": {}}]},
            [
                ("sessions", "1", '{"start":"s","end":"e","value":{}}'),
                ("", "2", '{"start":"t","end":"f","value":{}}'),
            ],
            '[{"start":"s","end":"e","value":{}},{"start":"t","end":"f","value":{}}]',
        ),
        (
            {"rows": [{"value": {"n": 1}, "matched": False}]},
            [("rows", "1", '{"value":{"n":1},"matched":false}')],
            '[{"value":{"n":1},"matched":false}]',
        ),
        (
            {"values": [{"value": {"n": 1}}]},
            [("values", "1", '{"value":{"n":1}}')],
            '[{"value":{"n":1}}]',
        ),
        (
            {"entries": [{"key": {"p": "a"}, "value": {"n": 1}}]},
            [("entries", "1", '{"key":{"p":"a"},"value":{"n":1}}')],
            '[{"key":{"p":"a"},"value":{"n":1}}]',
        ),
        ({"timers": ["t"]}, [("timers", "1", '"t"')], '["t"]'),
    ],
    ids=["set", "expiring set", "group state", "sessions", "join side", "list", "map", "timers"],
)
def test_what_was_found_is_shown_by_the_members_that_its_kind_of_store_has(
    said: dict[str, object], rows: list[tuple[str, str, str]], cell: str
) -> None:
    shown_rows = answer_rows({**READ, **said}, raw=False)
    assert shown_rows[1 : 1 + len(rows)] == rows
    assert shown_rows[1 + len(rows)][0] == "version"
    assert batch_row({**READ, **said}, raw=False)[:3] == ('{"k":"a"}', "found", cell)
    assert len(batch_row({**READ, **said}, raw=True)) == 5
