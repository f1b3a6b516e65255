"""A stream of an export that is cut anywhere is noticed, and gone on with behind what surely came (Q11)."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pytest

from understudy.calls.export_streams import ExportPiece, ReadStream, read_arrow, read_csv, read_ndjson
from understudy.calls.http_client import ReportedProblemError
from understudy.typed.frames import CutError
from understudy_shared.questions.export.service import ARROW_BROKEN

SCHEMA = pa.schema([pa.field("n", pa.int64())])
PROBLEM = {"type": "node-unreachable", "title": "t", "status": 502, "detail": "d"}


def ndjson(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def row(n: int) -> dict[str, Any]:
    return {"row": {"key": {"n": n}}}


NDJSON = ndjson(
    {"export": {"store": "s"}}, row(1), row(2), {"cursor": "sc1.a"}, row(3), {"end": {"rows": 3, "version": 7}}
)
CSV = b'n,text\n1,"a\nb"\n2,"# end {"\n3,""\n# end {"rows":3,"version":7}\n'


def arrow(*, rows: int = 3, last: dict[str, Any] | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        empty = pa.record_batch([pa.array([], pa.int64())], schema=SCHEMA)
        last = last or {"end": {"rows": rows}}
        for values, said in (([1, 2], None), ([], {"cursor": "sc1.a"}), ([3], None), ([], last)):
            batch = pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA) if values else empty
            writer.write_batch(batch, **({} if said is None else {"custom_metadata": {"understudy": json.dumps(said)}}))
    return bytes(sink.getvalue())


ARROW = arrow()
STREAMS: tuple[tuple[ReadStream, bytes], ...] = ((read_ndjson, NDJSON), (read_csv, CSV), (read_arrow, ARROW))


class Response(io.BytesIO):
    """A response whose body ends here: as HTTP says that it ends, or with a broken connection."""

    def __init__(self, body: bytes, *, is_broken: bool = False) -> None:
        super().__init__(body)
        self._is_broken = is_broken

    def read1(self, size: int | None = -1, /) -> bytes:
        return self._or_broken(super().read1(3 if size is None or size > 3 else size))

    def read(self, size: int | None = -1, /) -> bytes:
        return self._or_broken(super().read(size))

    def _or_broken(self, data: bytes) -> bytes:
        if not data and self._is_broken:
            raise OSError("broken")
        return data


def pieces(read: ReadStream, body: bytes, *, is_broken: bool = False) -> list[ExportPiece]:
    return list(read(Response(body, is_broken=is_broken)))


def test_a_whole_stream_is_read_in_pieces_from_which_one_can_go_on() -> None:
    first, last = pieces(read_ndjson, NDJSON)[1:]
    assert (first.content, first.rows, first.cursor) == (b'{"key":{"n":1}}\n{"key":{"n":2}}\n', 2, "sc1.a")
    assert (last.content, last.rows, last.cursor) == (b'{"key":{"n":3}}\n', 1, None)
    assert b"".join(piece.content for piece in pieces(read_csv, CSV)) == CSV[: CSV.rindex(b"# end")]
    first, last = pieces(read_arrow, ARROW)
    assert [batch.to_pydict()["n"] for batch in first.content + last.content if batch.num_rows] == [[1, 2], [3]]
    assert (first.cursor, last.cursor) == ("sc1.a", None)


@pytest.mark.parametrize("is_broken", [False, True], ids=["repaired", "broken"])
@pytest.mark.parametrize(("read", "body"), STREAMS, ids=["ndjson", "csv", "arrow"])
def test_a_stream_that_is_cut_at_any_byte_is_noticed(read: ReadStream, body: bytes, is_broken: bool) -> None:
    """Q11: with the end of the body repaired by a proxy, too. Behind the end record of Arrow nothing is missing."""
    whole = len(body) - (8 if read is read_arrow else 0)
    for size in range(whole):
        with pytest.raises(CutError):
            pieces(read, body[:size], is_broken=is_broken)
    assert sum(piece.rows for piece in pieces(read, body)) == (4 if read is read_csv else 3)


def test_a_stream_with_another_number_of_rows_than_its_end_says_was_cut() -> None:
    for read, body in (
        (read_ndjson, ndjson(row(1), {"end": {"rows": 2}})),
        (read_csv, b'n\n1\n# end {"rows":2}\n'),
        (read_arrow, arrow(rows=4)),
    ):
        with pytest.raises(CutError, match="its end record says"):
            pieces(read, body)


def test_an_error_in_a_stream_is_the_problem_that_the_server_says() -> None:
    for read, body in (
        (read_ndjson, ndjson(row(1), {"error": PROBLEM})),
        (read_csv, b"n\n1\n# error " + json.dumps(PROBLEM).encode() + b"\n"),
        (read_arrow, arrow(last={"error": PROBLEM})[:-8] + ARROW_BROKEN),
    ):
        with pytest.raises(ReportedProblemError) as caught:
            pieces(read, body, is_broken=True)
        assert caught.value.slug == "node-unreachable"
