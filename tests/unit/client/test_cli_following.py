"""`understudy history`, `watch` and `changes`, and the forms in which these and other commands print rows."""

from __future__ import annotations

import io
import json

import pyarrow as pa
from pyarrow import parquet
from tests.support.services.bad_servers import bad_server
from tests.support.services.canned_server import Canned
from tests.support.services.reading_commands import problem, run
from tests.unit.client.client.test_watch import watched
from tests.unit.client.client.test_watch_steps import event, token

from understudy.terminal.exits import ExitCode
from understudy_shared.questions.watch.events import reset_event

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
    result, asked = run(["history", "words", "a-b", "--from", "3", "--limit", "3"], replies)
    assert [json.loads(line)["value"]["count"] for line in result.stdout.splitlines()] == [1, 2, 3]
    assert [target for target, _ in asked] == [
        "GET /v1/stores/words/history/a-b?from=3",
        "GET /v1/stores/words/history/a-b?from=5",
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
    page = Canned(
        json.dumps({"store": "words", "key": {"word": "a"}, "windows": [window], "next_cursor": None}).encode()
    )
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


def test_a_table_of_events_has_heads_above_its_columns() -> None:
    with bad_server(watched(b"retry: 100\n\n" + EVENTS)) as server:
        result, _ = run(["watch", "words", "a", "--format", "table", "--limit", "1"], [], url=server.url)
    heads, first = result.stdout.splitlines()
    for head, content in (("event", "snapshot"), ("key", '{"word":"a"}'), ("version", "      3")):
        assert heads.index(head) == first.index(content)
