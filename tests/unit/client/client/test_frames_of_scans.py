"""The rows of a scan as a table: whole, of every row once, whatever happens to the export that brings them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pytest
from tests.support.clients.steps import CUT, World

from understudy import DeadlineError, VersionGoneError
from understudy.client.core import scans
from understudy.client.core.exchange import Opened, Outcome, Reply, Send
from understudy.client.core.reader import BoundStore, Reader
from understudy.client.core.scans import Question

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("problem", pa.string())])
ENTRY = {
    "store": "s",
    "kind": "value",
    "operator": "stateStoreSave",
    "key": [{"name": "n", "type": "long"}],
    "value": [],
    "result": [],
}
ROWS = list(range(1, 6))


def stream(first: int, *, has_cursors: bool = True, last: dict[str, Any] | None = None) -> bytes:
    """Return an export of the rows from one on, in batches of two, each with the cursor behind it."""
    rows = [each for each in ROWS if each > first]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:

        def write(values: list[int], said: dict[str, Any] | None = None) -> None:
            batch = pa.record_batch([pa.array(values, pa.int64()), pa.nulls(len(values), pa.string())], schema=SCHEMA)
            writer.write_batch(batch, **({} if said is None else {"custom_metadata": {"understudy": json.dumps(said)}}))

        for at in range(0, len(rows), 2):
            write(rows[at : at + 2])
            if has_cursors:
                write([], {"cursor": str(rows[at : at + 2][-1])})
        write([], last or {"end": {"rows": len(rows)}})
    return bytes(sink.getvalue())


def pieces(body: bytes) -> Iterator[Any]:
    yield body
    yield CUT


def read(world: World, **question: Any) -> Any:
    state = world.state()
    asked = Question(BoundStore(Reader(state), "s"), "scan", question)
    return world.run(scans.table(asked, lambda: state.deadline_s(None, is_scan=True)))


def cursor_of(send: Send) -> int:
    return int(orjson.loads(send.request.body or b"{}").get("cursor", 0))


@pytest.mark.parametrize("has_cursors", [True, False])
def test_an_export_that_is_cut_at_any_byte_becomes_a_table_of_every_row_once(has_cursors: bool) -> None:
    whole = stream(0, has_cursors=has_cursors)
    for size in range(len(whole) - 8):  # behind the end record nothing is missing

        def served(send: Send, world: World, size: int = size) -> Outcome:
            body = stream(cursor_of(send), has_cursors=has_cursors)
            return Opened(scans.MEDIA_TYPE, {}, pieces(body[:size] if len(world.sent) == 1 else body))

        table = read(World(served))
        assert table.to_pydict() == {"n": ROWS}


def test_a_server_that_breaks_each_export_off_gives_no_table() -> None:
    problem = {"type": "no-acceptable-replica", "status": 503, "title": "t", "detail": "gone"}

    def served(send: Send, world: World) -> Outcome:
        return Opened(scans.MEDIA_TYPE, {}, pieces(stream(cursor_of(send), last={"error": problem})[:-8]))

    with pytest.raises(DeadlineError, match="gone"):
        read(World(served))
    problem |= {"type": "version-gone", "status": 410}
    with pytest.raises(VersionGoneError):
        read(World(served))


@pytest.mark.parametrize("status", [403, 429, 503, 400])
def test_rows_come_by_pages_where_no_export_begins(status: int) -> None:
    def served(send: Send, world: World) -> Outcome:
        if "/export" in send.request.target:
            return Reply(status, "application/problem+json", orjson.dumps({"type": "x", "status": status}))
        if send.request.method == "GET":
            return Reply(200, "application/json", orjson.dumps(ENTRY))
        at = cursor_of(send)
        size = min(2, orjson.loads(send.request.body or b"")["limit"]) if limit else 2
        rows = [{"key": {"n": each}} for each in ROWS[at : at + size]]
        page = {"store": "s", "version": 1, "rows": rows, "next_cursor": str(at + 2) if at + 2 < len(ROWS) else None}
        return Reply(200, "application/json", orjson.dumps(page))

    limit = None
    assert read(World(served)).to_pydict() == {"n": ROWS}
    limit = 3
    assert read(World(served), limit=limit).to_pydict() == {"n": ROWS[:3]}
