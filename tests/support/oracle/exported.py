"""Exports as a reader makes them, whole streams in memory; and the documented check that one is whole."""

from __future__ import annotations

import csv
import http.client
import io
import json
import math
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from tests.support.cluster.served_node import Served
from tests.support.oracle.scanned import scan_target
from tests.support.typed.rows import assert_typed

from understudy.typed.frames import to_arrow, without_problem
from understudy_shared.spark import temporal


@dataclass(frozen=True, slots=True)
class Exported:
    """A stream. `body` is what came of it; `is_whole`: the connection ended as HTTP says that a body ends."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def head(self) -> dict[str, Any]:
        head: dict[str, Any] = self.lines[0]["export"]
        return head

    @property
    def end(self) -> dict[str, Any]:
        end: dict[str, Any] = self.lines[-1]["end"]
        return end

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of NDJSON, as a scan has them; fails where the stream is not whole."""
        lines = self.lines
        assert self.is_whole
        rows = [line["row"] for line in lines if "row" in line]
        assert self.end["rows"] == len(rows)
        assert "end" in lines[-1]
        return rows

    @property
    def cursors(self) -> list[str]:
        """The places from which it can be gone on with."""
        return [line["cursor"] for line in self.lines if "cursor" in line]

    def arrow(self) -> tuple[pa.Table, list[dict[str, Any]]]:
        reader = pa.ipc.open_stream(self.body)
        batches, said = [], []
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                break
            batches.append(batch)
            if metadata is not None:
                assert batch.num_rows == 0
                said.append(json.loads(metadata[b"understudy"]))
        return pa.Table.from_batches(batches, reader.schema), said

    def csv(self) -> tuple[list[dict[str, str]], str]:
        *lines, last = self.body.decode().splitlines(keepends=True)
        return list(csv.DictReader(io.StringIO("".join(lines), newline=""))), last


def export(served: Served, store: str = "op0", **members: object) -> Exported:
    """The stream of an export. `prefix` and `where` are given as they are in JSON."""
    connection = served._connection()
    try:
        connection.request("GET", scan_target(store, "export", **members), headers=served._shown())
        return received(connection.getresponse())
    finally:
        connection.close()


def received(response: http.client.HTTPResponse) -> Exported:
    headers = {name.lower(): value for name, value in response.getheaders()}
    try:
        return Exported(response.status, headers, response.read(), is_whole=True)
    except http.client.IncompleteRead as error:
        return Exported(response.status, headers, error.partial, is_whole=False)


def assert_exported(served: Served, store: str, rows: list[dict[str, Any]], version: int) -> None:
    """Every form of an export has these rows, which are known to be Spark's (Q64)."""
    lines = export(served, store)
    assert lines.rows == rows
    assert lines.end["version"] == version
    text, last = export(served, store, format="csv").csv()
    assert json.loads(last.removeprefix("# end "))["rows"] == len(text) == len(rows)
    table, said = export(served, store, format="arrow").arrow()
    assert said[-1]["end"]["rows"] == table.num_rows == len(rows)
    is_flat = json.loads(table.schema.metadata[b"understudy"])["is_flat"]
    entry = served.get(f"/v1/stores/{store}").body
    assert_typed(entry, rows)
    of_client = to_arrow(entry, rows)
    assert of_client.schema.equals(without_problem(table).schema), store
    _assert_cells(table, text, rows, store, is_flat=is_flat)
    _assert_cells(of_client, text, rows, store, is_flat=is_flat)


def _assert_cells(
    table: pa.Table, text: list[dict[str, str]], rows: list[dict[str, Any]], store: str, *, is_flat: bool
) -> None:
    for at, row in enumerate(rows):
        members = {f"{part}.{name}": each for part in PARTS for name, each in row.get(part, {}).items()}
        flat = {name.partition(".")[2]: each for name, each in members.items()} if is_flat else members
        wanted = {**flat, **{name: each for name, each in row.items() if name not in PARTS}}
        in_text = {name: _field(each) for name, each in wanted.items()}
        assert {name: each for name, each in text[at].items() if each} == {n: e for n, e in in_text.items() if e}
        cells = {name: table.column(name)[at] for name in table.column_names}
        if not is_flat:
            cells = {
                f"{part}.{name}" if part in PARTS else part: each
                for part, cell in cells.items()
                for name, each in (cell.items() if part in PARTS else ((part, cell),))
            }
        for name, cell in cells.items():
            assert _is_same(cell, wanted.get(name)), (store, name, cell, wanted.get(name))


PARTS = ("key", "value", "result")


def _field(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _is_same(cell: pa.Scalar, printed: Any) -> bool:
    """Whether Arrow has what JSON has."""
    if not cell.is_valid or printed is None:
        return not cell.is_valid and printed is None
    match cell:
        case pa.StructScalar():
            return all(_is_same(each, printed.get(name)) for name, each in cell.items())
        case pa.MapScalar():
            pairs = list(printed.items()) if isinstance(printed, dict) else printed
            entries = [(entry["key"], entry["value"]) for entry in cell.values]
            return len(entries) == len(pairs) and all(
                _is_same(key, pair[0]) and _is_same(value, pair[1])
                for (key, value), pair in zip(entries, pairs, strict=True)
            )
        case pa.ListScalar():
            elements = list(cell.values)
            return len(elements) == len(printed) and all(map(_is_same, elements, printed))
    return bool(_text_of(cell) == printed)


def _text_of(cell: pa.Scalar) -> object:
    match cell:
        case pa.TimestampScalar():
            return (temporal.timestamp_text if cell.type.tz else temporal.timestamp_ntz_text)(cell.value)
        case pa.Date32Scalar():
            return temporal.date_text(cell.value)
        case pa.Time64Scalar():
            return temporal.time_text(cell.value)
        case pa.DurationScalar():
            return temporal.day_time_text(cell.value)
        case pa.BinaryScalar() if not isinstance(cell, pa.StringScalar):
            return b64encode(cell.as_py()).decode()
        case pa.Decimal128Scalar():
            return format(cell.as_py(), "f")
        case pa.FloatScalar() | pa.DoubleScalar():
            number = cell.as_py()
            if not math.isfinite(number):
                return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
            return float(str(np.float32(number))) if isinstance(cell, pa.FloatScalar) else number
    return cell.as_py()
