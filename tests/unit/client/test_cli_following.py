"""`understudy history`, `watch` and `changes`, and the forms in which these and other commands print rows."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.support.services.bad_servers import bad_server, sending
from tests.support.services.canned_server import Canned
from tests.support.services.command_line import environment
from tests.support.services.reading_commands import problem, run
from tests.unit.client.client.test_changes_steps import WHOLE
from tests.unit.client.client.test_watch import HEAD, chunk, watched
from tests.unit.client.client.test_watch_steps import event, token

from understudy.client.core.changes import MEDIA_TYPE
from understudy.terminal.exits import PIPE_CLOSED, ExitCode
from understudy_shared.reads.watch_events import reset_event

ENTRY = {
    "store": "words",
    "kind": "value",
    "operator": "stateStoreSave",
    "key": [{"name": "word", "type": "string"}],
    "value": [{"name": "count", "type": "long"}, {"name": "note", "type": "string"}],
}
DESCRIBED = Canned(json.dumps(ENTRY).encode())


def versions(*counts: int, following: int | None = None) -> Canned:
    items = [
        {"found": bool(count), **({"value": {"count": count, "note": 'a "b"'}} if count else {}), "version": 3 + at,
         "committed_at": None}
        for at, count in enumerate(counts)
    ]  # fmt: skip
    return Canned(
        json.dumps({"store": "words", "key": {"word": "a"}, "versions": items, "next_from": following}).encode()
    )


def scanned(*counts: int, cursor: str | None = None) -> Canned:
    rows = [{"key": {"word": f"w{count}"}, "value": {"count": count, "note": None}} for count in counts]
    return Canned(json.dumps({"store": "words", "version": 7, "rows": rows, "next_cursor": cursor}).encode())


def test_a_history_follows_its_pages_and_ends_at_its_limit() -> None:
    replies = [versions(1, 2, following=5), versions(3, 4)]
    result, asked = run(["history", "words", "a/b", "--from", "3", "--limit", "3"], replies)
    assert [json.loads(line)["value"]["count"] for line in result.stdout.splitlines()] == [1, 2, 3]
    assert [target for target, _ in asked] == [
        "GET /v1/stores/words/history/a%2Fb?from=3",
        "GET /v1/stores/words/history/a%2Fb?from=5",
    ]
    result, asked = run(["history", "words", "[null]", "--json"], [versions(1)])
    assert json.loads(result.stdout)["versions"][0]["version"] == 3
    assert asked[0][0].endswith("history?key=%5Bnull%5D")
    result, _ = run(["history", "words", "a"], [problem("version-gone", 410)])
    assert (result.exit_code, result.stdout) == (ExitCode.REFUSED, "")


def test_rows_are_printed_as_a_table_or_as_csv_with_the_columns_of_the_store() -> None:
    result, asked = run(["history", "words", "a", "--format", "csv"], [DESCRIBED, versions(1, 0)])
    assert result.stdout.splitlines() == [
        "version,committed_at,found,count,note",
        '3,,true,1,"a ""b"""',
        "4,,false,,",
    ]
    assert asked[0][0] == "GET /v1/stores/words"
    result, _ = run(["scan", "words", "--format", "csv"], [DESCRIBED, scanned(1, cursor="sc1.a"), scanned(2)])
    assert result.stdout.splitlines() == ["word,count,note,problem", "w1,1,,", "w2,2,,"]
    result, _ = run(["scan", "words", "--format", "csv"], [DESCRIBED, scanned()])
    assert result.stdout.splitlines() == ["word,count,note,problem"], "a head without rows"
    window = {"start": "2013-01-01T05:00:00Z", "end": "2013-01-01T06:00:00Z", "state": "open", "value": {"count": 5}}
    page = Canned(json.dumps({"store": "words", "windows": [window], "next_cursor": None}).encode())
    result, _ = run(["windows", "words", "a", "--format", "table"], [DESCRIBED, page])
    head, row = (line.split() for line in result.stdout.splitlines() if "─" not in line)
    assert (head, row[:3], row[3]) == (["start", "end", "state", "count", "note"], list(window.values())[:3], "5")


def test_a_scan_is_an_arrow_stream_or_parquet_of_typed_columns_and_of_none_where_there_are_no_rows() -> None:
    for counts in ((1, 2, 3), ()):
        result, _ = run(["scan", "words", "--format", "arrow"], [DESCRIBED, scanned(*counts)])
        table = pa.ipc.open_stream(result.stdout_bytes).read_all()
        assert table.column_names == ["word", "count", "note", "problem"]
        assert (table["count"].type, table["count"].to_pylist()) == (pa.int64(), list(counts))
        result, _ = run(["scan", "words", "--format", "parquet"], [DESCRIBED, scanned(*counts)])
        assert parquet.read_table(io.BytesIO(result.stdout_bytes))["count"].to_pylist() == list(counts)


def test_two_forms_at_once_are_wrong_usage() -> None:
    for command in (
        *(["scan", "words"], ["history", "words", "a"], ["windows", "words", "a"], ["watch", "words", "a"]),
        ["changes", "words", "--from", "3"],
    ):
        result, asked = run([*command, "--json", "--format", "table"], [])
        assert (result.exit_code, asked) == (ExitCode.USAGE, [])


COALESCED = b'event: coalesced\ndata: {"store":"words","key":{"word":"a"},"from":5,"to":7,"changes":null}\n\n'
EVENTS = event("snapshot", 3) + COALESCED + event("value", 8) + event("deleted", 9) + reset_event("m")


def test_a_watch_prints_each_event_and_goes_on_until_a_server_refuses() -> None:
    with bad_server(watched(b"retry: 100\n\n" + EVENTS, event("value", 10))) as server:
        result, _ = run(["watch", "words", "a", "--versions"], [], url=server.url)
    events = [json.loads(line) for line in result.stdout.splitlines()]
    shown = [(each["event"], each.get("version")) for each in events]
    assert shown == [
        *[("snapshot", 3), ("coalesced", None), ("value", 8), ("deleted", 9)],
        *[("reset", None), ("value", 10)],
    ]
    assert (events[2]["value"], events[2]["position"], events[2]["key"]) == ({"count": 7}, token(8), {"word": "a"})
    assert (result.exit_code, "version-gone" in result.stderr or "d" in result.stderr) == (ExitCode.REFUSED, True)


def test_a_watch_is_a_line_for_people_or_csv_and_ends_at_its_limit() -> None:
    with bad_server(watched(EVENTS)) as server:
        result, _ = run(["watch", "words", "a", "--format", "table", "--limit", "5"], [], url=server.url)
    assert result.exit_code == 0
    assert [line.split()[1:3] for line in result.stdout.splitlines()] == [
        *(["3", "snapshot"], ["7", "coalesced"], ["8", "value"], ["9", "deleted"]),
        ["-", "reset"],
    ]
    assert "changes since version 5: unknown" in result.stdout
    keys = ["--key", '["a"]', "--key", '{"word":"b"}', "--from", token(2)]
    with bad_server(watched(event("value", 3))) as server:
        run(["watch", "words", *keys, "--limit", "1"], [], url=server.url)
    assert b'{"keys":[["a"],{"word":"b"}]}' in server.requests[0]
    assert b"last-event-id: %b" % token(2).encode() in server.requests[0]


WRONG_WATCHES = [
    *([], ["a", "--key", "[1]"], ["--key", "a"], [""], ["a", "--patience-s", "0"]),
    *(["a", "--prefix", '["x"]'], ["--prefix", "x"], ["--prefix", '{"a":1}']),
]


@pytest.mark.parametrize("wrong", WRONG_WATCHES)
def test_a_watch_without_a_key_or_with_a_wrong_one_asks_nobody(wrong: list[str]) -> None:
    result, asked = run(["watch", "words", *wrong], [])
    assert (result.exit_code, asked) == (ExitCode.USAGE, [])


def test_all_keys_with_a_prefix_are_watched() -> None:
    with bad_server(watched(event("snapshot", 3))) as server:
        result, _ = run(["watch", "words", "--prefix", '["a"]', "--limit", "1"], [], url=server.url)
    assert json.loads(result.stdout)["event"] == "snapshot"
    assert b'{"prefix":["a"]}' in server.requests[0]


CHANGED = Canned(b"".join(WHOLE), content_type=MEDIA_TYPE)


def test_changes_are_printed_in_each_form() -> None:
    command = ["changes", "words", "--from", "3", "--prefix", '["a"]']
    result, asked = run(command, [CHANGED])
    assert [(each["event"], each["version"]) for each in map(json.loads, result.stdout.splitlines())] == [
        *(("value", 3), ("deleted", 3), ("value", 4)),
    ]
    assert [target for target, _ in asked] == ["GET /v1/stores/words/changes?from=3&prefix=%5B%22a%22%5D"]
    result, _ = run([*command, "--versions", "--format", "table"], [CHANGED])
    assert [line.split()[1:3] for line in result.stdout.splitlines()] == [
        *(["3", "value"], ["3", "deleted"], ["3", "version"], ["4", "value"], ["4", "version"]),
    ]
    result, _ = run([*command, "--format", "csv"], [DESCRIBED, CHANGED])
    assert result.stdout.splitlines() == [
        "version,partition,found,word,count,note,problem", "3,0,true,a,3,,", "3,0,false,b,,,", "4,0,true,a,4,,",
    ]  # fmt: skip
    for form in ("arrow", "parquet"):
        result, _ = run([*command, "--format", form], [DESCRIBED, CHANGED])
        raw = result.stdout_bytes
        table = pa.ipc.open_stream(raw).read_all() if form == "arrow" else parquet.read_table(io.BytesIO(raw))
        assert (table["version"].type, table["version"].to_pylist()) == (pa.int64(), [3, 3, 4])
        assert (table["found"].to_pylist(), table["count"].to_pylist()) == ([True, False, True], [3, None, 4])


def test_columns_of_a_store_that_are_called_as_those_of_changes_have_their_part_before_them() -> None:
    value = [{"name": "version", "type": "long"}, {"name": "found", "type": "long"}]
    described = Canned(json.dumps({**ENTRY, "value": value}).encode())
    result, _ = run(["changes", "words", "--from", "3", "--format", "csv"], [described, CHANGED])
    assert result.stdout.splitlines()[0] == "version,partition,found,key.word,value.version,value.found,problem"
    result, _ = run(["changes", "words", "--from", "3", "--format", "arrow"], [described, CHANGED])
    assert pa.ipc.open_stream(result.stdout_bytes).read_all().column_names == [
        *("key", "value", "version", "partition", "found", "problem"),
    ]


def test_changes_that_cannot_be_gone_on_with_say_what_is_whole() -> None:
    cut = Canned(b"".join(WHOLE[:5]), content_type=MEDIA_TYPE)
    result, asked = run(["changes", "words", "--from", "3"], [cut, problem("version-gone", 410)])
    assert (result.exit_code, "--from 4" in result.stderr) == (ExitCode.REFUSED, True)
    assert [json.loads(line)["version"] for line in result.stdout.splitlines()] == [3, 3]
    assert asked[1][0] == "GET /v1/stores/words/changes?from=4&to=4"
    for wrong in (
        ["--from", "0"],
        [],
        ["--from", "3", "--prefix", "x"],
        ["--from", "3", "--versions", "--format", "csv"],
    ):
        result, asked = run(["changes", "words", *wrong], [])
        assert (result.exit_code, asked) == (ExitCode.USAGE, [])


WATCH = [sys.executable, "-m", "understudy", "watch", "words", "a", "--url"]


def test_ctrl_c_is_the_way_to_end_a_watch() -> None:
    with (
        bad_server(sending(HEAD, chunk(event("snapshot", 3)))) as server,
        subprocess.Popen(
            [*WATCH, server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(None)
        ) as process,
    ):
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "snapshot"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 0


def test_a_reader_of_a_watch_that_has_enough_ends_it_without_a_word() -> None:
    behave = sending(HEAD, *(chunk(event("value", version)) for version in range(1, 2000)))
    with bad_server(behave) as server:
        command = ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "bash", *WATCH, server.url]
        done = subprocess.run(command, env=environment(None), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (PIPE_CLOSED, b"")
    assert json.loads(done.stdout)["version"] == 1
