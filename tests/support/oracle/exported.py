"""Exports as a reader makes them, whole streams in memory; and the documented check that one is whole."""

from __future__ import annotations

import csv
import http.client
import io
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from tests.support.cluster.served_node import Served
from tests.support.oracle.scanned import scan_target


@dataclass(frozen=True, slots=True)
class Exported:
    """A stream. `body` is what came of it; `is_whole`: the connection ended as HTTP says that a body ends."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of NDJSON."""
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def head(self) -> dict[str, Any]:
        """What the first line says."""
        head: dict[str, Any] = self.lines[0]["export"]
        return head

    @property
    def end(self) -> dict[str, Any]:
        """What the last line says."""
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
        """The rows of Arrow, and what empty batches say."""
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
        """The rows of CSV, and its last line."""
        *lines, last = self.body.decode().splitlines(keepends=True)
        return list(csv.DictReader(io.StringIO("".join(lines), newline=""))), last


def export(served: Served, store: str = "op0", *, method: str = "GET", **members: object) -> Exported:
    """The stream of an export. `prefix` and `where` are given as they are in JSON."""
    connection = served._connection()
    try:
        connection.request(method, scan_target(store, "export", **members), headers=served._shown())
        return received(connection.getresponse())
    finally:
        connection.close()


def received(response: http.client.HTTPResponse) -> Exported:
    """What comes of a response."""
    headers = {name.lower(): value for name, value in response.getheaders()}
    try:
        return Exported(response.status, headers, response.read(), is_whole=True)
    except http.client.IncompleteRead as error:
        return Exported(response.status, headers, error.partial, is_whole=False)
